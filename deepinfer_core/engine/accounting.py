"""Account: what a step's tokens mean for the sequences that drew them. The scheduler keeps the books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from deepinfer_core import _C
from deepinfer_core.engine.detokenizer import IncrementalDetokenizer
from deepinfer_core.engine.request import Tag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deepinfer_core.engine.request import Completion
    from deepinfer_core.interfaces.sampler import SamplerOutput
    from deepinfer_core.tokenizer import Tokenizer

#: ``(index among the plan's sampling sequences, tokens that count, reason, detail)``.
Verdict = tuple[int, int, str, str]

_NOTHING_TO_DRAW = (
    "no token could be drawn: every token is banned, not allowed, excluded by the grammar or has a logit of -inf, "
    "or a logit is NaN or +inf"
)


class Accounting:
    """Gives tokens to sequences, and is the one place where a step ends them.

    Stop ids and lengths are the scheduler's to see. For what it cannot see, stop strings, grammars and rows that drew
    nothing, it is given verdicts in the same call. A sequence without these costs no Python.
    """

    def __init__(
        self, scheduler: _C.Scheduler, completions: Mapping[int, Completion], tokenizer: Tokenizer | None
    ) -> None:
        self._scheduler = scheduler
        self._completions = completions
        self._tokenizer = tokenizer

    def commit(self, plan: _C.StepPlan, sampled: SamplerOutput, now: float) -> tuple[NDArray[np.int32], int]:
        """Apply the oldest step's outcome: how many tokens each of the plan's sampling sequences has drawn, and how
        many were appended.

        The first are a sequence's accepted drafts and one more, what comes after its end included.
        """
        counts = self._scheduler.accepted_counts(plan, sampled.token_ids)
        tokens, firsts = sampled.token_ids, np.arange(len(counts))
        if plan.num_sampled_rows > plan.num_samples:
            widths = 1 + plan.num_drafts[plan.samples]
            firsts = np.cumsum(widths) - widths
            begins = np.cumsum(counts) - counts
            tokens = tokens[np.repeat(firsts - begins, counts) + np.arange(counts.sum())]
        columns = sampled.logprobs, sampled.ranks, sampled.top_offsets, sampled.top_ids, sampled.top_logprobs
        report = self._scheduler.commit(
            plan,
            tokens,
            counts,
            verdicts=list(self._verdicts(plan, sampled, counts, firsts)),
            logprobs=columns if sampled.ranks.any() else None,
            now=now,
        )
        return counts, len(report)

    def _verdicts(
        self, plan: _C.StepPlan, sampled: SamplerOutput, counts: NDArray[np.int32], firsts: NDArray[np.int64]
    ) -> Iterator[Verdict]:
        """About the sequences whose tokens somebody has to look at, and those that drew none, by rising index."""
        if not (plan.any_tags & Tag.JUDGED or sampled.token_ids.min(initial=0) < 0):
            return
        lasts = firsts + counts - 1
        is_judged = (plan.tags[plan.samples] & Tag.JUDGED) != 0
        looked_at = np.flatnonzero(is_judged | (sampled.token_ids[lasts] < 0)).tolist()
        if not looked_at:
            return
        handles = plan.handles[plan.samples]
        positions = (plan.starts + plan.num_tokens - plan.num_drafts)[plan.samples]
        for index in looked_at:
            completion = self._completions.get(int(handles[index]))
            if completion is None:  # it ended while the step was computed
                continue
            tokens = sampled.token_ids[firsts[index] : lasts[index] + 1].tolist()
            verdict = None
            if is_judged[index]:
                verdict = self._judge(completion, tokens, int(positions[index]) - len(completion.request.tokens))
            if verdict is None and tokens[-1] < 0:
                why = sampled.errors.get(int(lasts[index])) or (completion.guide and completion.guide.error)
                verdict = len(tokens) - 1, "error", why or _NOTHING_TO_DRAW
            if verdict is not None:
                yield index, *verdict

    def _judge(self, completion: Completion, tokens: list[int], num_output: int) -> tuple[int, str, str] | None:
        """Whether these tokens, which follow ``num_output`` earlier ones, end the completion: ``(how many of them
        count, reason, detail)``. None is looked at that the scheduler will not append.
        """
        self.synchronize(completion, num_output)
        request, guide = completion.request, completion.guide
        params = request.params
        text = self.text_of(completion, num_output) if params.stop else None
        for count, token in enumerate(tokens, start=1):
            if token < 0:
                return None
            completion.num_judged += 1
            ends_by_id = token in request.stop_ids and num_output + count > params.tokens_before_stop
            if guide is not None:
                guide.advance(token)
                if guide.error is not None:
                    return count, "error", guide.error
            if text is not None:
                if ends_by_id and not params.include_stop_str_in_output:
                    text.skip()
                elif text.append(token):
                    return count, "stop", text.stop_reason or ""
            if guide is not None and guide.is_over:
                return count, "stop", ""
            if ends_by_id:
                return None
        return None

    def synchronize(self, completion: Completion, num_output: int) -> None:
        """Bring a completion's guide to its first ``num_output`` tokens; nearly always it is there."""
        guide, missing = completion.guide, num_output - completion.num_judged
        if guide is not None and missing > 0:
            for token in self._scheduler.output_tokens(completion.handle)[completion.num_judged :].tolist():
                guide.advance(token)
        elif guide is not None and missing < 0:  # what a step judged never came to count: it failed
            guide.retreat(-missing)
        completion.num_judged = num_output

    def distrust(self) -> None:
        """A step was broken off anywhere: what followed the tokens so far is made anew from them."""
        for completion in self._completions.values():
            completion.detokenizer = None
            if completion.guide is not None:
                completion.guide = completion.guide.anew()
                completion.num_judged = 0

    def text_of(self, completion: Completion, num_output: int) -> IncrementalDetokenizer | None:
        """The completion's text as far as its first ``num_output`` tokens; None without a tokenizer."""
        text, request = completion.detokenizer, completion.request
        if self._tokenizer is None or (text is not None and text.num_tokens == num_output):
            return text
        if text is None or text.num_tokens > num_output:
            text = IncrementalDetokenizer(self._tokenizer, request.prompt_token_ids, request.params)
            completion.detokenizer = text
        new = self._scheduler.output_tokens(completion.handle)[text.num_tokens : num_output].tolist()
        is_silent = (
            bool(new)
            and new[-1] in request.stop_ids
            and num_output > request.params.tokens_before_stop
            and not request.params.include_stop_str_in_output
        )
        text.extend(new[:-1] if is_silent else new)
        if is_silent:
            text.skip()
        return text
