"""Rotary frequencies and magnitudes are transformers' own, for every kind of scaling."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_plugin_llama.config import LlamaConfig
from deepinfer_plugin_llama.rotary import rotary_frequencies

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 64, "intermediate_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip

factors = st.floats(1, 64)
originals = st.integers(16, 100_000)
thetas = st.floats(100, 5e6)


def compare(head_dim: int, theta: float, scaling: dict[str, Any]) -> None:
    from transformers import LlamaConfig as Published
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    keys = {**BASE, "head_dim": head_dim, "rope_theta": theta, "rope_scaling": scaling}
    ours = LlamaConfig.from_hf(keys)
    theirs = LlamaRotaryEmbedding(Published(**{**keys, "rope_scaling": dict(scaling)}))
    torch.testing.assert_close(rotary_frequencies(ours.rope, head_dim), theirs.inv_freq, rtol=2e-6, atol=0)
    torch.testing.assert_close(ours.rope.magnitude, theirs.attention_scaling, rtol=1e-12, atol=0)


dims = st.sampled_from([8, 24, 64, 128])


@given(dim=dims, theta=thetas)
def test_default(dim: int, theta: float) -> None:
    compare(dim, theta, {"rope_type": "default"})


@given(dim=dims, theta=thetas, factor=factors)
def test_linear(dim: int, theta: float, factor: float) -> None:
    compare(dim, theta, {"rope_type": "linear", "factor": factor})


@given(dim=dims, theta=thetas, factor=factors, original=originals, low=st.floats(0.5, 2), width=st.floats(0.5, 8))
def test_llama3(dim: int, theta: float, factor: float, original: int, low: float, width: float) -> None:
    numbers = {"factor": factor, "low_freq_factor": low, "high_freq_factor": low + width}
    compare(dim, theta, {"rope_type": "llama3", "original_max_position_embeddings": original, **numbers})


magnitudes = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"attention_factor": st.floats(0.5, 2)}),
    st.fixed_dictionaries({"mscale": st.floats(0.1, 2), "mscale_all_dim": st.floats(0.1, 2)}),
    st.fixed_dictionaries({"mscale": st.floats(0.1, 2)}),
)


@given(dim=dims, theta=thetas, factor=factors, original=originals, magnitude=magnitudes)
def test_yarn(dim: int, theta: float, factor: float, original: int, magnitude: dict[str, float]) -> None:
    numbers = {"factor": factor, "original_max_position_embeddings": original, **magnitude}
    compare(dim, theta, {"rope_type": "yarn", **numbers})
