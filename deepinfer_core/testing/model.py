"""Conformance of ``model`` components."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.model import Architecture, LayerFeatures, Model, ModelContext
from deepinfer_core.model_loader import CheckpointIndex, load_hf_config, load_weights
from deepinfer_core.testing.checkpoints import write_random_checkpoint
from deepinfer_core.testing.protocols import problems
from deepinfer_core.testing.sequences import Sequences
from deepinfer_core.testing.suite import Suite, default_backend
from deepinfer_core.testing.synchronisation import SynchronisationGuard
from deepinfer_core.tokenizer import load_tokenizer

ROLLBACK = 3
NONSENSE: tuple[Any, ...] = (None, -1, 0, 1.5, "nonsense", [], {}, True, 10**30)


def make_context(checkpoint: Path, backend: Backend, rollback: int = 0, kernels: Any = None) -> ModelContext:
    """What an engine would build a checkpoint's model with; ``kernels``: in place of the backend's."""
    has_tokenizer = (checkpoint / "tokenizer.json").is_file()
    return ModelContext(
        kernels=kernels or backend.kernels,
        rollback=rollback,
        tokenizer=load_tokenizer(checkpoint) if has_tokenizer else None,
        device=backend.device,
    )


def load_model(
    architecture: Architecture, checkpoint: Path, backend: Backend, rollback: int = 0, kernels: Any = None
) -> tuple[Model, Any, ModelContext]:
    """A checkpoint's model on a backend, its config, and what it was built with."""
    config = architecture.translate_config(load_hf_config(checkpoint).config)
    context = make_context(checkpoint, backend, rollback, kernels)
    model = architecture.build(config, context)
    load_weights(
        model.module, CheckpointIndex.open(checkpoint), model.weight_specs(), ignore=model.unused_tensor,
        device=backend.device, use_tqdm=False,
    )  # fmt: skip
    return model, config, context


