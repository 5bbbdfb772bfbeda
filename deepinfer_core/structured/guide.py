"""One output's matcher, held to its protocol: whatever an engine does wrong ends that output and nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.structured.vocabulary import engine_mask, mask_of

if TYPE_CHECKING:
    from deepinfer_core.interfaces.grammar import Grammar, Matcher, Vocabulary

logger = logging.getLogger(__name__)


#: Longest time, in seconds of the CPU, that one call of a matcher may take. What is ambiguous takes longer with every
#: token, and the whole step waits for it.
MAX_CALL_SECONDS = 1.0


class GrammarFailure(Exception):
    """A grammar engine has broken its protocol; the message names it."""


@attrs.frozen(eq=False)
class GuideContext:
    """What the guides of one engine share.

    engine: the grammar engine's name, for messages.
    """

    engine: str
    vocabulary: Vocabulary
    selectable: NDArray[np.int32] = attrs.field(init=False)
    """Bits that an engine may set."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "selectable", engine_mask(self.vocabulary))

    def ending_ids(self, stop_ids: Collection[int]) -> tuple[int, ...]:
        """Of a request's stop ids, those that are no text: they may come where a grammar is complete, and only there.

        The others are text to the grammar; they stop the output where it takes them.
        """
        spoken = self.vocabulary.token_bytes
        return tuple(token for token in stop_ids if not spoken[token])


