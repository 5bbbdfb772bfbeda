"""What a request gives back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import attrs
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deepinfer_core.tokenizer import Tokenizer

#: stop: an end-of-sequence id, a stop token id or a stop string; length: ``max_tokens``, the model's limit or
#: the cache's; abort: the caller; error: refused or failed, see ``RequestOutput.error``.
FinishReason = Literal["stop", "length", "abort", "error"]


@attrs.frozen(slots=True)
class Logprob:
    """Log-probability of one token, raw or processed as ``SamplingParams.logprobs_mode`` says.

    logprob: -inf for a forced token that could not have been drawn.
    rank: 1 for the most likely token; equal logits rank by id.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


#: One output position: the chosen token's entry and those of the most likely ones, by token id.
PositionLogprobs = dict[int, Logprob]


class PositionLogprobsList(Sequence[PositionLogprobs]):
    """A :data:`PositionLogprobs` per token, made of columns as each is looked at. Equal to a list of the same.

    tokens: ``[T]``, the chosen tokens, with their ``logprobs`` and ``ranks``; the most likely ones of token i are at
        ``top_offsets[i]:top_offsets[i + 1]`` of the other columns. Those at -inf, which cannot be drawn, are left out,
        even if that leaves fewer than asked for.
    """

    def __init__(
        self,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        ranks: NDArray[np.int32],
        top_offsets: NDArray[np.int64],
        top_ids: NDArray[np.int32],
        top_logprobs: NDArray[np.float32],
        tokenizer: Tokenizer | None,
    ) -> None:
        self._columns = tokens, logprobs, ranks, top_offsets, top_ids, top_logprobs
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, place: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, place: slice) -> PositionLogprobsList: ...
    def __getitem__(self, place: int | slice) -> PositionLogprobs | PositionLogprobsList:
        tokens, logprobs, ranks, top_offsets, top_ids, top_logprobs = self._columns
        if isinstance(place, slice):
            begin, end, step = place.indices(len(tokens))
            if step != 1:
                raise ValueError(f"a slice of log-probabilities must have step 1, got {step}")
            part, bounds = slice(begin, max(begin, end)), slice(begin, max(begin, end) + 1)
            return PositionLogprobsList(
                tokens[part], logprobs[part], ranks[part], top_offsets[bounds], top_ids, top_logprobs, self._tokenizer
            )
        if not -len(tokens) <= place < len(tokens):
            raise IndexError(f"there are {len(tokens)} positions, got {place}")
        place %= len(tokens)
        found: PositionLogprobs = {}
        top = range(int(top_offsets[place]), int(top_offsets[place + 1]))
        for rank, entry in enumerate(top, start=1):
            if top_logprobs[entry] > -math.inf:
                found[int(top_ids[entry])] = self._entry(int(top_ids[entry]), float(top_logprobs[entry]), rank)
        token = int(tokens[place])
        if token not in found:
            found[token] = self._entry(token, float(logprobs[place]), int(ranks[place]))
        return found

    def _entry(self, token: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, None if self._tokenizer is None else self._tokenizer.token_text(token))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


@attrs.frozen(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    text: joined increments of a stream equal it.
    token_ids: every generated id, the one that ended the output included.
    cumulative_logprob, logprobs: None unless ``SamplingParams.logprobs`` asked for them.
    finish_reason: None while generating.
    stop_reason: the stop string or stop token id that ended the output; None for end of sequence or otherwise.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


@attrs.define(slots=True)
class SpeculationMetrics:
    """Drafts that were verified, and those accepted, by depth: entry j counts a proposal's draft j.

    num_verifications: verifications of at least one draft; each also gives a token of its own.
    """

    num_verifications: int = 0
    drafted_by_depth: list[int] = attrs.field(factory=list)
    accepted_by_depth: list[int] = attrs.field(factory=list)

    def add_counts(self, num_verifications: int, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Several verifications: how many, and their drafts by depth."""
        self.num_verifications += num_verifications
        for counts, new in ((self.drafted_by_depth, drafted), (self.accepted_by_depth, accepted)):
            counts += [0] * (len(new) - len(counts))
            for depth, count in enumerate(new):
                counts[depth] += count

    @property
    def num_drafted(self) -> int:
        """Drafts verified."""
        return sum(self.drafted_by_depth)

    @property
    def num_accepted(self) -> int:
        """Drafts accepted, and so tokens that took no step of their own."""
        return sum(self.accepted_by_depth)

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per verification, the verification's own included; None before the first."""
        return 1 + self.num_accepted / self.num_verifications if self.num_verifications else None


@attrs.define(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of ``time.monotonic``; None for what has not happened.

    speculation: what came of the tokens drafted for it.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    speculation: SpeculationMetrics = attrs.field(factory=SpeculationMetrics)

    @property
    def queue_seconds(self) -> float | None:
        """From arrival to the first step with this request in it."""
        return self._since_arrival(self.first_scheduled_time)

    @property
    def time_to_first_token(self) -> float | None:
        """From arrival to the first generated token."""
        return self._since_arrival(self.first_token_time)

    @property
    def total_seconds(self) -> float | None:
        """From arrival to the end."""
        return self._since_arrival(self.finished_time)

    def _since_arrival(self, time: float | None) -> float | None:
        return None if time is None else time - self.arrival_time


@attrs.frozen(slots=True)
class RequestOutput:
    """The state of one request; the last one, when all its completions have ended, has ``finished`` set, exactly once.

    prompt: None when the prompt came as token ids.
    prompt_logprobs: one entry per prompt token, None for the first; None throughout unless
        ``SamplingParams.prompt_logprobs`` asked for them. Shorter if the request ended before its prompt was computed.
    outputs: ``SamplingParams.n`` completions by index, empty ones for a refused request; while streaming, those that
        have something new.
    error: why the request was refused, or which of its completions failed and why; None otherwise.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    error: str | None = None

    @classmethod
    def refused(
        cls,
        request_id: str,
        error: str,
        *,
        prompt: str | None = None,
        prompt_token_ids: list[int] | None = None,
        n: int = 1,
    ) -> RequestOutput:
        """The output of a request that never reached the engine."""
        outputs = [CompletionOutput(index=index, text="", token_ids=[], finish_reason="error") for index in range(n)]
        return cls(request_id, prompt, prompt_token_ids or [], outputs, finished=True, error=error)
