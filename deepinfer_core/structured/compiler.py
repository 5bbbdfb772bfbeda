"""Compiles grammars on threads, each content once, under a time limit."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from deepinfer_core.interfaces.grammar import Grammar, GrammarEngine

if TYPE_CHECKING:
    from deepinfer_core.config import GrammarConfig
    from deepinfer_core.interfaces.grammar import Vocabulary
    from deepinfer_core.interfaces.structured_output import StructuredOutput

logger = logging.getLogger(__name__)

#: Threads that compile at once.
_NUM_THREADS = 2

#: Compilations past their time limit that may still be running. They cannot be stopped, only left alone; with as
#: many, nothing new is compiled until one of them ends.
_MOST_OVERDUE = 8


@attrs.define(eq=False)
class Compilation:
    """One content's way to a grammar; shared by every request that asks for it."""

    spec: StructuredOutput
    key: str
    started: float | None = None
    """When a thread took it up, by the compiler's clock."""
    is_overdue: bool = False
    is_done: bool = False
    grammar: Grammar | None = None
    error: str | None = None
    """Why there is no grammar; final once :attr:`is_done`, and for as long as it is overdue."""


class GrammarCompiler:
    """A pool of threads in front of an engine, with a cache of what it made, least recently used out first.

    vocabulary: makes what the engine is given; called once, on one of the threads.
    clock: seconds, monotonic.
    notify: called on a thread of the pool when a compilation is done.

    The threads are daemons: a compilation that never ends does not keep the process from ending.
    """

    def __init__(
        self,
        engine: GrammarEngine,
        name: str,
        vocabulary: Callable[[], Vocabulary],
        config: GrammarConfig,
        clock: Callable[[], float] = time.monotonic,
        notify: Callable[[], object] = lambda: None,
    ) -> None:
        self._notify = notify
        self._engine = engine
        self._name = name
        self._make_vocabulary = vocabulary
        self._config = config
        self._clock = clock
        self._changed = threading.Condition()
        """Guards everything below; notified when a compilation is queued or done."""
        self._queue: deque[Compilation] = deque()
        self._under_way: dict[str, Compilation] = {}
        self._cache: OrderedDict[str, Compilation] = OrderedDict()
        self._num_threads = 0
        self._num_idle = 0
        self._num_overdue = 0
        self._is_open = True
        self._vocabulary_lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """What the engine is given, made now if need be. Raises what making it raises."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary

    def submit(self, spec: StructuredOutput) -> Compilation:
        """The compilation of this content: done already, under way, or begun now."""
        key = spec.key
        with self._changed:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            if key in self._under_way:
                return self._under_way[key]
            compilation = self._under_way[key] = Compilation(spec, key)
            self._queue.append(compilation)
            self._staff()
            self._changed.notify_all()
            return compilation

    def check(self) -> None:
        """Give up on what has taken too long: its error says so. Call it now and then."""
        now = self._clock()
        with self._changed:
            for compilation in self._under_way.values():
                started = compilation.started
                if started is not None and not compilation.is_overdue and now - started > self._config.timeout_seconds:
                    compilation.is_overdue = True
                    compilation.error = (
                        f"compiling its grammar takes longer than grammar_timeout ({self._config.timeout_seconds:g} "
                        "s); simplify the grammar or raise the limit"
                    )
                    self._num_threads -= 1  # the thread leaves the pool; it ends with this compilation
                    self._num_overdue += 1
            self._staff()
            if self._num_threads == 0:
                self._refuse_queued()

    def close(self) -> None:
        """Let idle threads end; what is being compiled is not waited for."""
        with self._changed:
            self._is_open = False
            self._queue.clear()
            self._changed.notify_all()

    def _staff(self) -> None:
        """Enough threads for the queue, within the limits."""
        wanted = min(_NUM_THREADS, self._num_threads - self._num_idle + len(self._queue))
        while self._num_threads < wanted and self._num_overdue < _MOST_OVERDUE:
            self._num_threads += 1
            threading.Thread(target=self._work, name="grammar-compiler", daemon=True).start()

    def _refuse_queued(self) -> None:
        while self._queue:
            compilation = self._queue.popleft()
            compilation.error = (
                f"{self._num_overdue} grammars are still being compiled long after their time limit, and no more is "
                "begun; try again later"
            )
            compilation.is_done = True
            del self._under_way[compilation.key]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                self._changed.wait_for(lambda: self._queue or not self._is_open)
                self._num_idle -= 1
                if not self._queue:
                    self._num_threads -= 1
                    return
                compilation = self._queue.popleft()
                compilation.started = self._clock()
            grammar, error, may_keep = self._compile(compilation.spec)
            with self._changed:
                compilation.grammar, compilation.error, compilation.is_done = grammar, error, True
                del self._under_way[compilation.key]
                if may_keep:
                    self._keep(compilation)
                if compilation.is_overdue:
                    self._num_overdue -= 1
            self._notify()
            if compilation.is_overdue:
                return

    def _compile(self, spec: StructuredOutput) -> tuple[Grammar | None, str | None, bool]:
        """``(grammar, error, whether it would come out the same again)``."""
        try:
            grammar = self._engine.compile(spec, self.vocabulary)
        except ValueError as error:
            return None, f"its {spec.kind} is refused: {error}", True
        except BaseException as error:  # SystemExit too: the thread must live, and the request get its reason
            logger.exception("grammar engine %r failed", self._name)
            return None, f"grammar engine {self._name!r} failed in compile: {type(error).__name__}: {error}", False
        if not isinstance(grammar, Grammar):
            return None, f"grammar engine {self._name!r}: compile must return a Grammar, got {grammar!r:.80}", False
        return grammar, None, True

    def _keep(self, compilation: Compilation) -> None:
        self._cache[compilation.key] = compilation
        while len(self._cache) > self._config.cache_size:
            self._cache.popitem(last=False)
