"""The engine: requests in, outputs out, one step at a time."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from deepinfer_core import _C
from deepinfer_core.config import EngineConfig
from deepinfer_core.engine import output_processor
from deepinfer_core.engine.deferred_release import DeferredRelease
from deepinfer_core.engine.detokenizer import IncrementalDetokenizer
from deepinfer_core.engine.drafting import Drafting
from deepinfer_core.engine.kv_hooks import KvHooks
from deepinfer_core.engine.prompt_scoring import PromptScoring
from deepinfer_core.engine.request import Prompt, Request, Sample, check_prompt, prompt_parts, tokenize_prompt
from deepinfer_core.engine.stats_logger import StatsLogger
from deepinfer_core.engine.uncalled import refuse_uncalled
from deepinfer_core.errors import ConfigError, GenerationError, RequestError
from deepinfer_core.interfaces.cache import PAGE_TOKENS
from deepinfer_core.interfaces.sampler import SamplingRow
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.outputs import RequestMetrics, RequestOutput
from deepinfer_core.plugins.banner import show_banner
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.sampling import SamplingState
from deepinfer_core.sampling.processors import check_extra
from deepinfer_core.sampling.state import TokenLog
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.sequence import SequenceState
from deepinfer_core.speculation.acceptance import accepted_counts, kept_rows
from deepinfer_core.structured.admission import GrammarAdmission
from deepinfer_core.tokenizer import Tokenizer, load_tokenizer
from deepinfer_core.worker.step_rows import StepRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.outputs import FinishReason
    from deepinfer_core.worker.step_rows import StepResult

logger = logging.getLogger(__name__)

#: Handle of a sample that the scheduler does not have yet.
_NOT_SUBMITTED = -1

_NOTHING_TO_DRAW = (
    "no token could be drawn: every token is banned, not allowed, excluded by the grammar or has a logit of -inf, "
    "or a logit is NaN or +inf"
)


class LLMEngine:
    """A model, a scheduler and the requests between them. Not thread-safe.

    Raises DeepInferError subclasses when it cannot start; nothing is left running then.
    """

    def __init__(self, config: EngineConfig) -> None:
        from deepinfer_core.worker.worker import Worker

        self.config = config
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
        self._processors = self.manager.named("logits_processor")
        self.worker = Worker(config, self.manager, self.hf_config, self.tokenizer)
        self._drafting = (
            Drafting(self.worker, config.speculation, self.manager.blame) if self.worker.num_drafts else None
        )
        self.eos_token_ids = self._eos_token_ids()
        self.scheduler = self._make_scheduler()
        self._grammars = GrammarAdmission(
            self.manager, self.tokenizer, self.worker.arch_config.vocab_size, self.eos_token_ids, config.grammar
        )
        self.stats = StatsLogger(
            enabled=not config.disable_log_stats,
            interval_seconds=config.log_stats_interval,
            extra_metrics=self.hooks.build_extra_metrics_log,
            speculation=None if self._drafting is None else self._drafting.statistics,
        )
        self._requests: dict[str, Request] = {}
        self._samples: dict[int, Sample] = {}
        """Those that the scheduler has, by handle."""
        self._has_news: dict[str, Request] = {}
        """Streamed requests with something to report."""
        self._ended: deque[Request] = deque()
        """Requests whose terminal output is still to be built."""
        self._fresh: list[RequestOutput] = []
        """Outputs that ``process_output`` has not seen."""
        self._ready: list[RequestOutput] = []
        """Outputs that :meth:`step` has not returned; more than a step's only after an exception."""
        self._unannounced: deque[RequestOutput] = deque()
        self._scoring = PromptScoring(self.tokenizer)
        self._deferred = DeferredRelease()
        self._rng = random.Random(config.model.seed)
        self._kv_hooks = KvHooks(self.hooks, self.worker.runner.caches)
        if self.hooks.init_pd_split is not None:
            self.hooks.init_pd_split(self)

    # -- requests ---------------------------------------------------------------------------------

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, stream: bool = False
    ) -> Request:
        """Queue a request. Raises RequestError, with nothing kept, if it could never be served.

        stream: report what each step adds; otherwise only the final output, whole.
        """
        arrival = time.monotonic()
        params = SamplingParams(**self.hf_config.sampling_defaults) if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        vocab_size = self.worker.arch_config.vocab_size
        params.check_vocabulary(vocab_size)
        if params.structured is not None:
            self._grammars.check(params.structured)
        is_processed = check_extra(params, self._processors)
        text, ids = prompt_parts(prompt, self.tokenizer)
        token_ids = tokenize_prompt(text, ids, self.tokenizer)
        tokens = check_prompt(token_ids, vocab_size)
        stop_ids = tuple(sorted({*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}))
        if self.tokenizer is None and params.stop:
            raise RequestError(f"stop strings need a tokenizer and this model has none, got stop={params.stop!r}")
        self._check_submittable(request_id, tokens, params)
        request = Request(request_id, text, token_ids, params, stop_ids, RequestMetrics(arrival), stream)
        for index, seed in enumerate(params.sample_seeds(params.resolve_seed(self._rng))):
            sampling = SamplingState(request_id, params, seed, token_ids, stop_ids, is_processed=is_processed)
            detokenizer = None if self.tokenizer is None else IncrementalDetokenizer(self.tokenizer, token_ids, params)
            history = TokenLog(token_ids)
            request.samples.append(Sample(request, index, _NOT_SUBMITTED, sampling, history, detokenizer))
        if params.structured is None:
            self._submit(request)
        else:
            self._grammars.add(request)
            self._admit_compiled()
        if self.hooks.on_request_added is not None:
            try:
                self.hooks.on_request_added(request)
            except BaseException:
                self.abort_request(request_id)
                raise
        return request

    def _check_submittable(self, request_id: str, tokens: NDArray[np.int32], params: SamplingParams) -> None:
        if request_id in self._grammars:
            raise RequestError(f"request {request_id!r}: a request with this id is still alive; choose another id")
        try:
            self.scheduler.check(request_id, tokens, **self._limits(params))
        except ValueError as error:
            raise RequestError(str(error)) from None

    def _admit_compiled(self) -> None:
        """Submit the requests whose grammar is there now, and end those that cannot have one."""
        for admitted in self._grammars.take_ready():
            request = admitted.request
            if admitted.error is not None:
                self._end_unsubmitted(request, "error", admitted.error)
                continue
            for sample, guide in zip(request.samples, admitted.guides, strict=True):
                sample.sampling.follow(guide)
            if request.samples[0].sampling.is_over:  # the empty output is whole, and the only one
                self._end_unsubmitted(request, "stop")
            else:
                self._submit(request)

    def _submit(self, request: Request) -> None:
        handle = self.scheduler.submit(
            request.request_id,
            np.asarray(request.prompt_token_ids, np.int32),
            stop_token_ids=list(request.stop_ids),
            num_samples=request.params.n,
            **self._limits(request.params),
        )
        for sample in request.samples:
            sample.handle = handle + sample.index
        self._scoring.add(request)
        self._requests[request.request_id] = request
        self._samples |= {sample.handle: sample for sample in request.samples}

    def _limits(self, params: SamplingParams) -> dict[str, int]:
        longest = self.worker.max_model_len
        return {
            "max_tokens": min(params.max_tokens or longest, longest),
            "min_tokens": min(params.tokens_before_stop, longest),
        }

    def abort_request(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests (None: all) with finish reason ``abort``, in any state; unknown and finished ids are ignored."""
        request_ids = [*self._requests, *self._grammars.request_ids] if request_ids is None else request_ids
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            waiting = self._grammars.remove(request_id)
            if waiting is not None:
                self._end_unsubmitted(waiting, "abort")
            elif request_id in self._requests:
                for sample in self._requests[request_id].samples:
                    self.scheduler.cancel(sample.handle)

    def has_unfinished_requests(self) -> bool:
        """Whether :meth:`step` has anything left to do or to report."""
        return bool(self._requests or self._grammars or self._ended or self._fresh or self._ready)

    def wait(self, timeout: float = 0.05) -> None:
        """Return at once if a step has anything to do; if all there is waits for grammars, when one is compiled or
        after ``timeout`` seconds. Other threads may add and abort requests meanwhile.
        """
        if self._grammars and not (self._requests or self._ended or self._fresh or self._ready):
            self._grammars.wait(timeout)

    def explain(self, request_id: str) -> str:
        """Why a request is not running, or how far it is."""
        if request_id in self._grammars:
            return self._grammars.explain(request_id)
        if request_id not in self._requests:
            raise RequestError(f"there is no unfinished request {request_id!r}")
        samples = [sample for sample in self._requests[request_id].samples if sample.finish_reason is None]
        texts = [self.scheduler.explain(sample.handle) for sample in samples]
        if len(texts) == 1:
            return texts[0]
        return "\n".join(f"sample {sample.index}: {text}" for sample, text in zip(samples, texts, strict=True))

    # -- the step ---------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Compute one step for everyone it has room for, and return what came of it.

        What it raises comes from a hook or from outside (an interrupt). The requests of that step end with an
        error, and the next call reports them: no output is lost, and none comes twice.
        """
        self._deferred.flush()
        if self._grammars:
            self._admit_compiled()
        drafts = self._draft()
        with self.stats.phase("schedule"):
            plan = self.scheduler.schedule(drafts)
        with self._settling(plan):
            self._note_schedule(plan)
            if plan and self.hooks.post_schedule is not None:
                self.hooks.post_schedule(plan)
            result = self._execute_model(plan) if plan else None
            num_tokens = self._apply_tokens(plan, result)
        outputs = self._process_model_outputs(plan, executed=result is not None)
        self.stats.step(
            prefill_tokens=int(plan.num_tokens[~plan.is_decode].sum()) if plan else 0,
            generated_tokens=num_tokens,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
            used_pages=self.scheduler.num_pages - 1 - self.scheduler.num_free_pages,
            total_pages=self.scheduler.num_pages - 1,
        )
        return outputs

    @contextmanager
    def _settling(self, plan: _C.StepPlan) -> Iterator[None]:
        """Whatever is raised inside, the plan does not stay outstanding, and requests that may lack a token end."""
        try:
            yield
        except BaseException as failure:
            self._end_with_error(plan, failure)
            with suppress(RuntimeError):  # it is committed already
                self.scheduler.commit(plan, np.full(plan.num_samples, -1, np.int32))
            self._report_failure(failure)
            raise

    def _draft(self) -> dict[int, list[int]]:
        """Drafts for the sequences that decode in the next step, by handle."""
        if self._drafting is None:
            return {}
        with self.stats.phase("draft"):
            alive = [self._samples[handle] for handle in self._drafting.handles if handle in self._samples]
            decoding = [each for each in alive if self.scheduler.state(each.handle) == SequenceState.DECODING]
            return self._drafting.propose(decoding)

    def _execute_model(self, plan: _C.StepPlan) -> StepResult | None:
        """Run the plan's forward and draw tokens. A failure ends the requests in it, and no others."""
        rows = StepRows(self._sampling_rows(plan), self._scoring.rows(plan))
        try:
            with self.stats.phase("execute"):
                return self.worker.execute(plan, rows)
        except Exception as error:
            self.manager.blame(error)
            logger.exception("a step failed; its %d requests end with an error", plan.num_seqs)
            self._end_with_error(plan, error)
            self._report_failure(error)
            return None

    def _apply_tokens(self, plan: _C.StepPlan, result: StepResult | None) -> int:
        """Give a step's tokens to the scheduler and the requests, and return how many they have got."""
        if not plan:
            return 0
        if self._kv_hooks.is_active and result is not None:
            self._kv_hooks.executed(plan, self._kv_names(plan))
        with self.stats.phase("process"):
            if result is None:
                self.scheduler.commit(plan, np.full(plan.num_samples, -1, np.int32))
                return 0
            for request in () if result.prompt is None else self._scoring.append(result.prompt):
                for sample in request.samples:
                    self.scheduler.finish(sample.handle, "error")
            counts = accepted_counts(plan, result.sampled.token_ids)
            rows = kept_rows(plan, counts)
            report = self.scheduler.commit(plan, result.sampled.token_ids[rows], counts)
            handles = plan.handles[plan.samples]
            if self._drafting is not None:
                sampling = [self._samples[handle] for handle in handles.tolist()]
                self._drafting.settle(plan, counts, sampling, result.seconds)
            rows_of = dict(_grouped(np.repeat(handles, counts), rows))
            return self._append_tokens(report, result.sampled, rows_of)

    def _process_model_outputs(self, plan: _C.StepPlan, *, executed: bool) -> list[RequestOutput]:
        """Report what is new."""
        moves_kv = self._kv_hooks.is_active and executed
        names = self._kv_names(plan) if moves_kv else []
        with self.stats.phase("process"):
            finished = self._take_finished()
        if moves_kv:
            self._call_kv_hooks(plan, names, finished)
        outputs, self._fresh = self._fresh, []
        self._ready += outputs
        if outputs and self.hooks.process_output is not None:
            self.hooks.process_output(outputs)
        self._announce()
        if self.hooks.post_process_model_outputs is not None:
            self.hooks.post_process_model_outputs(outputs)
        ready, self._ready = self._ready, []
        return ready

    # -- parts of the step ------------------------------------------------------------------------

    def _sampling_rows(self, plan: _C.StepPlan) -> list[SamplingRow]:
        rows: list[SamplingRow] = []
        positions = (plan.starts + plan.num_tokens - plan.num_drafts)[plan.samples].tolist()
        num_drafts = plan.num_drafts[plan.samples].tolist()
        for handle, position, count in zip(plan.handles[plan.samples].tolist(), positions, num_drafts, strict=True):
            sample = self._samples[handle]
            if count and self._drafting is not None:
                rows += self._drafting.rows(sample, position, count)
            else:
                rows.append(sample.sampling.row(position))
        return rows

    def _note_schedule(self, plan: _C.StepPlan) -> None:
        now = time.monotonic()
        for handle in plan.preempted:
            self._samples[handle].request.metrics.num_preemptions += 1
        for handle in plan.handles.tolist():
            metrics = self._samples[handle].request.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now

    def _append_tokens(self, report: _C.CommitReport, sampled: SamplerOutput, rows_of: Mapping[int, list[int]]) -> int:
        """Give samples their tokens, and those without their reason; ``rows_of``: by handle, rows of ``sampled``.

        Returns how many were given: none after one that completes a stop string or what a grammar allows.
        """
        ended, num_tokens = set(), 0
        rows = {handle: iter(places) for handle, places in rows_of.items()}
        for handle, token in zip(report.handles.tolist(), report.tokens.tolist(), strict=True):
            sample, row = self._samples[handle], next(rows[handle])
            if handle in ended:
                continue
            num_tokens += 1
            stopped = output_processor.append_token(sample, token, sampled, row, self.tokenizer)
            if sample.sampling.error is not None:
                sample.error = sample.sampling.error
                self.scheduler.finish(handle, "error")
                ended.add(handle)
            elif stopped or sample.sampling.is_over:
                self.scheduler.finish(handle, "stop")
                ended.add(handle)
            if sample.request.stream:
                self._has_news[sample.request.request_id] = sample.request
        for handle, places in rows.items():
            failed = next(places, None)
            if failed is not None and sampled.token_ids[failed] < 0 and handle not in ended:
                sample = self._samples[handle]
                sample.error = sampled.errors.get(failed) or sample.sampling.error or _NOTHING_TO_DRAW
        return num_tokens

    def _kv_names(self, plan: _C.StepPlan) -> list[str | None]:
        """Per sequence of the plan its request's id if it is the first sample, which stands for the request."""
        samples = [self._samples[handle] for handle in plan.handles.tolist()]
        return [sample.request.request_id if sample.index == 0 else None for sample in samples]

    def _call_kv_hooks(self, plan: _C.StepPlan, names: list[str | None], finished: list[Request]) -> None:
        ended = {request.request_id: request for request in finished}
        whole = (plan.samples & ~plan.is_decode).tolist()
        done = [name for name, is_whole in zip(names, whole, strict=True) if is_whole and name is not None]
        requests = [ended.get(name) or self._requests[name] for name in done]
        prompts = [
            output_processor.full_output(request)
            for request in requests
            if len(request.samples[0].token_ids) == 1  # none: it failed; more: it was preempted and recomputed
        ]
        self._kv_hooks.committed(plan, names, list(ended), prompts)

    def _take_finished(self) -> list[Request]:
        """Settle what has ended and build outputs; terminal ones exactly once per request.

        Returns the requests whose first sample ended. What samples held is released at the next step.
        """
        first_ended: list[Request] = []
        events = self.scheduler.take_finished()
        for handle, reason in events:
            sample = self._samples.pop(handle)
            request = sample.request
            output_processor.finish(sample, cast("FinishReason", reason))
            if request.stream:
                self._has_news[request.request_id] = request
            if sample.index == 0:
                first_ended.append(request)
                self._defer_finalize(request)
            if request.finished:
                self._scoring.forget(request)
                del self._requests[request.request_id]
                self._ended.append(request)
        if events:
            self._deferred.defer(self.scheduler.release_deferred)
        self._collect_streamed()
        while self._ended:
            request = self._ended.popleft()
            self.stats.finished(request.metrics, max(len(sample.token_ids) for sample in request.samples))
            self._fresh.append(self._final_output(request))
            if self.hooks.on_request_finished is not None:
                self._unannounced.append(output_processor.full_output(request))
            if request.error is not None and self.hooks.on_error is not None:
                self.hooks.on_error(request.request_id, GenerationError(request.error))
        return first_ended

    def _end_unsubmitted(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """A request ends that the scheduler never had; the next step reports it."""
        for sample in request.samples:
            sample.error = error
            output_processor.finish(sample, reason)
        self._defer_finalize(request)
        self._ended.append(request)

    def _defer_finalize(self, request: Request) -> None:
        if self.hooks.finalize_seq is not None:
            self._deferred.defer(partial(self.hooks.finalize_seq, request.request_id))

    def _collect_streamed(self) -> None:
        has_news, self._has_news = self._has_news, {}
        for request in has_news.values():
            if not request.finished:
                output = output_processor.new_output(request)
                if output is not None:
                    self._fresh.append(output)

    def _final_output(self, request: Request) -> RequestOutput:
        if not request.stream:
            return output_processor.full_output(request)
        output = output_processor.new_output(request)
        assert output is not None, "the last output of a stream is always reported"
        return output

    def _announce(self) -> None:
        while self._unannounced:
            output = self._unannounced.popleft()
            if self.hooks.on_request_finished is not None:
                self.hooks.on_request_finished(output)

    def _end_with_error(self, plan: _C.StepPlan, error: BaseException) -> None:
        why = ", ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        for handle in plan.handles.tolist():
            self._samples[handle].error = f"the step it was in failed: {why}"
            self.scheduler.finish(handle, "error")

    def _report_failure(self, error: BaseException) -> None:
        if self.hooks.on_error is not None:
            self.hooks.on_error(None, error)

    # -- start and end ----------------------------------------------------------------------------

    def get_metrics(self) -> dict[str, Any]:
        """Statistics so far, as plain numbers."""
        return {**self.stats.snapshot(), "num_preemptions": self.scheduler.num_preemptions}

    def close(self) -> None:
        """End all requests and release everything they hold."""
        with ExitStack() as last:
            last.callback(self.worker.close)
            last.callback(self._grammars.close)
            last.callback(self.stats.close)
            last.callback(self._deferred.flush)
            self.abort_request()
            self._take_finished()
            self._announce()

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

    def _make_scheduler(self) -> _C.Scheduler:
        limits, runner = self.config.scheduler, self.worker.runner
        return _C.Scheduler(
            page_size=PAGE_TOKENS,
            num_pages=runner.caches.num_pages,
            num_slots=runner.caches.num_slots,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=self.worker.max_model_len,
            max_chunk_tokens=limits.max_chunk_tokens,
            token_history=runner.model.token_lookback,
        )


def _grouped(owners: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[tuple[int, list[int]]]:
    """Rows by owner; an owner's stand beside each other."""
    for owner, group in itertools.groupby(zip(owners.tolist(), rows.tolist(), strict=True), key=itemgetter(0)):
        yield owner, [row for _, row in group]
