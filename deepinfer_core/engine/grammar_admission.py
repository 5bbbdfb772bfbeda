"""Grammars for requests: compiled while these wait at the admission gate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
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
    from deepinfer_core.interfaces.grammar import Grammar, GrammarEngine
    from deepinfer_core.interfaces.structured_output import StructuredOutput
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_core.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class GrammarAdmission:
    """Compiles what requests ask for, and holds their completions to it.

    Nothing of a grammar engine is loaded before a request needs one.

    notify: called, on any thread, when something has been compiled.
    """

    def __init__(
        self,
        manager: PluginManager,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        config: GrammarConfig,
        notify: Callable[[], object],
    ) -> None:
        self._manager = manager
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._config = config
        self._notify = notify
        self._compiler: GrammarCompiler | None = None
        self._context: GuideContext | None = None
        self._engine: tuple[str, GrammarEngine] | None = None
        self._lock = threading.Lock()
        """Over finding the engine, which threads do as they check requests."""

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

    def begin(self, spec: StructuredOutput) -> AwaitedGrammar:
        """Begin to compile a grammar, unless that is done or under way."""
        compiler = self._get_compiler()
        return AwaitedGrammar(self, compiler, compiler.submit(spec), self._config.timeout_seconds)

    def guides(self, grammar: Grammar, request: Request) -> list[Guide]:
        """What holds a request's completions to a grammar. Raises RequestError if they cannot be."""
        if self._context is None:
            self._context = GuideContext(self._find_engine()[0], self._get_compiler().vocabulary)
        ending_ids = self._context.ending_ids(request.stop_ids)
        guides = [Guide(grammar, self._context, ending_ids) for _ in request.completions]
        error = guides[0].error or _misfit(guides[0], request.params.forced_token_ids)
        if error is not None:
            raise RequestError(error)
        return guides

    def close(self) -> None:
        """Let idle threads end."""
        if self._compiler is not None:
            self._compiler.close()

    def _get_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            name, engine = self._find_engine()
            assert self._tokenizer is not None, "check() refuses requests where there is none"
            vocabulary = partial(make_vocabulary, self._tokenizer, self._vocab_size, self._eos_token_ids)
            self._compiler = GrammarCompiler(engine, name, vocabulary, self._config, notify=self._notify)
        return self._compiler

    def _find_engine(self) -> tuple[str, GrammarEngine]:
        with self._lock:
            if self._engine is None:
                engine = self._manager.component("grammar")
                self._engine = next(iter(self._manager.named("grammar"))), engine
            return self._engine


@attrs.frozen(eq=False)
class AwaitedGrammar:
    """A grammar that a request waits for; see :class:`deepinfer_core.engine.admission.Awaited`."""

    _admission: GrammarAdmission
    _compiler: GrammarCompiler
    _compilation: Compilation
    _limit: float

    @property
    def is_ready(self) -> bool:
        """Whether it is compiled, refused or overdue."""
        if not self._compilation.is_done:
            self._compiler.check()
        return self._compilation.is_done or self._compilation.is_overdue

    def attach(self, request: Request) -> None:
        """Give each completion its guide. Raises RequestError if there is no grammar."""
        grammar = self._compilation.grammar
        if grammar is None:  # also one that is overdue, and done a moment later
            raise RequestError(self._compilation.error or "its grammar was not compiled")
        for completion, guide in zip(request.completions, self._admission.guides(grammar, request), strict=True):
            completion.guide = guide

    def describe(self) -> str:
        """What is waited for."""
        return f"its {self._compilation.spec.kind} to be compiled (limit {self._limit:g} s)"


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