class ModelSuite(Suite):
    """Set :attr:`config` to a small ``config.json`` of the architecture, or override the fixture ``checkpoint``.

    Equalities are of bits. Where the kernels of a model cannot promise that, set :attr:`tolerance`.
    """

    seam = "model"
    config: ClassVar[Mapping[str, Any] | None] = None
    """``config.json`` of a small model, ``architectures`` included; random weights are made for it."""
    tolerance: ClassVar[float] = 0.0
    """Largest difference of logits between ways to compute the same row."""

    @pytest.fixture
    def checkpoint(self, component: Architecture, tmp_path: Path) -> Path:
        """The folder of a small checkpoint."""
        if self.config is None:
            pytest.skip("there is no checkpoint to try it with: set the attribute 'config'")
        return write_random_checkpoint(tmp_path / "checkpoint", component, self.config, self.make_backend().kernels)

    @pytest.fixture
    def hf_config(self, checkpoint: Path) -> dict[str, Any]:
        """Its ``config.json``."""
        return dict(load_hf_config(checkpoint).config)

    def make_backend(self) -> Backend:
        """Where the model runs."""
        return default_backend()[1]

    @pytest.fixture
    def backend(self) -> Backend:
        """:meth:`make_backend`."""
        return self.make_backend()

    @pytest.fixture
    def model(self, component: Architecture, checkpoint: Path, backend: Backend) -> Model:
        """The model, loaded."""
        return load_model(component, checkpoint, backend, ROLLBACK)[0]

    # -- the config -------------------------------------------------------------------------------

    def test_configs_are_translated(self, component: Architecture, hf_config: dict[str, Any]) -> None:
        """What the core needs to know is there; the mapping that came stays as it was."""
        before = repr(hf_config)
        config = component.translate_config(hf_config)
        assert repr(hf_config) == before, "translate_config changed its argument"
        assert config.vocab_size >= 1 and config.max_position_embeddings >= 1
        assert all(0 <= token < config.vocab_size for token in config.eos_token_ids)
        headers, rows = config.plan.table()
        assert rows and all(len(row) == len(headers) for row in rows), "a layer plan has a row per layer"
        assert all(isinstance(cell, str) for row in rows for cell in row)

    def test_wrong_configs_are_refused_with_a_config_error(
        self, component: Architecture, hf_config: dict[str, Any]
    ) -> None:
        """Keys that are missing or have nonsense values: accepted or ConfigError, never another exception."""
        for key in hf_config:
            without = {k: v for k, v in hf_config.items() if k != key}
            for config in (without, *({**hf_config, key: value} for value in NONSENSE)):
                try:
                    component.translate_config(config)
                except ConfigError as error:
                    assert str(error), "a refusal says what was expected"
                except Exception as error:
                    value = config.get(key, "nothing")
                    pytest.fail(f"{key} = {value!r} raised {type(error).__name__}: {error}")

    def test_configs_are_read_without_torch(self, hf_config: dict[str, Any]) -> None:
        """``deepinfer inspect`` must stay quick."""
        self.run_without_torch(f"component.translate_config({hf_config!r}).plan.table()")

    # -- the model --------------------------------------------------------------------------------

    def test_models_are_built_on_the_meta_device(
        self, component: Architecture, checkpoint: Path, hf_config: dict[str, Any], backend: Backend
    ) -> None:
        """Nothing is allocated before the checkpoint is checked, and the model fills its Protocol."""
        model = component.build(component.translate_config(hf_config), make_context(checkpoint, backend))
        assert problems(model, Model) == []
        allocated = [name for name, parameter in model.module.named_parameters() if not parameter.is_meta]
        assert allocated == [], "parameters that are not on the meta device"

    def test_the_weight_map_is_clean(self, model: Model) -> None:
        """Names once; what no checkpoint of the architecture has is not ignored."""
        counts = Counter(spec.name for spec in model.weight_specs())
        assert [name for name, count in counts.items() if count > 1] == [], "tensors that are named twice"
        assert model.unused_tensor("no.such.tensor.weight_of_nothing") is None, "unknown tensors must not pass"
        assert not set(model.tied_tensors()) & set(counts), "a tied tensor is left out, so no spec names it"

    def test_shapes(self, model: Model, hf_config: dict[str, Any], component: Architecture, backend: Backend) -> None:
        """Logits f32, hidden states and embeddings of one width, features filled."""
        config = component.translate_config(hf_config)
        prompts = self.token_ids(config)
        sequences = Sequences(model, len(prompts), max(map(len, prompts)), backend.device)
        batch = sequences.batch([(i, 0, prompt) for i, prompt in enumerate(prompts)])
        embedded = model.embed_tokens(batch.token_ids)
        values = torch.full((len(batch), 1, embedded.shape[1]), torch.nan, dtype=torch.bfloat16, device=backend.device)
        features = LayerFeatures((0,), values)
        hidden = model.forward(batch, sequences.caches, features=features)
        logits = model.logits(hidden)
        assert hidden.shape == embedded.shape == (len(batch), embedded.shape[1])
        assert logits.shape == (len(batch), config.vocab_size) and logits.dtype == torch.float32
        assert bool(torch.isfinite(logits.cpu()).all()) and bool(torch.isfinite(values.cpu().float()).all())
        assert model.logits(hidden[:0]).shape == (0, config.vocab_size), "no rows are no error"

    @pytest.fixture
    def ways(
        self, model: Model, hf_config: dict[str, Any], component: Architecture, backend: Backend
    ) -> tuple[Sequences, list[list[int]], list[torch.Tensor]]:
        """Places for sequences, sequences, and their logits, each computed alone in one chunk."""
        prompts = self.token_ids(component.translate_config(hf_config))
        longest = max(map(len, prompts)) + ROLLBACK
        alone = [Sequences(model, 1, longest, backend.device).run_all([prompt])[0] for prompt in prompts]
        return Sequences(model, len(prompts), longest, backend.device), prompts, alone

    def token_ids(self, config: Any) -> list[list[int]]:
        """Three sequences that fit, one of them longer than a page where that is possible."""
        rng, longest = random.Random(0), min(config.max_position_embeddings - ROLLBACK - 1, 140)
        return [[rng.randrange(config.vocab_size) for _ in range(n)] for n in (min(37, longest), longest, 5)]

    def agree(self, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], how: str) -> None:
        """Within :attr:`tolerance`."""
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            error = float((one - other).abs().max())
            assert error <= self.tolerance, f"logits of sequence {i} differ by {error} when computed {how}"

    @pytest.mark.parametrize("chunk", [None, 1, 7])
    def test_chunks_and_batches_change_nothing(self, ways: Any, chunk: int | None) -> None:
        """Side by side, whole, token by token, and cut in the middle of everything."""
        sequences, prompts, alone = ways
        self.agree(sequences.run_all(prompts, chunk), alone, f"side by side in chunks of {chunk or 'any length'}")

    def test_what_others_left_in_pages_and_slots_is_not_read(self, ways: Any) -> None:
        """A sequence that starts finds the state of those before it."""
        sequences, prompts, alone = ways
        sequences.run_all(list(reversed(prompts)))
        self.agree(sequences.run_all(prompts), alone, "after others in the same pages and slots")

    def test_positions_may_be_computed_again(self, ways: Any) -> None:
        """Rejected drafts: up to ``rollback`` positions come again, with other tokens, as if for the first time."""
        sequences, prompts, alone = ways
        for i, prompt in enumerate(prompts):
            cut = len(prompt) - 1
            parts = sequences.run([(i, 0, prompt[:cut])])
            wrong = [(prompt[-1] + 1 + k) % max(2, max(prompt)) for k in range(ROLLBACK)]
            sequences.run([(i, cut, wrong)])
            parts += sequences.run([(i, cut, prompt[cut:])])
            self.agree([torch.cat(parts)], [alone[i]], "after drafts that were rejected")

    def test_a_forward_does_not_wait_for_the_device(
        self, component: Architecture, checkpoint: Path, backend: Backend
    ) -> None:
        """Nothing is read back in a prefill, a mixed step and a decode: what rows need is in their metadata."""
        guard = SynchronisationGuard()
        model, config, _ = load_model(component, checkpoint, backend, ROLLBACK, guard.kernels(backend.kernels))
        one, other, third = self.token_ids(config)
        sequences = Sequences(model, 3, max(len(one), len(other)), backend.device)
        steps = [
            [(0, 0, one[:-2]), (1, 0, other[:-2])],
            [(0, len(one) - 2, one[-2:-1]), (2, 0, third[:-1]), (1, len(other) - 2, other[-2:-1])],
            [(i, len(prompt) - 1, prompt[-1:]) for i, prompt in enumerate((one, other, third))],
        ]
        for chunks in steps:
            batch = sequences.batch(chunks)
            values = model.embed_tokens(batch.token_ids)[:, None].contiguous()
            with guard:
                model.logits(model.forward(batch, sequences.caches, features=LayerFeatures((0,), values)))

    # -- in the engine ----------------------------------------------------------------------------

    def test_an_engine_generates_the_same_alone_together_and_preempted(
        self, component: Architecture, checkpoint: Path, hf_config: dict[str, Any]
    ) -> None:
        """Greedy and seeded requests, with plenty of pages and with hardly any."""
        if self.tolerance:
            pytest.skip("with a tolerance, tokens may differ where logits are close")
        prompts = self.token_ids(component.translate_config(hf_config))
        params = [SamplingParams(temperature=t, seed=3, max_tokens=6, ignore_eos=True) for t in (0.0, 0.8, 0.0)]
        plugins, (backend, _) = self.engine_plugins(component), default_backend()

        def generate(*places: int, **limits: int) -> list[list[int]]:
            with LLM(checkpoint, plugins=plugins, backend=backend, disable_log_stats=True, **limits) as llm:
                outputs = llm.generate([prompts[i] for i in places], [params[i] for i in places], use_tqdm=False)
            assert [output.error for output in outputs] == [None] * len(places)
            return [output.outputs[0].token_ids for output in outputs]

        together = generate(0, 1, 2)
        assert [generate(i)[0] for i in range(3)] == together, "alone"
        assert generate(0, 1, 2, num_pages=3, max_num_seqs=3, max_num_batched_tokens=16) == together, "with few pages"

    def engine_plugins(self, component: Architecture) -> list[object]:
        """How an engine gets the component."""
        if self.plugin is not None:
            return [self.plugin]
        if not hasattr(component, "seam"):
            pytest.skip("the component was not given by its plugin's name and has no attribute 'seam'")
        return [component]
