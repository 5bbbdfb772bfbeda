"""Engines that draft, with drafters that are right, useless or hostile, and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core import LLM
from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.speculator import DraftBatch, Pick, Proposal

DATA = Path(__file__).parents[1] / "data"
VOCAB = 512
NUM_DRAFTS = 5

#: From all tokens of a sequence, what to draft; shorter proposals are filled up with -1.
Guess = Callable[[Sequence[int]], list[int]]


class FakeDrafter:
    """Drafts what a function of the tokens says; has no weights, features or buffers."""

    feature_layers = ()
    num_drafts = NUM_DRAFTS

    def __init__(self, owner: FakeSpeculator) -> None:
        self.module = torch.nn.Module()
        self._owner = owner

    def weight_specs(self) -> tuple[()]:
        return ()

    def unused_tensor(self, name: str) -> str | None:
        return None

    def cache_layout(self) -> CacheLayout:
        return CacheLayout((), ())

    def build_metadata(self, rows: Any) -> Mapping[str, Any]:
        return {}

    def new_features(self, rows: int) -> Any:
        raise AssertionError("there are no feature layers")

    def observe(self, batch: Any, features: Any, caches: Mapping[str, torch.Tensor], tap: Any = None) -> None:
        assert features is None
        self._owner.num_observed += len(batch)

    def propose(self, batch: DraftBatch, caches: Mapping[str, torch.Tensor], pick: Pick, tap: Any = None) -> Proposal:
        self._owner.num_proposals += 1
        if self._owner.proposal is not None:
            return self._owner.proposal(batch, pick)
        drafts, odds = [], []
        for place, tokens in enumerate(batch.tokens):
            assert not tokens.flags.writeable
            assert int(tokens[-1]) == int(batch.token_ids[place]) and len(tokens) - 1 == int(batch.positions[place])
            drafts.append((self._owner.guess(tokens.tolist()) + [-1] * NUM_DRAFTS)[:NUM_DRAFTS])
            odds.append([self._owner.confidence(depth, int(tokens[-1])) for depth in range(NUM_DRAFTS)])
        return Proposal(torch.tensor(drafts), None, torch.tensor(odds))


class FakeSpeculator:
    """Its behaviour can be changed while it is in use."""

    seam = "speculator"
    name = "fake"

    def __init__(self) -> None:
        self.num_observed = self.num_proposals = 0
        self.guess: Guess = lambda tokens: []
        self.confidence: Callable[[int, int], float] = lambda depth, token: 0.0
        self.proposal: Callable[[DraftBatch, Pick], Proposal] | None = None

    def num_drafts(self, config: Any) -> int:
        return NUM_DRAFTS

    def fail(self, batch: DraftBatch, pick: Pick) -> Proposal:
        raise RuntimeError("out of ideas")

    def build(self, config: Any, model: Any, context: Any) -> FakeDrafter:
        assert context.rollback >= 1
        return FakeDrafter(self)


@pytest.fixture(scope="session")
def speculator() -> FakeSpeculator:
    """The one that all engines of :func:`drafting_llm` draft with."""
    return FakeSpeculator()


@pytest.fixture(scope="session")
def make_llm(speculator: FakeSpeculator) -> Iterator[Callable[..., LLM]]:
    """``make_llm(speculate, fake=…, checkpoint=…, **engine_args)``: an LLM, one per set of arguments."""
    made: dict[Any, LLM] = {}

    def make(
        speculate: Any = "off", *, fake: bool = False, checkpoint: str = "v41-tiny-bf16", **engine_args: Any
    ) -> LLM:
        key = (speculate, fake, checkpoint, *sorted((name, str(value)) for name, value in engine_args.items()))
        if key not in made:
            plugins = [*engine_args.pop("plugins", ()), *([speculator] if fake else [])]
            made[key] = LLM(
                DATA / checkpoint, speculate=speculate, plugins=plugins, disable_log_stats=True, **engine_args
            )
        return made[key]

    yield make
    for llm in made.values():
        llm.close()


class Oracle:
    """Knows what each prompt is continued with."""

    def __init__(self) -> None:
        self._whole: list[list[int]] = []

    def learn(self, outputs: Sequence[Any]) -> None:
        """Take in finished outputs."""
        self._whole = [
            [*output.prompt_token_ids, *completion.token_ids] for output in outputs for completion in output.outputs
        ]

    def right(self, tokens: Sequence[int]) -> list[int]:
        """The next tokens; nothing where several requests begin like this and go on differently."""
        known = list(tokens)
        found = [whole[len(known) :] for whole in self._whole if whole[: len(known)] == known]
        return found[0][:NUM_DRAFTS] if found else []

    @staticmethod
    def wrong(tokens: Sequence[int]) -> list[int]:
        """Drafts that are right by accident only."""
        return [(tokens[-1] * 7 + 3 + depth) % VOCAB for depth in range(NUM_DRAFTS)]

    def hostile(self, tokens: Sequence[int]) -> list[int]:
        """Right up to some depth, then wrong, or ended, or over-confident nonsense."""
        right, sign = self.right(tokens), sum(tokens) % 7
        return [*right[: sign % 4], *([] if sign == 6 else self.wrong(tokens))]


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """One for all tests; it knows what it was taught last."""
    return Oracle()
