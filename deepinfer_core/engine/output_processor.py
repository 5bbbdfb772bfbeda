"""From sampled tokens to request outputs: text, logprobs, stop strings."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from deepinfer_core.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput

if TYPE_CHECKING:
    from deepinfer_core.engine.request import Request
    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.outputs import FinishReason
    from deepinfer_core.tokenizer import Tokenizer


def append_token(request: Request, token: int, sampled: SamplerOutput, row: int, tokenizer: Tokenizer | None) -> bool:
    """Record a drawn token (row ``row`` of ``sampled``); True if a stop string has ended the request."""
    now = time.monotonic()
    request.metrics.first_token_time = request.metrics.first_token_time or now
    request.metrics.last_token_time = now
    request.token_ids.append(token)
    request.sampling.advance(token)
    if request.params.logprobs is not None:
        request.logprobs.append(position_logprobs(token, sampled, row, tokenizer))
        request.cumulative_logprob += float(sampled.logprobs[row])
    if request.detokenizer is None or _is_silent_stop(request, token):
        return False
    return request.detokenizer.append(token)


def _is_silent_stop(request: Request, token: int) -> bool:
    """Whether the token ends the request by its id, and leaves no text."""
    ends = token in request.stop_ids and len(request.token_ids) > request.params.tokens_before_stop
    return ends and not request.params.include_stop_str_in_output


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


def finish(request: Request, reason: FinishReason) -> FinishReason:
    """Close the text and settle why the request stopped; a stop string wins over a limit met by the same token."""
    request.metrics.finished_time = time.monotonic()
    if request.detokenizer is not None:
        request.detokenizer.finish()
        request.stop_reason = request.detokenizer.stop_reason
    if request.stop_reason is not None and reason == "length":
        reason = "stop"
    if reason == "abort":
        request.error = None
    elif request.error is not None:
        reason = "error"
    last = request.token_ids[-1] if request.token_ids else None
    if reason == "stop" and request.stop_reason is None and last in request.params.stop_token_ids:
        request.stop_reason = last
    return reason


def full_output(request: Request, reason: FinishReason | None) -> RequestOutput:
    """Everything the request has so far."""
    text = "" if request.detokenizer is None else request.detokenizer.text
    return _output(request, text, 0, reason)


def new_output(request: Request, reason: FinishReason | None) -> RequestOutput | None:
    """What is new since the last call, or None if nothing is and the request goes on."""
    text = "" if request.detokenizer is None else request.detokenizer.take()
    begin, request.reported_tokens = request.reported_tokens, len(request.token_ids)
    if not text and reason is None and (request.detokenizer is not None or begin == request.reported_tokens):
        request.reported_tokens = begin
        return None
    return _output(request, text, begin, reason)


def _output(request: Request, text: str, begin: int, reason: FinishReason | None) -> RequestOutput:
    has_logprobs = request.params.logprobs is not None
    completion = CompletionOutput(
        index=0,
        text=text,
        token_ids=request.token_ids[begin:],
        cumulative_logprob=request.cumulative_logprob if has_logprobs else None,
        logprobs=request.logprobs[begin:] if has_logprobs else None,
        finish_reason=reason,
        stop_reason=request.stop_reason,
    )
    return RequestOutput(
        request.request_id,
        request.prompt,
        request.prompt_token_ids,
        [completion],
        finished=reason is not None,
        metrics=request.metrics,
        prompt_logprobs=request.prompt_logprobs,
        error=request.error,
    )
