"""A request as its draws see it, kept up with its committed tokens: a token costs the same, however long they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.logits_processor import RowContext
from deepinfer_core.interfaces.sampler import LogitEdits, SamplingRow

if TYPE_CHECKING:
    from deepinfer_core.sampling_params import SamplingParams
    from deepinfer_core.structured.guide import Guide

_FIRST_CAPACITY = 64


class TokenCounts:
    """Which tokens a request has, each id once, and how often its output has it."""

    def __init__(self, prompt_token_ids: Iterable[int] = ()) -> None:
        prompt = dict.fromkeys(prompt_token_ids)
        self._places = {token: place for place, token in enumerate(prompt)}
        self._num_prompt = len(prompt)
        self._output: list[int] = []
        self._ids = np.array([*prompt, *[0] * _FIRST_CAPACITY], np.int32)
        self._counts = np.zeros(len(self._ids), np.int32)

    def append(self, token: int) -> None:
        """Count an output token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1
        self._output.append(token)

    def pop(self) -> None:
        """Take the last token back."""
        token = self._output.pop()
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0 and place >= self._num_prompt:
            del self._places[token]  # the last place: those made later are gone already

    @property
    def ids(self) -> NDArray[np.int32]:
        """Distinct ids, in order of appearance; a view, good until the next :meth:`append`."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """How often the output has each of :attr:`ids`; a view as well."""
        return self._counts[: len(self._places)]


class TokenLog:
    """Token ids that grow at the end; views of it are read-only and stay as they are."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._buffer = np.empty(max(_FIRST_CAPACITY, 2 * len(tokens)), np.int32)
        self._buffer[: len(tokens)] = tokens
        self._size = len(tokens)
        self._num_shown = 0
        """The part that some view has: never written again."""

    def append(self, token: int) -> None:
        """Add a token."""
        if self._size < self._num_shown and self._buffer[self._size] == token:
            self._size += 1  # taken back, and here again
            return
        if self._size == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty_like(self._buffer)])
        elif self._size < self._num_shown:
            self._buffer, self._num_shown = self._buffer.copy(), self._size
        self._buffer.flags.writeable = True
        self._buffer[self._size] = token
        self._buffer.flags.writeable = False
        self._size += 1

    def pop(self, count: int) -> None:
        """Take the last tokens back."""
        self._size -= count

    def view(self) -> NDArray[np.int32]:
        """The tokens so far."""
        self._buffer.flags.writeable = False
        self._num_shown = max(self._num_shown, self._size)
        return self._buffer[: self._size]


class SamplingState:
    """Makes a request's :class:`SamplingRow` of each step.

    seed: see ``SamplingParams.resolve_seed``.
    stop_ids: ids that would end the request; masked until ``min_tokens`` tokens are out.
    is_processed: whether a logits_processor component acts on the request.

    It depends on its tokens and nothing else, so a preemption does not touch it. :meth:`advance` takes in a token,
    :meth:`retreat` takes the last ones back, and the state is as if they had never come: so one looks ahead, at what
    would be drawn after tokens that are only drafted. Whatever else a row depends on has to follow both.
    """

    def __init__(
        self,
        request_id: str,
        params: SamplingParams,
        seed: int,
        prompt_token_ids: Sequence[int],
        stop_ids: tuple[int, ...] = (),
        *,
        is_processed: bool = False,
    ) -> None:
        self._params = params
        self._seed = seed
        self._num_outputs = 0
        self._late_edits = _lasting_edits(params, ())
        """Of tokens that may end the output; None for none."""
        self._early_edits = _lasting_edits(params, stop_ids) if params.min_tokens > 0 else self._late_edits
        """Of tokens that come before ``min_tokens`` are out."""
        self._counts: TokenCounts | None = None
        if params.has_penalties:
            self._counts = TokenCounts(prompt_token_ids if params.repetition_penalty != 1.0 else ())
        self._log: TokenLog | None = None
        if is_processed:
            self._log = TokenLog()
            prompt = np.array(prompt_token_ids, np.int32)
            prompt.flags.writeable = False
            self._context = RowContext(request_id, params, prompt, self._log.view())
        self._guide: Guide | None = None

    def follow(self, guide: Guide) -> None:
        """From now on, before any token is out, the output is held to a grammar."""
        self._guide = guide

    @property
    def is_over(self) -> bool:
        """Whether the output is whole by its grammar, and cannot go on."""
        return self._guide is not None and self._guide.is_over

    @property
    def error(self) -> str | None:
        """Why the output cannot go on, if its grammar was broken off; of committed tokens, not of drafts."""
        return None if self._guide is None else self._guide.error

    def advance(self, token: int) -> None:
        """Take in an output token: a committed one, or a draft that :meth:`retreat` takes back."""
        self._num_outputs += 1
        if self._guide is not None:
            self._guide.advance(token)
        if self._counts is not None:
            self._counts.append(token)
        if self._log is not None:
            self._log.append(token)

    def retreat(self, count: int) -> None:
        """Take the last ``count`` tokens back."""
        self._num_outputs -= count
        if self._guide is not None:
            self._guide.retreat(count)
        if self._counts is not None:
            for _ in range(count):
                self._counts.pop()
        if self._log is not None:
            self._log.pop(count)

    def row(self, position: int) -> SamplingRow:
        """The row of the token to be drawn at an absolute position; good until the next :meth:`advance`."""
        forced = self._params.forced_token_ids
        return SamplingRow(
            self._params,
            self._seed,
            position,
            self._edits(),
            forced[self._num_outputs] if self._num_outputs < len(forced) else None,
            None if self._log is None else attrs.evolve(self._context, output_token_ids=self._log.view()),
            None if self._guide is None else self._guide.mask(),
        )

    def rows(self, position: int, drafts: Sequence[int]) -> list[SamplingRow]:
        """``1 + len(drafts)`` rows, of ``position`` and those after it: row i as if ``drafts[:i]`` had been accepted.

        The state is afterwards as it was. A row after a draft that cannot be accepted serves no purpose, but there
        is one.
        """
        rows = [self._lasting(self.row(position))] if drafts else [self.row(position)]
        for ahead, draft in enumerate(drafts, start=1):
            self.advance(draft)
            rows.append(self._lasting(self.row(position + ahead)))
        self.retreat(len(drafts))
        return rows

    def _lasting(self, row: SamplingRow) -> SamplingRow:
        """The row with copies of what :meth:`advance` writes to."""
        if self._counts is None or row.edits is None:
            return row
        edits = attrs.evolve(row.edits, seen_ids=row.edits.seen_ids.copy(), seen_counts=row.edits.seen_counts.copy())
        return attrs.evolve(row, edits=edits)

    def _edits(self) -> LogitEdits | None:
        edits = self._early_edits if self._num_outputs < self._params.min_tokens else self._late_edits
        if self._counts is None:
            return edits
        assert edits is not None, "penalties are lasting edits"
        return attrs.evolve(edits, seen_ids=self._counts.ids, seen_counts=self._counts.counts)


def _lasting_edits(params: SamplingParams, masked: tuple[int, ...]) -> LogitEdits | None:
    """The edits that do not depend on the output; ``masked`` ids are banned besides the request's own."""
    banned = {*params.banned_token_ids, *masked}
    if not (params.logit_bias or params.allowed_token_ids or banned or params.has_penalties):
        return None
    return LogitEdits(
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        bias_ids=np.array([*params.logit_bias], np.int32),
        bias=np.array([*params.logit_bias.values()], np.float32),
        allowed=np.array(params.allowed_token_ids or (), np.int32),
        banned=np.array(sorted(banned), np.int32),
    )
