"""The engine: puts the stages together, and is stepped by hand or by a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from deepinfer_core.config import EngineConfig
from deepinfer_core.engine.bell import Bell
from deepinfer_core.engine.engine_core import EngineCore
from deepinfer_core.engine.grammar_admission import GrammarAdmission
from deepinfer_core.engine.input_processor import InputProcessor
from deepinfer_core.engine.kv_hooks import engine_view
from deepinfer_core.engine.stats_logger import StatsLogger
from deepinfer_core.engine.uncalled import refuse_uncalled
from deepinfer_core.errors import ConfigError, RequestError
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.plugins.banner import show_banner
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.tokenizer import Tokenizer, load_tokenizer
from deepinfer_core.trace import ChromeTrace

if TYPE_CHECKING:
    from deepinfer_core import _C
    from deepinfer_core.engine.prompt import Prompt
    from deepinfer_core.engine.request import Request
    from deepinfer_core.outputs import RequestOutput
    from deepinfer_core.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

#: Seconds after which somebody who waits for a grammar looks again, since its time limit does not ring.
_GATE_POLL = 0.05


class LLMEngine:
    """Intake, core and what they are made of. :meth:`step` is for one thread at a time; the others are for any.

    Raises DeepInferError subclasses when it cannot start; nothing is left running then.
    """

    def __init__(self, config: EngineConfig) -> None:
        from deepinfer_core.worker.worker import Worker

        self.config = config
        self.owner: threading.Thread | None = None
        """The thread that alone may step it; None: any, one at a time."""
        self.manager = PluginManager(
            config.plugins,
            backend=config.backend,
            plugin_config=config.plugin_config,
            config_file=config.config_file,
        )
        self.hf_config = open_model(config.model.model, self.manager)
        self.manager.resolve(self.hf_config.architecture, drafts=config.speculation.speculate != "off")
        if config.banner:
            show_banner(self.manager.table())
        refuse_uncalled(self.manager)
        self.hooks = self.manager.hooks
        self.tokenizer = self._load_tokenizer()
        self.worker = Worker(config, self.manager, self.hf_config, self.tokenizer)
        self.eos_token_ids = self._eos_token_ids()
        vocab_size = self.worker.arch_config.vocab_size
        self.bell = Bell()
        grammars = GrammarAdmission(
            self.manager, self.tokenizer, vocab_size, self.eos_token_ids, config.grammar, self.bell.ring
        )
        self.core = EngineCore(config, self.worker, self.hooks, grammars, self.tokenizer, self.manager.blame, self.bell)
        drafting = self.core.drafting
        self._trace = self.worker.trace = None if config.trace is None else ChromeTrace(config.trace)
        self.stats = self.core.stats = StatsLogger(
            enabled=not config.disable_log_stats,
            interval_seconds=config.log_stats_interval,
            extra_metrics=self.hooks.build_extra_metrics_log,
            speculation=None if drafting is None else drafting.statistics,
            trace=self._trace,
        )
        self.input_processor = InputProcessor(
            tokenizer=self.tokenizer,
            vocab_size=vocab_size,
            max_model_len=self.worker.max_model_len,
            eos_token_ids=self.eos_token_ids,
            sampling_defaults=self.hf_config.sampling_defaults,
            processors=self.manager.named("logits_processor"),
            check_length=self.scheduler.check,
            check_structured=grammars.check,
            seed=config.model.seed,
        )
        if self.hooks.init_pd_split is not None:
            self.hooks.init_pd_split(engine_view(self.worker))

    @property
    def scheduler(self) -> _C.Scheduler:
        """The native scheduler, which belongs to the core."""
        return self.core.scheduler

    # -- requests ---------------------------------------------------------------------------------

    def make_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        sink: Callable[[RequestOutput], object] | None = None,
    ) -> Request:
        """A request for :meth:`submit`, which nobody knows yet. Raises RequestError if it could never be served.

        stream: report what each step adds; otherwise only the final output, whole. sink: where its outputs go; None:
        to whoever calls :meth:`step`.
        """
        return self.input_processor.process(request_id, prompt, params, stream=stream, sink=sink)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests made by :meth:`make_request`. Raises RequestError for an id that a live one has."""
        self.core.add(requests)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, stream: bool = False
    ) -> None:
        """Queue a request. Raises RequestError, with nothing kept, if it could never be served."""
        self.submit([self.make_request(request_id, prompt, params, stream=stream)])

    def abort_request(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests (None: all) with finish reason ``abort``, in any state; unknown and finished ids are ignored.

        The next step does it, and reports them.
        """
        self.core.abort([request_ids] if isinstance(request_ids, str) else request_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether :meth:`step` has anything left to do or to report."""
        return self.core.has_unfinished

    def wait(self, timeout: float | None = None) -> None:
        """Return at once if a step has anything to do; otherwise when it has, or after ``timeout`` seconds."""
        core = self.core
        if core.gate and (timeout is None or timeout > _GATE_POLL):
            timeout = _GATE_POLL
        self.bell.wait(lambda: core.has_work, timeout)

    def step(self) -> list[RequestOutput]:
        """Compute one step for everyone it has room for, and return what came of it; see :meth:`EngineCore.step`.

        Raises RuntimeError where a thread of the engine's own does that.
        """
        self._check_owner()
        return self.core.step()

    def flush(self) -> list[RequestOutput]:
        """Finish the steps that are under way, without planning more ahead; returns what came of them."""
        self._check_owner()
        return self.core.flush()

    def _check_owner(self) -> None:
        if self.owner is not None and self.owner is not threading.current_thread():
            raise RuntimeError(f"this engine is stepped by its thread {self.owner.name!r}; only that one may")

    def explain(self, request_id: str) -> str:
        """Why a request is not running, or how far it is. Raises RequestError for an unknown one."""
        text = self.core.explain(request_id)
        if text is None:
            raise RequestError(f"there is no unfinished request {request_id!r}")
        return text

    def require_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer. Raises RequestError if it has none."""
        if self.tokenizer is None:
            raise RequestError("this checkpoint has no tokenizer; give one with tokenizer=FOLDER")
        return self.tokenizer

    # -- start and end ----------------------------------------------------------------------------

    def get_metrics(self) -> dict[str, Any]:
        """Statistics so far, as plain numbers."""
        return {**self.stats.snapshot(), "num_preemptions": self.scheduler.num_preemptions}

    def close(self) -> list[RequestOutput]:
        """End all requests, and free weights, caches and threads; returns the last outputs."""
        try:
            outputs = self.core.close()
        finally:
            if self._trace is not None:
                self._trace.close()
        del self.worker, self.core.worker
        return outputs

    def _load_tokenizer(self) -> Tokenizer | None:
        given, folder = self.config.model.tokenizer, self.hf_config.path
        if given is not None:
            return load_tokenizer(given)
        if not (folder / "tokenizer.json").is_file():
            logger.warning("%s has no tokenizer.json: prompts must be token ids and outputs have no text", folder)
            return None
        return load_tokenizer(folder)

    def _eos_token_ids(self) -> tuple[int, ...]:
        ids = self.hf_config.eos_token_ids
        if not ids and self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            ids = (self.tokenizer.eos_token_id,)
        vocab_size = self.worker.arch_config.vocab_size
        if any(token >= vocab_size for token in ids):
            raise ConfigError(f"eos_token_id must be below the vocabulary's size {vocab_size}, got {list(ids)}")
        return ids
