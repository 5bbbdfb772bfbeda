"""Each part of a layer, fed the reference's own input: errors cannot hide behind, or add up over, other parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer_core.interfaces.model import BatchRows
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.input_metadata import make_input_batch
from deepinfer_plugin_deepseek.cache import buffer_name
from deepinfer_plugin_deepseek.step import Step

CASES = [(name, prompt) for name in ("v41-tiny-bf16", "v41-tiny-fp8fp4") for prompt in ("p17", "p100")]
SLOT = 1
CPU = torch.device("cpu")


class Traced:
    """A prompt's prefill as one chunk, with the reference's value of everything in it."""

    def __init__(self, case, prompt: str) -> None:
        self.case, self.prompt, self.model = case, prompt, case.model
        self.tokens = case.values[f"{prompt}/input_ids"]
        count = len(self.tokens)

        def column(value: int) -> np.ndarray:
            return np.full(count, value, np.int32)

        padded = torch.cat([torch.full((self.model.token_lookback,), -1), self.tokens])
        contexts = padded.unfold(0, 1 + self.model.token_lookback, 1).flip(1).numpy()
        rows = BatchRows(
            positions=np.arange(count),
            seq_of_row=column(0),
            slots=column(SLOT),
            starts=column(0),
            ends=column(count - 1),
            block_tables=np.array([[1]], np.int32),
        )
        batch = make_input_batch(rows, self.tokens.numpy(), contexts, CPU, self.model.build_metadata)
        self.caches = CacheEngine(self.model.cache_layout(), 2, 2, CPU)
        self.seen: dict[str, torch.Tensor] = {}
        self.step = Step(batch, self.caches.tensors, self.model._kernels, self.model._inv_freq, self.seen.__setitem__)

    def expected(self, name: str) -> torch.Tensor:
        return self.case.values[f"trace/{self.prompt}/prefill/{name}"]

    def gap(self, kind: str, layer: int) -> torch.Tensor:
        """How far the last chosen score is above the first rejected one, per row; inf where nothing is rejected."""
        rows = len(self.tokens)
        return self.case.values.get(f"{self.prompt}/gap/{kind}/layers.{layer}", torch.full((rows,), torch.inf))


@pytest.fixture(params=CASES, ids="-".join)
def traced(request, golden_case) -> Traced:
    name, prompt = request.param
    return Traced(golden_case(name), prompt)


def assert_close(value: torch.Tensor, expected: torch.Tensor) -> None:
    """Two bf16 ulps of the row's largest value for 99 % of elements."""
    value, expected = value.float().flatten(1), expected.float().flatten(1)
    assert value.shape == expected.shape
    ulp = torch.exp2(expected.abs().amax(-1, keepdim=True).log2().floor() - 7)
    assert float(((value - expected).abs() <= 2 * ulp).float().mean()) >= 0.99


def test_attention_with_its_index_choices(traced):
    for spec, layer in zip(traced.model.config.plan.layers, traced.model.layers, strict=True):
        name = f"layers.{spec.index}"
        out = layer.attn.run(traced.step, traced.expected(f"{name}.attn_in"))
        assert_close(out, traced.expected(f"{name}.attn_out"))
        if spec.owns_kv:
            assert_close(traced.seen[f"{name}.latent_pre_rope"], traced.expected(f"{name}.latent_pre_rope"))
        if spec.has_indexer:
            expected = traced.expected(f"{name}.index_topk")
            chosen = traced.seen[f"{name}.index_topk"][:, : expected.shape[1]]
            decided = traced.gap("index", spec.index) > 0
            assert int(decided.sum()) >= len(decided) // 2
            assert torch.equal(chosen[decided], expected[decided])


