"""Log-probabilities of prompts: which rows of a step to score, and where the results go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np

from deepinfer_core.engine.request import Tag
from deepinfer_core.interfaces.prompt_rows import PromptRows
from deepinfer_core.outputs import PositionLogprobsList

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan
    from deepinfer_core.engine.request import Completion, Request
    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.tokenizer import Tokenizer


@attrs.frozen(eq=False)
class StepScores:
    """What a step scores. shares: requests, and how many of the rows are each one's."""

    rows: PromptRows
    shares: list[tuple[Request, int]]


def score_rows(plan: StepPlan, completions: Mapping[int, Completion]) -> StepScores | None:
    """The plan's rows to score; None for none, which costs one look at a column.

    The row of position p tells how likely the token at p + 1 is. Each row is scored once: what is computed again,
    after a preemption or by another completion of the request, is passed over. Nothing comes before a prompt's first
    token, which therefore has no entry.
    """
    if not plan.any_tags & Tag.SCORED:
        return None
    asking = np.flatnonzero(((plan.tags & Tag.SCORED) != 0) & ~plan.is_decode)
    rows, token_ids, num_logprobs, shares = [], [], [], []
    for place in asking.tolist():
        completion = completions.get(int(plan.handles[place]))
        if completion is None or completion.ending is not None:
            continue
        request = completion.request
        assert request.prompt_logprobs is not None, "the tag says that it asked for them"
        start, count = int(plan.starts[place]), int(plan.num_tokens[place])
        first = len(request.prompt_logprobs) - 1
        assert start <= first, f"rows {first}..{start - 1} of {request.request_id} were never computed"
        positions = range(first, min(start + count, len(request.prompt_token_ids) - 1))
        if not positions:
            continue
        shares.append((request, len(positions)))
        rows += [int(plan.query_offsets[place]) + position - start for position in positions]
        token_ids += request.prompt_token_ids[positions.start + 1 : positions.stop + 1]
        num_logprobs += [request.params.prompt_logprobs] * len(positions)
    if not rows:
        return None
    columns = np.array(rows, np.int64), np.array(token_ids, np.int32), np.array(num_logprobs, np.int32)
    return StepScores(PromptRows(*columns), shares)


def take_scores(
    scores: StepScores, scored: SamplerOutput, tokenizer: Tokenizer | None
) -> Iterator[tuple[Request, str]]:
    """Give scores to their requests. Yields those that fail by a row without an answer, and why."""
    columns = scored.logprobs, scored.ranks, scored.top_offsets, scored.top_ids, scored.top_logprobs
    found = PositionLogprobsList(scored.token_ids, *columns, tokenizer)
    begin = 0
    for request, count in scores.shares:
        assert request.prompt_logprobs is not None, "only requests that asked for it are scored"
        end = begin + count
        failed = np.flatnonzero(scored.token_ids[begin:end] < 0)
        known = int(failed[0]) if len(failed) else count
        if len(failed):
            at = len(request.prompt_logprobs) + known
            yield request, f"prompt token {at} has no log-probability: a logit before it is NaN or +inf"
        request.prompt_logprobs.extend(found[begin : begin + known])
        begin = end
