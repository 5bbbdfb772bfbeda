"""Conformance of ``speculator`` components."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.model import Architecture, Model, ModelContext
from deepinfer_core.interfaces.speculator import DraftBatch, Drafter, Pick, Proposal, Speculator
from deepinfer_core.model_loader import CheckpointIndex, load_weights
from deepinfer_core.testing.beside_model import BesideModelSuite
from deepinfer_core.testing.model import load_model
from deepinfer_core.testing.protocols import problems
from deepinfer_core.testing.sequences import Chunk, Sequences
from deepinfer_core.testing.synchronisation import SynchronisationGuard


def greedy(depth: int, logits: Tensor) -> Tensor:
    """The most likely token."""
    return logits.argmax(-1)


@attrs.define
class Drafting:
    """A model with a drafter beside it, on a backend."""

    model: Model
    drafter: Drafter
    config: Any
    backend: Backend

    def places(self, count: int, max_tokens: int) -> Sequences:
        """Places for sequences, with the drafter's buffers."""
        return Sequences(self.model, count, max_tokens, self.backend.device, self.drafter)

    def step(
        self, places: Sequences, chunks: Sequence[Chunk], observing: AbstractContextManager[Any] | None = None
    ) -> None:
        """Run the model and let the drafter observe, in the context ``observing``."""
        batch = places.batch(chunks)
        features = self.drafter.new_features(len(batch)) if self.drafter.feature_layers else None
        self.model.forward(batch, places.caches, features=features)
        with observing or nullcontext():
            self.drafter.observe(batch, features, places.caches)

    def propose(self, places: Sequences, known: Mapping[int, Sequence[int]], pick: Pick = greedy) -> list[list[Any]]:
        """Draft for sequences by number, ``known`` being all their tokens; ``(drafts, confidences)`` of each."""
        proposal = self.drafter.propose(self.draft_batch(known), places.caches, pick)
        drafts, odds = proposal.token_ids.cpu(), proposal.confidences.cpu()
        lengths = (drafts >= 0).sum(1).tolist()
        return [[drafts[i, :n].tolist(), odds[i, :n].tolist()] for i, n in enumerate(lengths)]

    def draft_batch(self, known: Mapping[int, Sequence[int]]) -> DraftBatch:
        """What the engine would ask."""
        views = [np.array(tokens, np.int32) for tokens in known.values()]
        for view in views:
            view.flags.writeable = False
        device = self.backend.device
        return DraftBatch(
            token_ids=torch.tensor([tokens[-1] for tokens in known.values()], dtype=torch.int64).to(device),
            positions=torch.tensor([len(tokens) - 1 for tokens in known.values()], dtype=torch.int64).to(device),
            slots=torch.tensor([sequence + 1 for sequence in known], dtype=torch.int32).to(device),
            tokens=views,
        )


