"""Requests that wait, outside the scheduler, for their grammar."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import attrs

from deepinfer_core.errors import RequestError
from deepinfer_core.structured.compiler import Compilation, GrammarCompiler
from deepinfer_core.structured.guide import Guide, GuideContext
from deepinfer_core.structured.vocabulary import make_vocabulary

if TYPE_CHECKING:
    from deepinfer_core.config import GrammarConfig
    from deepinfer_core.engine.request import Request
    from deepinfer_core.interfaces.grammar import GrammarEngine
    from deepinfer_core.interfaces.structured_output import StructuredOutput
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class Admitted:
    """A request that need not wait any more.

    guides: one per completion; for nothing where there is an ``error``.
    """

    request: Request
    guides: list[Guide] = attrs.field(factory=list)
    error: str | None = None


class GrammarAdmission:
    """Compiles what requests ask for and gives back those whose grammar is there, in the order of arrival.

    Nothing of a grammar engine is loaded before a request needs one.
    """

    def __init__(
        self,
        manager: PluginManager,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        config: GrammarConfig,
    ) -> None:
        self._manager = manager
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._config = config
        self._compiler: GrammarCompiler | None = None
        self._context: GuideContext | None = None
        self._engine: tuple[str, GrammarEngine] | None = None
        self._waiting: dict[str, tuple[Request, Compilation]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def request_ids(self) -> list[str]:
        """Those that wait, in the order of arrival."""
        return list(self._waiting)

    def check(self, spec: StructuredOutput) -> None:
        """Raise RequestError for what can be refused without compiling it."""
        if self._tokenizer is None:
            raise RequestError(f"structured output needs a tokenizer and this model has none, got {spec.kind}")
        try:
            name, engine = self._find_engine()
            known = [str(kind) for kind in engine.kinds]
        except Exception as error:
            logger.exception("the grammar engine cannot be used")
            raise RequestError(f"the grammar engine cannot be used: {error}") from error
        if spec.kind not in known:
            raise RequestError(f"grammar engine {name!r} does not support {spec.kind} (it does: {', '.join(known)})")
        size = len(spec.key.encode())
        if size > self._config.max_size:
            raise RequestError(
                f"structured: {spec.kind} must be at most {self._config.max_size} bytes long (grammar_max_size), "
                f"got {size}; shorten it or raise the limit"
            )

    def add(self, request: Request) -> None:
        """Take in a request; begin to compile its grammar unless that is done or under way."""
        assert request.params.structured is not None, "only requests with a grammar wait for one"
        self._waiting[request.request_id] = request, self._get_compiler().submit(request.params.structured)

    def remove(self, request_id: str) -> Request | None:
        """Let go of a request; None if it is not here."""
        request, _ = self._waiting.pop(request_id, (None, None))
        return request

    def take_ready(self) -> list[Admitted]:
        """Requests that wait no more."""
        if not self._waiting or self._compiler is None:
            return []
        self._compiler.check()
        ready = [request for request, compilation in self._waiting.values() if _is_settled(compilation)]
        return [self._settle(request) for request in ready]

    def wait(self, timeout: float) -> None:
        """Return when a grammar is there, or after ``timeout`` seconds."""
        if self._compiler is not None:
            self._compiler.wait([compilation for _, compilation in list(self._waiting.values())], timeout)

    def explain(self, request_id: str) -> str:
        """Why a request waits."""
        kind = self._waiting[request_id][1].spec.kind
        return f"waiting for its {kind} to be compiled (limit {self._config.timeout_seconds:g} s)"

    def close(self) -> None:
        """Let idle threads end."""
        if self._compiler is not None:
            self._compiler.close()

    def _settle(self, request: Request) -> Admitted:
        _, compilation = self._waiting.pop(request.request_id)
        if compilation.grammar is None:
            return Admitted(request, error=compilation.error)
        if self._context is None:
            self._context = GuideContext(self._find_engine()[0], self._get_compiler().vocabulary)
        ending_ids = self._context.ending_ids(request.stop_ids)
        guides = [Guide(compilation.grammar, self._context, ending_ids) for _ in range(request.params.n)]
        error = guides[0].error or _misfit(guides[0], request.params.forced_token_ids)
        return Admitted(request, guides, error)

    def _get_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            name, engine = self._find_engine()
            assert self._tokenizer is not None, "check() refuses requests where there is none"
            vocabulary = partial(make_vocabulary, self._tokenizer, self._vocab_size, self._eos_token_ids)
            self._compiler = GrammarCompiler(engine, name, vocabulary, self._config)
        return self._compiler

    def _find_engine(self) -> tuple[str, GrammarEngine]:
        if self._engine is None:
            engine = self._manager.component("grammar")
            self._engine = next(iter(self._manager.named("grammar"))), engine
        return self._engine


def _is_settled(compilation: Compilation) -> bool:
    return compilation.is_done or compilation.is_overdue


def _misfit(guide: Guide, forced: tuple[int, ...]) -> str | None:
    """Why the output cannot begin with these tokens; None if it can. The guide is left as it was."""
    for place, token in enumerate(forced):
        if not guide.allows(token):
            guide.retreat(place)
            return (
                guide.error or f"forced_token_ids must fit the grammar, which excludes token {token} at place {place}"
            )
        guide.advance(token)
    guide.retreat(len(forced))
    return guide.error
