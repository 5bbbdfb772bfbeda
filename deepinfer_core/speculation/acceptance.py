"""Which of a step's drafts are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core._C import StepPlan


def sampled_rows(plan: StepPlan) -> NDArray[np.int64]:
    """``[R]``, rows of the step that yield a token: of each sampling sequence the last known one and its drafts."""
    ends = plan.query_offsets[1:][plan.samples].astype(np.int64)
    counts = 1 + plan.num_drafts[plan.samples]
    if len(ends) == counts.sum():
        return ends - 1
    starts = np.cumsum(counts) - counts
    return np.repeat(ends - counts - starts, counts) + np.arange(counts.sum())


def accepted_counts(plan: StepPlan, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """``[num_samples]`` int32, how many tokens each sampling sequence gets: its accepted drafts and one more.

    token_ids: ``[R]``, drawn for :func:`sampled_rows`. A draft is accepted if the row before it has drawn it and the
    drafts before it are accepted.
    """
    num_drafts = plan.num_drafts[plan.samples]
    counts = np.ones(len(num_drafts), np.int32)
    if not num_drafts.any():
        return counts
    rows = sampled_rows(plan)
    following = plan.token_ids[np.minimum(rows + 1, plan.num_rows - 1)]
    is_drawn = token_ids == following
    ends = np.cumsum(1 + num_drafts)
    for place in num_drafts.nonzero()[0].tolist():
        drawn = is_drawn[ends[place] - 1 - num_drafts[place] : ends[place] - 1]
        counts[place] += len(drawn) if drawn.all() else int(drawn.argmin())
    return counts


def kept_rows(plan: StepPlan, counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Places among the ``R`` sampled rows whose tokens count, ``[counts.sum()]``."""
    widths = 1 + plan.num_drafts[plan.samples]
    if len(widths) == widths.sum():
        return np.arange(len(widths))
    firsts = np.cumsum(widths) - widths
    begins = np.cumsum(counts) - counts
    return np.repeat(firsts - begins, counts) + np.arange(counts.sum())
