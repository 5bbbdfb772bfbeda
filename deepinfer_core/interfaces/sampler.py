"""The ``sampler`` seam: one batch of logits in, one token per row out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepinfer_core import columns
from deepinfer_core.interfaces._sampling_columns import (
    LISTS,
    SCALARS,
    check_columns,
    needed_columns,
    places_of,
    selected_lists,
)

if TYPE_CHECKING:
    import torch

    from deepinfer_core.interfaces.logits_processor import RowContext

#: One list of ids per row, end to end: ``(offsets [R + 1] int64, ids int32)``; row i's are
#: ``ids[offsets[i]:offsets[i + 1]]``, all distinct.
IdLists = tuple[NDArray[np.int64], NDArray[np.int32]]
#: The same with a value for each id.
ValueLists = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]


@attrs.frozen(slots=True, eq=False)
class Proposals:
    """Tokens drawn from other distributions than their rows', one per row.

    Row i's could have been any of ``ids[offsets[i]:offsets[i + 1]]``, with these probabilities.
    """

    tokens: NDArray[np.int32]
    """``[R]``; -1 where there is none."""
    offsets: NDArray[np.int64]
    """``[R + 1]``."""
    ids: NDArray[np.int32]
    """Rising within a row."""
    probabilities: NDArray[np.float64]
    """Above 0, 1 in sum within a row."""

    def select(self, rows: ArrayLike) -> Self:
        """Those of these rows, in this order: ``[S]`` integers in [0, R), or ``[R]`` bool."""
        places = places_of(rows)
        return type(self)(self.tokens[places], *selected_lists((self.offsets, self.ids, self.probabilities), places))


@attrs.frozen(slots=True, eq=False, kw_only=True)
class SamplingBatch:
    """What R rows are sampled by: one column per parameter. Columns that no row needs are None.

    What is done to a row's logits, greedy or not, is in this order: ``bias``, repetition, frequency and presence
    penalty, ``allowed``, ``banned``, ``masks``. Nothing in a batch may be changed; ``attrs.evolve`` makes another one.
    """

    temperature: NDArray[np.float64]
    """``[R]``; 0: the largest logit is taken."""
    top_k: NDArray[np.int32]
    """``[R]``; 0 or -1: all."""
    top_p: NDArray[np.float64]
    """``[R]``."""
    min_p: NDArray[np.float64]
    """``[R]``."""
    seed: NDArray[np.uint64]
    """``[R]``, the requests' seeds."""
    position: NDArray[np.int64]
    """``[R]``, absolute positions of the tokens being drawn; a prompt's first token is at 0."""
    num_logprobs: NDArray[np.int32]
    """``[R]``; -1: none; 0: the drawn token's; N: those of the N most likely tokens too."""
    processed_logprobs: NDArray[np.bool_]
    """``[R]``, whether logprobs are of what is drawn from, rather than of the logits as given."""
    forced: NDArray[np.int32] | None = None
    """``[R]``, the token to report as drawn, with its logprobs; -1: draw."""
    bias: ValueLists | None = None
    """float32 that is added to the logits of these ids."""
    seen: ValueLists | None = None
    """Tokens of the prompt or the output, and how often the output has each, int32. Goes with ``penalties``."""
    penalties: NDArray[np.float64] | None = None
    """``[R, 3]`` repetition, frequency, presence: positive logits of ``seen`` ids are divided by the first, others
    multiplied; the second times the count, and the third where the count is not 0, are taken from them."""
    allowed: IdLists | None = None
    """Unless a row's list is empty, the only ids that may be drawn."""
    banned: IdLists | None = None
    """Ids that must not be drawn."""
    masks: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
    """``(which [R], words [M, ceil(V / 32)])`` int32: of a row with ``which`` m, not -1, only tokens t with bit
    ``t % 32`` of ``words[m, t // 32]`` set may be drawn; bits beyond V mean nothing."""
    proposed: Proposals | None = None
    """Where a row has a proposal, its token is that one with probability min(1, p / q), p and q being the
    probabilities that the row's and the proposal's distribution give it, and otherwise drawn with probabilities in
    proportion to what p exceeds q by; so it is distributed as the row's. Only for a :class:`DraftingSampler`."""
    contexts: Mapping[int, RowContext] = MappingProxyType({})
    """By row, what logits_processor components see of its request; rows on which none acts are not there."""

    def __len__(self) -> int:
        return len(self.position)

    def select(self, rows: ArrayLike) -> Self:
        """The batch of these rows, in this order: ``[S]`` integers in [0, R), or ``[R]`` bool.

        Columns that none of them needs are None. Raises IndexError for a row that there is not.
        """
        places = places_of(rows)
        chosen: dict[str, Any] = {name: column[places] for name, column in self._given(*SCALARS, "penalties")}
        chosen |= {name: selected_lists(lists, places) for name, lists in self._given(*LISTS)}
        chosen |= {name: (which[places], words) for name, (which, words) in self._given("masks")}
        chosen |= {name: proposals.select(places) for name, proposals in self._given("proposed")}
        return type(self)(
            **needed_columns(chosen),
            contexts={place: self.contexts[row] for place, row in enumerate(places.tolist()) if row in self.contexts},
        )

    def to_bytes(self) -> bytes:
        """The batch without its ``contexts``, for another process: see :mod:`deepinfer_core.columns`."""
        given: dict[str, Any] = dict(self._given(*SCALARS, "penalties", *LISTS, "masks"))
        if (proposed := self.proposed) is not None:
            given["proposed"] = (proposed.tokens, proposed.offsets, proposed.ids, proposed.probabilities)
        return columns.pack(given)

    @classmethod
    def from_bytes(cls, message: bytes | bytearray | memoryview) -> Self:
        """What :meth:`to_bytes` made, as read-only views of the message.

        Raises ValueError for bytes that are no message, and for columns that do not fit together. Numbers are left to
        the sampler to refuse.
        """
        given = columns.unpack(message)
        check_columns(given)
        proposed: Any = given.pop("proposed", None)
        return cls(**given, proposed=proposed and Proposals(*proposed))  # type: ignore[arg-type]

    def _given(self, *names: str) -> Iterator[tuple[str, Any]]:
        """The columns of these names that are not None."""
        for name in names:
            if (column := getattr(self, name)) is not None:
                yield name, column


