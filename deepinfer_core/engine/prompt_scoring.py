"""Log-probabilities of prompts: which rows of a step to score, and where the results go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer_core.engine.output_processor import position_logprobs
from deepinfer_core.interfaces.prompt_rows import PromptRows

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan
    from deepinfer_core.engine.request import Request
    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.tokenizer import Tokenizer


class PromptScoring:
    """The requests whose prompts still have tokens to score. A step without any costs one test.

    The row of position p tells how likely the token at p + 1 is. Each row is scored once: what is computed
    again, after a preemption or by another sample of the request, is passed over.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._open: dict[int, Request] = {}
        """By the handles of their samples: whichever computes the prompt."""
        self._in_step: list[tuple[Request, int]] = []
        """Whose rows :meth:`rows` asked for last, and how many."""

    def add(self, request: Request) -> None:
        """Take in a new request; nothing comes before its first token, which therefore has no entry."""
        if request.params.prompt_logprobs is not None:
            request.prompt_logprobs = [None]
            if len(request.prompt_token_ids) > 1:
                self._open |= {sample.handle: request for sample in request.samples}

    def forget(self, request: Request) -> None:
        """Nothing is left to score, or the request has ended."""
        for sample in request.samples:
            self._open.pop(sample.handle, None)

    def rows(self, plan: StepPlan) -> PromptRows | None:
        """The plan's rows to score."""
        self._in_step = []
        if not self._open:
            return None
        rows, token_ids, num_logprobs = [], [], []
        for place, handle in enumerate(plan.handles.tolist()):
            request = self._open.get(handle)
            if request is None or request.prompt_logprobs is None:
                continue
            start, count = int(plan.starts[place]), int(plan.num_tokens[place])
            first = len(request.prompt_logprobs) - 1
            assert start <= first, f"rows {first}..{start - 1} of {request.request_id} were never computed"
            positions = range(first, min(start + count, len(request.prompt_token_ids) - 1))
            if not positions:
                continue
            self._in_step.append((request, len(positions)))
            rows += [int(plan.query_offsets[place]) + position - start for position in positions]
            token_ids += request.prompt_token_ids[positions.start + 1 : positions.stop + 1]
            num_logprobs += [request.params.prompt_logprobs] * len(positions)
        if not rows:
            return None
        return PromptRows(np.array(rows, np.int64), np.array(token_ids, np.int32), np.array(num_logprobs, np.int32))

    def append(self, scored: SamplerOutput) -> list[Request]:
        """Give the last :meth:`rows`' results to their requests; returns those with a row that has no answer."""
        row, failed = 0, []
        for request, count in self._in_step:
            assert request.prompt_logprobs is not None, "only requests that asked for it are scored"
            for place in range(row, row + count):
                token = int(scored.token_ids[place])
                if token < 0:
                    at = len(request.prompt_logprobs)
                    for sample in request.samples:
                        sample.error = f"prompt token {at} has no log-probability: a logit before it is NaN or +inf"
                    failed.append(request)
                    break
                request.prompt_logprobs.append(position_logprobs(token, scored, place, self._tokenizer))
            if len(request.prompt_logprobs) == len(request.prompt_token_ids):
                self.forget(request)
            row += count
        return failed