class Guide:
    """Masks for the tokens of one output, and whether it is whole.

    ending_ids: ids that end the output; they are not the grammar's, and may come wherever it is complete.

    Tokens go in with :meth:`advance` and come out with :meth:`retreat`; a token that the grammar refuses goes in too,
    and until it comes out nothing is known (:attr:`is_lost`).
    """

    def __init__(self, grammar: Grammar, context: GuideContext, ending_ids: Sequence[int] = ()) -> None:
        self._failure: str | None = None
        self._grammar = grammar
        self._context = context
        self._ending_ids = frozenset(ending_ids)
        self._ending_mask = mask_of(ending_ids, len(context.vocabulary))
        self._num_lost = 0
        """Tokens since the first that the grammar did not take."""
        self._stray: int | None = None
        """That first one, if it does not end the output."""
        self._mask: NDArray[np.int32] | None = None
        self._is_over = False
        self._ahead: list[int] = []
        """Of the tokens that went in, the last ones, which :meth:`mask_after` supposes."""
        self._supposed: dict[tuple[int, ...], NDArray[np.int32] | None] = {}
        """What it has found, by the tokens supposed."""
        self._matcher = self._make_matcher(grammar)

    def anew(self) -> Guide:
        """One like it, before the first token."""
        return Guide(self._grammar, self._context, tuple(self._ending_ids))

    @property
    def error(self) -> str | None:
        """Why the output cannot go on: an engine's failure, or a token that the mask does not have."""
        self._return()
        if self._failure is None and self._stray is not None:
            return f"token {self._stray} was drawn, which the grammar excludes: the sampler did not heed the mask"
        return self._failure

    @property
    def is_lost(self) -> bool:
        """Whether a token went in that is not of the grammar, or that ends the output."""
        self._return()
        return self._num_lost > 0

    @property
    def is_over(self) -> bool:
        """Whether the output is whole and nothing can follow but an end."""
        self.mask()
        return self._is_over

    def mask(self) -> NDArray[np.int32] | None:
        """``[ceil(V / 32)]`` int32: what may come next; nothing after a failure.

        None where the guide is lost or the output is over: what is drawn there, after drafts, is thrown away.
        """
        self._return()
        return self._found()

    def _found(self) -> NDArray[np.int32] | None:
        """:meth:`mask` where the matcher is, supposed tokens included."""
        if self._mask is None and not self._num_lost:
            try:
                self._mask, self._is_over = self._look()
            except GrammarFailure as failure:
                self._failure = str(failure)
                self._mask, self._is_over = np.zeros_like(self._context.selectable), False
        return None if self._is_over else self._mask

    def mask_after(self, tokens: Sequence[int]) -> NDArray[np.int32] | None:
        """:meth:`mask` as if these tokens had come. Each is looked up once until the next token comes or goes."""
        supposed = tuple(tokens)
        if supposed not in self._supposed:
            known = [mine == theirs for mine, theirs in zip(self._ahead, supposed, strict=False)]
            common = known.index(False) if False in known else len(known)
            self._take_back(len(self._ahead) - common)
            for token in supposed[common:]:
                self._take_in(token)
            self._ahead = list(supposed)
            self._supposed[supposed] = self._found()
        return self._supposed[supposed]

    def _return(self) -> None:
        """Take back what was only supposed."""
        if self._ahead:
            self._take_back(len(self._ahead))
            self._ahead = []

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        mask = self.mask()
        if self._is_over:
            return token in self._ending_ids
        return mask is not None and bool(mask[token // 32] >> (token % 32) & 1)

    def advance(self, token: int) -> None:
        """A token has come."""
        self._return()
        self._supposed.clear()
        self._take_in(token)

    def _take_in(self, token: int) -> None:
        self._forget()
        if self._num_lost:
            self._num_lost += 1
        elif token in self._ending_ids or not self._accepts(token):
            self._num_lost = 1
            self._stray = None if token in self._ending_ids else token

    def retreat(self, count: int) -> None:
        """Take back the last ``count`` tokens."""
        self._return()
        self._supposed.clear()
        self._take_back(count)

    def _take_back(self, count: int) -> None:
        if not count:
            return
        self._forget()
        unknown = min(count, self._num_lost)
        self._num_lost -= unknown
        if not self._num_lost:
            self._stray = None
        if count > unknown and self._failure is None:
            try:
                self._call("rollback", count - unknown)
            except GrammarFailure as failure:
                self._failure = str(failure)

    def _forget(self) -> None:
        self._mask, self._is_over = None, False

    def _look(self) -> tuple[NDArray[np.int32], bool]:
        if self._failure is not None:
            raise GrammarFailure(self._failure)
        row = np.zeros_like(self._context.selectable)
        self._call("fill_mask", row[:])  # a view: whatever an engine does to its shape stays there
        mask = row & self._context.selectable
        is_complete = self._flag("is_complete", self._call("is_complete"))
        is_over = is_complete and not mask.any()
        return (mask | self._ending_mask if is_complete else mask), is_over

    def _accepts(self, token: int) -> bool:
        if self._failure is not None:
            return False
        try:
            return self._flag("accept", self._call("accept", token))
        except GrammarFailure as failure:
            self._failure = str(failure)
            return False

    def _make_matcher(self, grammar: Grammar) -> Matcher | None:
        try:
            return grammar.matcher()
        except Exception as error:
            logger.exception("grammar engine %r failed to make a matcher", self._context.engine)
            self._failure = self._described("matcher", error)
            return None

    def _call(self, name: str, *args: object) -> object:
        begin = time.thread_time()
        try:
            member = getattr(self._matcher, name)
            value = member(*args) if args else member
        except Exception as error:
            logger.exception(
                "grammar engine %r failed in %s; its request ends with an error", self._context.engine, name
            )
            raise GrammarFailure(self._described(name, error)) from error
        taken = time.thread_time() - begin
        if taken > MAX_CALL_SECONDS:
            raise GrammarFailure(
                f"matching its grammar has become too slow: {name} took {taken:.1f} s, and the limit is "
                f"{MAX_CALL_SECONDS:g} s; make the grammar less ambiguous"
            )
        return value

    def _flag(self, name: str, value: object) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise GrammarFailure(
                f"grammar engine {self._context.engine!r}: {name} must be True or False, got {value!r:.80}"
            )
        return bool(value)

    def _described(self, name: str, error: Exception) -> str:
        return f"grammar engine {self._context.engine!r} failed in {name}: {type(error).__name__}: {error}"
