"""Drafts against the published reference's: logits, confidences, choices, and every stage's intermediate values."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen

TINY = ["v41-tiny-bf16", "v41-tiny-fp8fp4"]
LONG = "v41-long-fp8fp4"


@frozen(eq=False)
class Drafts:
    """Every draft of a case, all prompts together; D drafts, of which E have golden logits.

    Each one is picked as the reference picked it, so that an early difference is not counted again and again.
    """

    chosen: torch.Tensor
    """``[D]``, the most likely tokens."""
    expected: torch.Tensor
    """``[D]``."""
    margins: torch.Tensor
    """``[D]``, by how much the reference's choice beat the next one."""
    spread: torch.Tensor
    """``[D]``, of the reference's logits over orders of summation."""
    logits_error: torch.Tensor
    """``[E]``, largest of a draft."""
    logits_spread: torch.Tensor
    """``[E]``."""
    relative_rms: torch.Tensor
    """``[E]`` and the first drafts' after them."""
    confidence_error: torch.Tensor
    """``[D]``, of the log-odds."""
    first_confidence_error: torch.Tensor
    features_error: torch.Tensor
    """Relative RMS per row of what the drafter reads of the model."""

    @property
    def within(self) -> float:
        """Share of drafts within the tolerance of the golden data's README."""
        return float((self.logits_error <= 0.05 + 2 * self.logits_spread).float().mean())

    @property
    def confidence_within(self) -> float:
        """The same of the confidences."""
        return float((self.confidence_error <= 0.05 + 2 * self.spread).float().mean())

    def same_choice(self, drafts: torch.Tensor) -> float:
        """Share of ``drafts`` whose most likely token is the expected one."""
        return float((self.chosen == self.expected)[drafts].float().mean())


