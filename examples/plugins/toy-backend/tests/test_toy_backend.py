"""The device keeps to itself, and a model on it gives the CPU's outputs bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_toy_backend.device import ToyTensor, device

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.testing import BackendSuite

DATA = Path(__file__).parents[4] / "tests" / "data"
PROMPTS = [[0, 72, 338, 11, 11, 90] * 30, [0, 5], "The lamp is lit."]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.8, seed=3, max_tokens=8, logprobs=1, repetition_penalty=1.2),
    SamplingParams(n=2, temperature=1, seed=4, max_tokens=8, banned_token_ids=[3]),
]


class TestConformance(BackendSuite):
    plugin = "toy-backend"
    component_name = "toy"


def outputs(model: Path, **options: Any) -> list[Any]:
    """All there is to compare of three requests, one of them in several chunks, with preemptions."""
    with LLM(model, num_pages=3, max_chunk_tokens=50, disable_log_stats=True, **options) as llm:
        results = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [result.error for result in results] == [None] * 3
        return [(result.prompt_logprobs, [(c.logprobs, c.token_ids) for c in result.outputs]) for result in results]


@pytest.mark.parametrize("model", ["v41-tiny-bf16", "v41-tiny-fp8fp4"])
def test_outputs_equal_the_cpus(model: str) -> None:
    assert outputs(DATA / model, plugins=["toy-backend"]) == outputs(DATA / model, backend="cpu")


def test_the_model_and_its_caches_are_on_the_device_and_its_ops_ran_there() -> None:
    with LLM(DATA / "v41-tiny-bf16", backend="toy", num_pages=4, disable_log_stats=True) as llm:
        worker = llm.engine.worker
        tensors = [*worker.runner.model.module.parameters(), *worker.runner.caches.tensors.values()]
        assert tensors and {tensor.device.type for tensor in tensors} == {"toy"}
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert {"linear", "sparse_attention", "moe_experts"} <= set(worker.backend.kernels.calls)


def test_tensors_move_by_copies_only() -> None:
    values = torch.arange(12.0).view(3, 4)
    there = values.to(device())
    assert isinstance(there, ToyTensor) and there.device.type == "toy"
    assert type(there.cpu()) is torch.Tensor and there.cpu().equal(values)
    assert there.cpu().data_ptr() != there.cpu().data_ptr() and there.tolist() == values.tolist()
    for forbidden in (lambda: there + values, lambda: values + there, lambda: there[torch.tensor([0])]):
        with pytest.raises(RuntimeError, match="one device, got toy and cpu"):
            forbidden()
    with pytest.raises(RuntimeError):
        there.numpy()
    assert "on toy" in repr(there)


def test_views_share_memory_and_changes_in_place_stay_in_place() -> None:
    there = torch.zeros(3, 4, device=device())
    view = there[1:, ::2]
    view += 1
    view[0, 1] = 7
    there[torch.tensor([0], device=device())] = 2.0
    assert there.tolist() == [[2, 2, 2, 2], [1, 0, 7, 0], [1, 0, 1, 0]]
    host = torch.zeros(2, 2)
    assert host.copy_(view) is host and host.tolist() == [[1, 7], [1, 1]]
    with torch.inference_mode():
        there.fill_(1)
        assert torch.where(there > 0, there, 0).sum().item() == 12
        assert torch.arange(3, device="toy").tolist() == [0, 1, 2] and there.new_zeros(2).device.type == "toy"