@attrs.frozen(eq=False)
class SamplerOutput:
    """One step's tokens. Row i's most likely tokens are at ``top_offsets[i]:top_offsets[i + 1]``."""

    token_ids: NDArray[np.int32]
    """``[R]``; -1: nothing could be drawn (a NaN or +inf logit, or every token masked or at -inf)."""
    logprobs: NDArray[np.float32]
    """``[R]``, of the drawn tokens, raw or processed; NaN for rows that asked for none or failed."""
    ranks: NDArray[np.int32]
    """``[R]``, 1 for the largest logit; 0 where ``logprobs`` is NaN."""
    top_offsets: NDArray[np.int64]
    """``[R + 1]``."""
    top_ids: NDArray[np.int32]
    """``[top_offsets[R]]``, most likely first, ties to the lowest id; -1 throughout a failed row."""
    top_logprobs: NDArray[np.float32]
    """As ``top_ids``; -inf for what a mask or filter leaves out."""
    errors: Mapping[int, str] = attrs.field(factory=dict)
    """By row, why nothing could be drawn, where more is known than that."""


@runtime_checkable
class Sampler(Protocol):
    """Draws tokens. Called once per step, on the driver, with the rows that yield a token; and with those of drafts.

    A row's result depends on its logits, its parameters, its seed and its position only: never on its
    neighbours, on its place in the batch, or on earlier calls.

    A sampler that changes one thing can leave the others to :class:`deepinfer_core.sampling.DefaultSampler`: with
    ``attrs.evolve`` it gives the batch other columns, and passes it on. What the columns make of logits is
    :func:`deepinfer_core.sampling.edited_logits`; :func:`deepinfer_core.sampling.narrowed` excludes tokens.
    """

    def sample(self, logits: torch.Tensor, batch: SamplingBatch) -> SamplerOutput:
        """``logits``: ``[R, V]`` float32, left unchanged; the batch has as many rows."""
        ...


@runtime_checkable
class DraftingSampler(Sampler, Protocol):
    """A sampler that can also draw drafts by rejection's rules; the others verify drafts by comparison only."""

    def propose(self, logits: torch.Tensor, batch: SamplingBatch, max_candidates: int) -> Proposals:
        """Draw from a drafter's logits, ``[R, V]`` float32, left unchanged.

        Each token is drawn by its row, with randomness that :meth:`sample` does not use, of at most
        ``max_candidates`` tokens, the most likely ones; 0: no limit. -1 where nothing can be drawn.
        """
        ...