def _relative_rms(value: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    value, expected = value.float(), expected.float()
    return (value - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt()


def _margins(logits: torch.Tensor) -> torch.Tensor:
    best = logits.topk(2, -1).values
    return best[..., 0] - best[..., 1]


class Comparison:
    """One case: all prompts prefill in one step, then decode the golden tokens together."""

    def __init__(self, runner, case, *, steps: int = 24, longest: int = 4096) -> None:
        self.runner, self.steps = runner, steps
        self.parts: dict[str, list[torch.Tensor]] = {name: [] for name in Drafts.__annotations__}
        self.prompts = {}
        for name, prompt in case.prompts.items():
            if len(prompt["input_ids"]) <= longest:
                values = {k.removeprefix(f"{name}/"): v for k, v in case.values.items() if k.startswith(f"{name}/")}
                self.prompts[runner.add(values["input_ids"].tolist())] = values

    def run(self) -> Drafts:
        empty = torch.full((self.runner.drafter.num_drafts,), 7)
        for step in range(self.steps + 1):
            following = {handle: int(v["decode_tokens"][step]) for handle, v in self.prompts.items()}
            forced = {}
            for handle, values in self.prompts.items():
                ids = values.get("first_draft_ids") if step == 0 else values["draft_ids"][step - 1]
                forced[handle] = (empty if ids is None else ids[1:]).tolist()
            rows, proposals = self.runner.step(following, forced)
            for handle, values in self.prompts.items():
                features = self.runner.features.values.flatten(1)[rows[handle]]
                if step == 0:
                    self._first(values, features, proposals[handle])
                else:
                    self._decode(values, step - 1, features, proposals[handle])
        return Drafts(**{name: torch.cat(part) if part else torch.empty(0) for name, part in self.parts.items()})

    def _add(self, **values: torch.Tensor) -> None:
        for name, value in values.items():
            self.parts[name].append(value)

    def _first(self, values, features, proposal) -> None:
        kept = values.get("prefill_rows", torch.arange(len(features)))
        self._add(features_error=_relative_rms(features[kept], values["prefill_main_hidden"]))
        if "first_draft_ids" in values:
            self._add(
                relative_rms=_relative_rms(proposal.logits, values["first_draft_logits"]),
                first_confidence_error=(proposal.confidences - values["first_draft_confidence"]).abs(),
            )

    def _decode(self, values, step: int, features, proposal) -> None:
        expected = values.get("draft_logits")
        margins = values["draft_margins"][step] if expected is None else _margins(expected[step])
        self._add(
            chosen=proposal.logits.argmax(-1),
            expected=values["draft_ids"][step][1:],
            margins=margins,
            spread=values["draft_spread"][step],
            confidence_error=(proposal.confidences - values["draft_confidence"][step]).abs(),
            features_error=_relative_rms(features, values["decode_main_hidden"][step : step + 1]),
        )
        if expected is not None:
            self._add(
                logits_error=(proposal.logits - expected[step]).abs().amax(-1),
                logits_spread=values["draft_spread"][step],
                relative_rms=_relative_rms(proposal.logits, expected[step]),
            )


def _line(name: str, family: str, drafts: Drafts) -> str:
    decided = drafts.margins > 4 * drafts.spread + 0.1
    has_logits = len(drafts.logits_error) > 0
    within = f"{drafts.within:.1%} of logits and " if has_logits else ""
    largest = f"{float(drafts.logits_error.max()):.4f} and " if has_logits else ""
    return (
        f"{name} ({family}): {len(drafts.chosen)} drafts, {within}{drafts.confidence_within:.1%} of confidences within "
        f"0.05 + 2*spread, largest errors {largest}{float(drafts.confidence_error.max()):.4f}, median relative RMS "
        f"{float(drafts.relative_rms.median()):.5f}, {drafts.same_choice(decided):.1%} of {int(decided.sum())} decided "
        "ids equal"
    )


@pytest.mark.parametrize("name", TINY)
def test_drafts_match_the_reference(name, drafting, golden_case, report):
    drafts = Comparison(drafting(name), golden_case(name)).run()
    report(_line(name, "cpu", drafts))
    assert len(drafts.chosen) == 5 * 24 * 4
    assert drafts.within >= 0.85
    assert drafts.confidence_within >= 0.85
    assert float(drafts.relative_rms.median()) <= 0.015
    assert drafts.same_choice(drafts.margins > 4 * drafts.spread + 0.1) >= 0.97
    assert float(drafts.first_confidence_error.median()) <= 0.05
    assert float(drafts.features_error.median()) <= 0.015


def test_drafts_of_long_prompts_match_the_reference(drafting, golden_case, report):
    """Only first drafts have logits here; later ones have margins and confidences."""
    drafts = Comparison(drafting(LONG), golden_case(LONG)).run()
    report(_line(LONG, "cpu", drafts))
    decided = drafts.margins > 2 * drafts.spread + 0.1
    assert int(decided.sum()) >= 100
    assert drafts.same_choice(decided) >= 0.95
    assert drafts.confidence_within >= 0.70
    assert float(drafts.relative_rms.median()) <= 0.04
    assert float(drafts.features_error.median()) <= 0.04


@pytest.mark.parametrize("name", TINY)
def test_reference_kernels_reproduce_drafts(name, drafting, golden_case, report):
    """Summed as the golden data were, drafts are exact: what the CPU's kernels miss is summation order alone."""
    drafts = Comparison(drafting(name, "reference"), golden_case(name, "reference"), steps=1, longest=5).run()
    report(_line(name, "reference", drafts))
    assert float(drafts.logits_error.max()) <= 1e-3
    assert float(drafts.confidence_error.max()) <= 1e-4
    assert drafts.same_choice(drafts.margins > 0) == 1.0
    assert float(drafts.features_error.max()) <= 1e-6


def _assert_close(value: torch.Tensor, expected: torch.Tensor) -> None:
    """Two bf16 ulps of the row's largest value for 99 % of elements."""
    value, expected = value.float().flatten(1), expected.float().flatten(1)
    ulp = torch.exp2(expected.abs().amax(-1, keepdim=True).log2().floor() - 7)
    assert float(((value - expected).abs() <= 2 * ulp).float().mean()) >= 0.99


@pytest.mark.parametrize("name", TINY)
def test_stages_match_the_traces(name, drafting, golden_case):
    """p17: the prompt fills the window of 16, and the second traced step's block has a ring that wraps."""
    case, runner = golden_case(name), drafting(name)
    handle = runner.add(case.values["p17/input_ids"].tolist())
    tokens = case.values["p17/decode_tokens"].tolist()
    runner.step({handle: tokens[0]})
    compared = 0
    for step in range(2):
        runner.step({handle: tokens[step + 1]})
        prefix = f"trace/p17/decode{step}/"
        for key, expected in case.values.items():
            part = key.removeprefix(prefix)
            if not part.startswith("mtp."):
                continue
            if part.endswith("_pre_norm"):  # inside the hyper-connection; the norm's output is compared
                continue
            value = runner.seen[part].reshape(expected.shape)
            compared += 1
            if part.endswith("moe_indices"):
                assert torch.equal(value.long(), expected), part
            elif part.endswith(("moe_weights", "pre_mix_out")):
                torch.testing.assert_close(value, expected, rtol=2e-3, atol=1e-4)
            else:
                _assert_close(value, expected)
    assert compared == 2 * (3 + 3 * 8)
