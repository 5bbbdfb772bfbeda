"""What a step's tokens are drawn by: the scheduler's columns, and for the rows that need it what Python knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from deepinfer_core.engine.request import Tag
from deepinfer_core.interfaces.sampler import SamplingBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deepinfer_core import _C
    from deepinfer_core.engine.accounting import Accounting
    from deepinfer_core.engine.request import Completion
    from deepinfer_core.interfaces.logits_processor import RowContext

#: A row that Python has to say something about: its place, its completion and the drafts before it.
_Row = tuple[int, "Completion", Sequence[int]]

_SPECIAL = Tag.GUIDED | Tag.PROCESSED


class SamplingInputs:
    """Makes batches for the sampler. A sequence without a grammar and without logits processors costs no Python."""

    def __init__(self, scheduler: _C.Scheduler, completions: Mapping[int, Completion], accounting: Accounting) -> None:
        self._scheduler = scheduler
        self._completions = completions
        self._accounting = accounting

    def step(self, plan: _C.StepPlan) -> SamplingBatch:
        """For the R sampled rows of the oldest outstanding plan; rows after drafts as if these were accepted."""
        columns = self._scheduler.sampling_batch(plan).columns()
        if not plan.any_tags & _SPECIAL:
            return SamplingBatch(**columns)
        special = np.flatnonzero(plan.tags[plan.samples] & _SPECIAL)
        return self._batch(columns, self._step_rows(plan, special.tolist()))

    def _step_rows(self, plan: _C.StepPlan, special: Iterable[int]) -> Iterable[_Row]:
        places = np.flatnonzero(plan.samples)
        num_drafts = plan.num_drafts[places]
        firsts = np.cumsum(1 + num_drafts) - (1 + num_drafts)
        for index in special:
            completion = self._completions.get(int(plan.handles[places[index]]))
            if completion is None:  # it has ended since, and its rows are idle
                continue
            end, count = int(plan.query_offsets[places[index] + 1]), int(num_drafts[index])
            drafts = plan.token_ids[end - count : end].tolist()
            for ahead in range(count + 1):
                yield int(firsts[index]) + ahead, completion, drafts[:ahead]

    def drafts(self, handles: NDArray[np.int64], tags: NDArray[np.int32], drafts: NDArray[np.int32]) -> SamplingBatch:
        """For the token that follows ``drafts [S, B]`` of each sequence."""
        counts = np.full(len(handles), drafts.shape[1], np.int32)
        columns = self._scheduler.draft_batch(handles, counts, drafts).columns()
        special = np.flatnonzero(tags & _SPECIAL).tolist()
        rows = [(place, self._completions[int(handles[place])], drafts[place].tolist()) for place in special]
        return self._batch(columns, rows)

    def _batch(self, columns: dict[str, Any], rows: Iterable[_Row]) -> SamplingBatch:
        masks: list[NDArray[np.int32]] = []
        which: dict[int, int] = {}
        contexts: dict[int, RowContext] = {}
        for row, completion, drafts in rows:
            if completion.ending is not None:
                continue
            if completion.guide is not None:
                self._accounting.synchronize(completion, self._num_output(completion))
                mask = completion.guide.mask_after(drafts)
                if mask is not None:
                    which[row] = len(masks)
                    masks.append(mask)
            if completion.context is not None:
                contexts[row] = self._context(completion, completion.context, drafts)
        if masks:
            places = np.full(len(columns["position"]), -1, np.int32)
            places[[*which]] = [*which.values()]
            columns["masks"] = places, np.stack(masks)
        return SamplingBatch(**columns, contexts=contexts)

    def _num_output(self, completion: Completion) -> int:
        return self._scheduler.num_tokens(completion.handle) - len(completion.request.tokens)

    def _context(self, completion: Completion, context: RowContext, drafts: Sequence[int]) -> RowContext:
        output = self._scheduler.output_tokens(completion.handle)
        if drafts:
            output = np.concatenate([output, np.array(drafts, np.int32)])
            output.flags.writeable = False
        return attrs.evolve(context, output_token_ids=output)
