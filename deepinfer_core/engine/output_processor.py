"""Report: from what the scheduler knows of a request to what its user gets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deepinfer_core.outputs import CompletionOutput, PositionLogprobsList, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from deepinfer_core import _C
    from deepinfer_core.engine.accounting import Accounting
    from deepinfer_core.engine.request import Completion, Ending, Marks, Request
    from deepinfer_core.tokenizer import Tokenizer


class OutputProcessor:
    """Builds outputs. Tokens, log-probabilities and times are read from the scheduler; nothing is kept here.

    Building changes nothing that another attempt would not change again, so one that is broken off can be repeated.
    """

    def __init__(self, scheduler: _C.Scheduler, accounting: Accounting, tokenizer: Tokenizer | None) -> None:
        self._scheduler = scheduler
        self._accounting = accounting
        self._tokenizer = tokenizer

    def whole(self, request: Request) -> RequestOutput:
        """Everything the request has so far."""
        return self._output(request, [self._completion(each, 0, 0) for each in request.completions])

    def news(self, request: Request) -> tuple[RequestOutput, Marks] | None:
        """What is new since the request's marks, of those completions that have something new, and the marks behind
        it; None if none has.
        """
        shown = request.marks or ((0, 0, False),) * len(request.completions)
        pieces, marks = [], []
        for completion, (num_tokens, num_chars, is_over) in zip(request.completions, shown, strict=True):
            piece = None if is_over else self._piece(completion, num_tokens, num_chars)
            if piece is not None:
                pieces.append(piece)
                num_tokens, num_chars = num_tokens + len(piece.token_ids), num_chars + len(piece.text)
            marks.append((num_tokens, num_chars, is_over or (piece is not None and piece.finished)))
        return (self._output(request, pieces), tuple(marks)) if pieces else None

    def _piece(self, completion: Completion, num_tokens: int, num_chars: int) -> CompletionOutput | None:
        piece = self._completion(completion, num_tokens, num_chars)
        is_new = piece.token_ids if self._tokenizer is None else piece.text
        return piece if is_new or piece.finished else None

    def _completion(self, completion: Completion, num_tokens: int, num_chars: int) -> CompletionOutput:
        """The completion from a token and a character on."""
        ending = completion.ending
        tokens = self._scheduler.output_tokens(completion.handle)
        text = self._accounting.text_of(completion, len(tokens)) if len(tokens) else None
        if text is not None and ending is not None:
            text.finish()
        logprobs = cumulative = None
        if completion.request.params.logprobs is not None:
            values, ranks, offsets, ids, tops, cumulative = self._scheduler.logprobs(completion.handle)
            logprobs = PositionLogprobsList(tokens, values, ranks, offsets, ids, tops, self._tokenizer)[num_tokens:]
        return CompletionOutput(
            index=completion.index,
            text="" if text is None else text.since(num_chars),
            token_ids=tokens[num_tokens:].tolist(),
            cumulative_logprob=cumulative,
            logprobs=logprobs,
            finish_reason=None if ending is None else ending.reason,
            stop_reason=None if ending is None else _stop_reason(completion, ending, tokens),
        )

    def _output(self, request: Request, completions: list[CompletionOutput]) -> RequestOutput:
        is_finished = request.finished
        return RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            completions,
            finished=is_finished,
            metrics=self._metrics(request, is_finished),
            prompt_logprobs=request.prompt_logprobs,
            error=request.error if is_finished else None,
        )

    def _metrics(self, request: Request, is_finished: bool) -> RequestMetrics:
        """The request's times and counts, over all its completions."""
        metrics = RequestMetrics(request.arrival_time, finished_time=time.monotonic() if is_finished else None)
        for completion in request.completions:
            first_scheduled, first, last, preemptions, verifications, drafted, accepted = self._scheduler.metrics(
                completion.handle
            )
            metrics.first_scheduled_time = _earlier(metrics.first_scheduled_time, first_scheduled)
            metrics.first_token_time = _earlier(metrics.first_token_time, first)
            metrics.last_token_time = max(metrics.last_token_time or 0.0, last) or None
            metrics.num_preemptions += preemptions
            if verifications:
                metrics.speculation.add_counts(verifications, drafted, accepted)
        return metrics


def _earlier(known: float | None, found: float) -> float | None:
    """0 stands for what has not happened."""
    if not found:
        return known
    return found if known is None else min(known, found)


def _stop_reason(completion: Completion, ending: Ending, tokens: NDArray[np.int32]) -> str | int | None:
    """The stop string or stop token id that ended the completion; None for end of sequence or otherwise."""
    if ending.reason != "stop" or ending.detail or not len(tokens):
        return (ending.reason == "stop" and ending.detail) or None
    last = int(tokens[-1])
    return last if last in completion.request.params.stop_token_ids else None