def test_candidate_blocks(traced):
    for spec, layer in zip(traced.model.config.plan.layers, traced.model.layers, strict=True):
        layer.attn.run(traced.step, traced.expected(f"layers.{spec.index}.attn_in"))
        if not spec.selects_candidates:
            continue
        blocks, size = traced.seen[f"layers.{spec.index}.candidate_blocks"], layer.attn.indexer._settings
        expected = traced.expected(f"layers.{spec.index}.candidates")
        positions = torch.arange(expected.shape[1])
        mine = (positions[None, :, None] // size.candidate_block_size == blocks[:, None, :]).any(-1)
        reachable = positions[None, :] <= torch.arange(len(blocks))[:, None]
        assert torch.equal(mine & reachable, expected & reachable)


def test_window_keys_are_kept(traced):
    spec, layer = traced.model.config.plan.layers[0], traced.model.layers[0]
    layer.attn.run(traced.step, traced.expected("layers.0.attn_in"))
    ring = traced.caches.tensors[buffer_name(spec.index, "window")]
    window, dim = traced.model.config.attention.window_size, traced.model.config.attention.head_dim
    kept = torch.arange(len(traced.tokens) - window, len(traced.tokens))
    keys = traced.model._kernels.unpack_kv(ring[SLOT, kept % ring.shape[1]].contiguous(), "fp8_e8m0_32", dim)
    assert_close(keys, traced.expected("layers.0.window_kv")[kept])


def test_experts_with_their_routing(traced):
    for index, layer in enumerate(traced.model.layers):
        out = layer.ffn.run(traced.step, traced.expected(f"layers.{index}.ffn_in"))
        assert_close(out, traced.expected(f"layers.{index}.ffn_out"))
        decided = traced.gap("gate", index) > 1e-5
        assert bool(decided.any())
        ids, weights = (traced.seen[f"layers.{index}.moe_{part}"] for part in ("indices", "weights"))
        assert torch.equal(ids[decided].long(), traced.expected(f"layers.{index}.moe_indices")[decided])
        torch.testing.assert_close(weights, traced.expected(f"layers.{index}.moe_weights"), rtol=1e-5, atol=1e-7)


def test_engram(traced):
    rows = traced.model._hasher.rows(traced.step.batch.context_ids)
    mult = traced.model.config.hyper_connection.mult
    assert rows
    for index, row_ids in rows.items():
        streams = (
            traced.model.embed.weight[traced.tokens][:, None].repeat(1, mult, 1)
            if index == 0
            else traced.expected(f"layers.{index - 1}.hc_out")
        )
        out = traced.model.layers[index].engram.run(traced.step, streams, row_ids)
        if traced.prompt == "p17":  # the longer trace leaves the looked-up rows out
            memory = traced.seen[f"layers.{index}.engram_rows"]
            assert torch.equal(memory, traced.expected(f"layers.{index}.engram_rows"))
        assert_close(out, traced.expected(f"layers.{index}.engram_out"))


def test_streams_around_a_layer(traced):
    """The hand-off of the collapsing mix, with the sublayers replaced by the reference's outputs."""
    for index in range(1, len(traced.model.layers)):
        name = f"layers.{index}"
        streams = traced.case.values.get(
            f"trace/{traced.prompt}/prefill/{name}.engram_out", traced.expected(f"layers.{index - 1}.hc_out")
        )
        pre = traced.expected(f"layers.{index - 1}.pre_mix_out")
        layer, kernels, inputs = traced.model.layers[index], traced.model._kernels, []

        def replaced(part, name=name, inputs=inputs):
            def sublayer(x):
                # Only the shorter trace has these.
                inputs.append((x, traced.case.values.get(f"trace/{traced.prompt}/prefill/{name}.{part}_pre_norm")))
                return traced.expected(f"{name}.{part}_out")

            return sublayer

        streams, pre = layer._attn_hc.around(replaced("attn"), kernels, streams, pre)
        streams, pre = layer._ffn_hc.around(replaced("ffn"), kernels, streams, pre)
        for given, expected in inputs:
            if expected is not None:
                assert_close(given, expected)
        assert_close(streams, traced.expected(f"{name}.hc_out"))
        # A stream value on the other side of a tie moves its row's coefficients a little.
        close = torch.isclose(pre, traced.expected(f"{name}.pre_mix_out"), rtol=1e-5, atol=1e-6)
        assert float(close.float().mean()) >= 0.99


def test_engram_token_map_and_hash_layout(golden_case):
    case = golden_case("v41-tiny-bf16")
    hasher = case.model._hasher
    assert torch.equal(hasher._map, case.values["engram/token_map"])
    for part in ("multipliers", "primes", "offsets"):
        assert torch.equal(getattr(hasher, f"_{part}"), case.values[f"engram/{part}"])
