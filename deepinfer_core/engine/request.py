"""A request as the engine keeps it, from its acceptance to its last output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core import _C
    from deepinfer_core.engine.detokenizer import IncrementalDetokenizer
    from deepinfer_core.interfaces.logits_processor import RowContext
    from deepinfer_core.interfaces.sampling_params import SamplingParams
    from deepinfer_core.outputs import FinishReason, PositionLogprobs, RequestOutput
    from deepinfer_core.structured.guide import Guide


#: Per completion: tokens and characters shown, and whether its end was.
Marks = tuple[tuple[int, int, bool], ...]


class Tag:
    """Marks by which a step's columns tell, without looking at requests, whose turn it is for more than the usual.

    Bits of an int: an enum costs as much in each use as the rest of a step does for several sequences.
    """

    STREAMED: Final = 1
    """Every step's output is reported."""
    JUDGED: Final = 2
    """Python has to see each token: stop strings, grammars."""
    GUIDED: Final = 4
    """What may be drawn depends on a grammar."""
    PROCESSED: Final = 8
    """Logits processors see its rows."""
    SCORED: Final = 16
    """Its prompt's log-probabilities were asked for."""


@attrs.frozen(slots=True)
class Ending:
    """Why a completion ended; the scheduler's word. detail: a stop string, or what failed."""

    reason: FinishReason
    detail: str


@attrs.define(eq=False, slots=True)
class Completion:
    """One completion of a request; to the scheduler a sequence of its own, which owns its tokens."""

    request: Request
    index: int
    handle: int = 0
    """The scheduler's number for it; 0 before it has one."""
    guide: Guide | None = None
    """What holds it to a grammar; None before that is compiled, and without one."""
    context: RowContext | None = None
    """What logits processors see of it, but for its output."""
    detokenizer: IncrementalDetokenizer | None = None
    """Made when text is wanted; None without a tokenizer too."""
    num_judged: int = 0
    """Tokens that :attr:`guide` and, where stop strings are looked for, :attr:`detokenizer` have seen."""
    ending: Ending | None = None


@attrs.define(eq=False, slots=True)
class Request:
    """A prompt, and the completions of it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    tokens: NDArray[np.int32]
    """The prompt's ids again, as the scheduler takes them."""
    params: SamplingParams
    spec: _C.SamplingSpec
    """How its tokens are drawn."""
    stop_ids: Sequence[int]
    """Token ids that end a completion: end-of-sequence ids unless ignored, and the request's own."""
    seeds: Sequence[int]
    """One per completion."""
    max_tokens: int
    tags: int
    """Bits of :class:`Tag`."""
    arrival_time: float
    sink: Callable[[RequestOutput], object] | None = None
    """Where its outputs go, where nobody steps the engine by hand."""
    completions: list[Completion] = attrs.field(factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """As far as the prompt is computed; None where not asked for."""
    marks: Marks = ()
    """How far streamed outputs have shown it. Replaced as a whole, so that handing over an output is one step."""
    is_announced: bool = False
    """Whether ``on_request_added`` was called."""

    @property
    def stream(self) -> bool:
        """Whether each step's output is reported, or only the last."""
        return bool(self.tags & Tag.STREAMED)

    @property
    def finished(self) -> bool:
        """Whether every completion has ended."""
        return all(completion.ending is not None for completion in self.completions)

    @property
    def error(self) -> str | None:
        """Why completions failed; None if none did."""
        failures = {
            each.index: each.ending.detail
            for each in self.completions
            if each.ending is not None and each.ending.reason == "error"
        }
        if len(failures) == len(self.completions) and len(set(failures.values())) == 1:
            return failures[0]
        return "; ".join(f"completion {index}: {error}" for index, error in failures.items()) or None
