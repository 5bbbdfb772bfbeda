"""From sampled tokens to request outputs: text, logprobs, stop strings."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from deepinfer_core.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput

if TYPE_CHECKING:
    from deepinfer_core.engine.request import Request, Sample
    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.outputs import FinishReason
    from deepinfer_core.tokenizer import Tokenizer


def append_token(sample: Sample, token: int, sampled: SamplerOutput, row: int, tokenizer: Tokenizer | None) -> bool:
    """Record a drawn token (row ``row`` of ``sampled``); True if a stop string has ended the sample."""
    request, now = sample.request, time.monotonic()
    request.metrics.first_token_time = request.metrics.first_token_time or now
    request.metrics.last_token_time = now
    sample.token_ids.append(token)
    sample.history.append(token)
    sample.sampling.advance(token)
    if request.params.logprobs is not None:
        sample.logprobs.append(position_logprobs(token, sampled, row, tokenizer))
        sample.cumulative_logprob += float(sampled.logprobs[row])
    if sample.detokenizer is None or _is_silent_stop(sample, token):
        return False
    return sample.detokenizer.append(token)


def _is_silent_stop(sample: Sample, token: int) -> bool:
    """Whether the token ends the sample by its id, and leaves no text."""
    params = sample.request.params
    ends = token in sample.request.stop_ids and len(sample.token_ids) > params.tokens_before_stop
    return ends and not params.include_stop_str_in_output


def position_logprobs(token: int, sampled: SamplerOutput, row: int, tokenizer: Tokenizer | None) -> PositionLogprobs:
    """The most likely tokens' entries in order, then that of ``token`` unless it is among them.

    Tokens at -inf, which cannot be drawn, are not among the most likely, even if that leaves fewer than asked for.
    """

    def entry(token_id: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, None if tokenizer is None else tokenizer.token_text(token_id))

    top = range(int(sampled.top_offsets[row]), int(sampled.top_offsets[row + 1]))
    found = {
        int(sampled.top_ids[place]): entry(int(sampled.top_ids[place]), float(sampled.top_logprobs[place]), rank)
        for rank, place in enumerate(top, start=1)
        if sampled.top_logprobs[place] > -math.inf
    }
    found.setdefault(token, entry(token, float(sampled.logprobs[row]), int(sampled.ranks[row])))
    return found


def finish(sample: Sample, reason: FinishReason) -> None:
    """Close the text and settle why the sample ended; a stop string or the end of a grammar wins over a limit met by
    the same token.
    """
    request = sample.request
    if sample.detokenizer is not None:
        sample.detokenizer.finish()
        sample.stop_reason = sample.detokenizer.stop_reason
    is_whole = sample.stop_reason is not None or sample.sampling.is_over
    if is_whole and sample.error is None and reason in ("length", "error"):
        reason = "stop"  # what came after the end in the same step does not count
    if reason == "abort":
        sample.error = None
    elif sample.error is not None:
        reason = "error"
    last = sample.token_ids[-1] if sample.token_ids else None
    if reason == "stop" and sample.stop_reason is None and last in request.params.stop_token_ids:
        sample.stop_reason = last
    sample.finish_reason = reason
    if request.finished:
        request.metrics.finished_time = time.monotonic()


def full_output(request: Request) -> RequestOutput:
    """Everything the request has so far."""
    texts = ["" if sample.detokenizer is None else sample.detokenizer.text for sample in request.samples]
    completions = [_completion(sample, text, 0) for sample, text in zip(request.samples, texts, strict=True)]
    return _output(request, completions)


def new_output(request: Request) -> RequestOutput | None:
    """What is new since the last call, of those samples that have something new; None if none has."""
    pieces = [piece for sample in request.samples if (piece := _new_piece(sample)) is not None]
    return _output(request, pieces) if pieces else None


def _new_piece(sample: Sample) -> CompletionOutput | None:
    if sample.reported_end:
        return None
    text = "" if sample.detokenizer is None else sample.detokenizer.take()
    begin, end = sample.reported_tokens, len(sample.token_ids)
    if not text and sample.finish_reason is None and (sample.detokenizer is not None or begin == end):
        return None
    sample.reported_tokens, sample.reported_end = end, sample.finish_reason is not None
    return _completion(sample, text, begin)


def _completion(sample: Sample, text: str, begin: int) -> CompletionOutput:
    has_logprobs = sample.request.params.logprobs is not None
    return CompletionOutput(
        index=sample.index,
        text=text,
        token_ids=sample.token_ids[begin:],
        cumulative_logprob=sample.cumulative_logprob if has_logprobs else None,
        logprobs=sample.logprobs[begin:] if has_logprobs else None,
        finish_reason=sample.finish_reason,
        stop_reason=sample.stop_reason,
    )


def _output(request: Request, completions: list[CompletionOutput]) -> RequestOutput:
    return RequestOutput(
        request.request_id,
        request.prompt,
        request.prompt_token_ids,
        completions,
        finished=request.finished,
        metrics=request.metrics,
        prompt_logprobs=request.prompt_logprobs,
        error=request.error if request.finished else None,
    )