class SpeculatorSuite(BesideModelSuite):
    """Proposals follow from a sequence's own past, and drafting leaves no trace.

    A toy model without a drafter of its own is drafted for. A speculator that needs more overrides the fixtures
    ``architecture`` and ``checkpoint``.
    """

    seam = "speculator"

    def load(
        self, component: Speculator, architecture: Architecture, checkpoint: Path, backend: Backend, kernels: Any = None
    ) -> Drafting:
        """Model and drafter, loaded; ``kernels``: in place of the backend's."""
        config = load_model(architecture, checkpoint, backend)[1]
        count = component.num_drafts(config)
        if not count:
            pytest.skip("it drafts nothing for this model: override the fixtures 'architecture' and 'checkpoint'")
        model, _, context = load_model(architecture, checkpoint, backend, count, kernels)
        drafter = component.build(config, model, context)
        specs = list(drafter.weight_specs())
        if specs:
            index = CheckpointIndex.open(checkpoint)
            load_weights(
                drafter.module, index, specs, ignore=drafter.unused_tensor, device=backend.device, use_tqdm=False
            )
        return Drafting(model, drafter, config, backend)

    @pytest.fixture
    def drafting(
        self, component: Speculator, architecture: Architecture, checkpoint: Path, backend: Backend
    ) -> Drafting:
        """:meth:`load` with the backend's kernels."""
        return self.load(component, architecture, checkpoint, backend)

    @pytest.fixture
    def prompts(self, drafting: Drafting) -> list[list[int]]:
        """Three sequences, the last token of each not computed yet. They repeat themselves, so that one can guess."""
        rng, vocab = random.Random(5), drafting.config.vocab_size
        return [[rng.randrange(vocab) for _ in range(n)] * 3 for n in (4, 45, 9)]

    def proposals(
        self, drafting: Drafting, prompts: Sequence[Sequence[int]], chunk: int = 200, pick: Pick = greedy
    ) -> list[list[Any]]:
        """Of sequences side by side, computed in chunks."""
        places = drafting.places(len(prompts), max(map(len, prompts)) + 20)
        for start in range(0, max(map(len, prompts)), chunk):
            parts = [(i, start, p[start : min(start + chunk, len(p) - 1)]) for i, p in enumerate(prompts)]
            parts = [part for part in parts if part[2]]
            if parts:
                drafting.step(places, parts)
        return drafting.propose(places, dict(enumerate(prompts)), pick)

    def test_drafters_fill_their_protocol(
        self, component: Speculator, drafting: Drafting, checkpoint: Path, architecture: Architecture
    ) -> None:
        """And are built on the meta device, with as many drafts as announced."""
        config, backend = drafting.config, drafting.backend
        context = ModelContext(kernels=backend.kernels, rollback=component.num_drafts(config), device=backend.device)
        drafter = component.build(config, drafting.model, context)
        assert problems(drafter, Drafter) == []
        assert drafter.num_drafts == component.num_drafts(config) >= 1
        allocated = [name for name, parameter in drafter.module.named_parameters() if not parameter.is_meta]
        assert allocated == [], "parameters that are not on the meta device"

    def test_buffers_are_in_slots_and_have_names_of_their_own(self, drafting: Drafting) -> None:
        """So that whoever copies a slot copies the drafter's state."""
        mine, models = drafting.drafter.cache_layout(), drafting.model.cache_layout()
        assert mine.pages == ()
        names = {buffer.name for buffer in (*models.pages, *models.slots)}
        assert not names & {buffer.name for buffer in mine.slots}

    def test_proposals_have_their_form(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """Shapes, dtypes, ids in the vocabulary, and after a missing draft no further ones."""
        places = drafting.places(3, max(map(len, prompts)) + 20)
        drafting.step(places, [(i, 0, prompt[:-1]) for i, prompt in enumerate(prompts)])
        batch = drafting.draft_batch(dict(enumerate(prompts)))
        found = drafting.drafter.propose(batch, places.caches, greedy)
        assert isinstance(found, Proposal)
        rows, count = found.token_ids.shape
        assert rows == 3 and count <= drafting.drafter.num_drafts
        assert found.token_ids.dtype == torch.int64 and found.confidences.dtype == torch.float32
        assert found.confidences.shape == (rows, count)
        assert not torch.isnan(found.confidences.cpu()).any()
        vocab = drafting.config.vocab_size
        assert found.logits is None or found.logits.shape == (rows, count, vocab)
        drafts = found.token_ids.cpu()
        assert bool(((drafts >= -1) & (drafts < vocab)).all())
        missing = (drafts < 0).int()
        assert bool((missing.diff(dim=1) >= 0).all()), "a draft after a missing one"
        assert [view.tolist() for view in batch.tokens] == prompts, "the tokens it was shown were written to"

    def test_sequences_are_independent(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """Alone, together, and in another order: the same drafts and confidences."""
        together = self.proposals(drafting, prompts)
        assert [self.proposals(drafting, [prompt])[0] for prompt in prompts] == together, "alone"
        assert self.proposals(drafting, prompts[::-1])[::-1] == together, "in another order"

    @pytest.mark.parametrize("chunk", [1, 7])
    def test_chunks_change_nothing(self, drafting: Drafting, prompts: list[list[int]], chunk: int) -> None:
        """However the prompt was cut."""
        assert self.proposals(drafting, prompts, chunk) == self.proposals(drafting, prompts)

    def test_proposing_leaves_no_trace(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """Caches are read only: asked again, it proposes the same."""
        places = drafting.places(3, max(map(len, prompts)) + 20)
        drafting.step(places, [(i, 0, prompt[:-1]) for i, prompt in enumerate(prompts)])
        before = {name: tensor.clone() for name, tensor in places.caches.items()}
        first = drafting.propose(places, dict(enumerate(prompts)))
        changed = [name for name, tensor in places.caches.items() if not torch.equal(tensor, before[name])]
        assert changed == [], "propose wrote to buffers"
        assert drafting.propose(places, dict(enumerate(prompts))) == first

    def test_rejected_drafts_leave_no_trace(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """Positions come again with other tokens, as if for the first time."""
        expected = self.proposals(drafting, prompts)
        vocab, count = drafting.config.vocab_size, drafting.drafter.num_drafts
        places = drafting.places(3, max(map(len, prompts)) + 20)
        for i, prompt in enumerate(prompts):
            cut = len(prompt) - 2
            drafts = [(prompt[cut] + 1 + k) % vocab for k in range(count)]
            drafting.step(places, [(i, 0, prompt[: cut - 1])])
            drafting.step(places, [(i, cut - 1, [prompt[cut - 1], *drafts])])
            drafting.step(places, [(i, cut, prompt[cut:-1])])
        assert drafting.propose(places, dict(enumerate(prompts))) == expected

    def test_what_others_left_in_slots_is_not_read(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """A sequence that starts finds the state of those before it."""
        expected = self.proposals(drafting, prompts)
        places = drafting.places(3, max(map(len, prompts)) + 20)
        for order in (prompts[::-1], prompts):
            drafting.step(places, [(i, 0, prompt[:-1]) for i, prompt in enumerate(order)])
        assert drafting.propose(places, dict(enumerate(prompts))) == expected

    def test_observing_does_not_wait_for_the_device(
        self,
        component: Speculator,
        architecture: Architecture,
        checkpoint: Path,
        backend: Backend,
        prompts: list[list[int]],
    ) -> None:
        """Nothing is read back, of prompts and of decoding sequences beside each other."""
        guard = SynchronisationGuard()
        drafting = self.load(component, architecture, checkpoint, backend, guard.kernels(backend.kernels))
        places = drafting.places(3, max(map(len, prompts)) + 20)
        drafting.step(places, [(0, 0, prompts[0][:-1])], guard)
        drafting.step(
            places, [(0, len(prompts[0]) - 1, prompts[0][-1:]), (1, 0, prompts[1]), (2, 0, prompts[2])], guard
        )

    def test_what_was_picked_is_proposed(self, drafting: Drafting, prompts: list[list[int]]) -> None:
        """Depth by depth, from logits that may be read only."""
        vocab, asked = drafting.config.vocab_size, []

        def pick(depth: int, logits: Tensor) -> Tensor:
            asked.append(depth)
            assert logits.shape == (3, vocab) and logits.dtype == torch.float32
            return torch.full((3,), (7 * depth + 1) % vocab, dtype=torch.int64, device=logits.device)

        found = self.proposals(drafting, prompts, pick=pick)
        if not asked:
            pytest.skip("it drafts without picking from logits")
        assert asked == list(range(len(asked))), "from left to right, each depth once"
        for drafts, _ in found:
            assert drafts == [(7 * depth + 1) % vocab for depth in range(len(drafts))]
