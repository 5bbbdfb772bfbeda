"""What the engine wants of a step's rows, and what it gets. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from deepinfer_core.interfaces.prompt_rows import PromptRows
    from deepinfer_core.interfaces.sampler import SamplerOutput, SamplingRow


@attrs.frozen(eq=False)
class StepRows:
    """sampling: how the tokens of each sampling sequence are drawn, its newest token's row and its drafts', in plan
    order. prompt: None where nobody asks.
    """

    sampling: Sequence[SamplingRow]
    prompt: PromptRows | None = None


@attrs.frozen(eq=False)
class StepResult:
    """What came of a step.

    sampled: the drawn tokens, one per entry of ``StepRows.sampling``.
    seconds: from the inputs to the drawn tokens.
    prompt: the prompt's tokens, scored; None as in :class:`StepRows`.
    """

    sampled: SamplerOutput
    seconds: float
    prompt: SamplerOutput | None = None
