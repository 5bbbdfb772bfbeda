"""The engine and the command line over a model that has pages and no slots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.main import main
from deepinfer_core.interfaces.model import LayerFeatures, Model
from deepinfer_core.worker.cache_engine import CacheEngine

LONG = SamplingParams(temperature=0.9, seed=5, max_tokens=60, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def folder(llama_checkpoints: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = llama_checkpoints.Checkpoints(tmp_path_factory.mktemp("llama")).make()
    return path


def prompts(count: int, length: int) -> list[list[int]]:
    drawn = torch.randint(2, 512, (count, length), generator=torch.Generator().manual_seed(2))
    return [row[: length - 3 * i].tolist() for i, row in enumerate(drawn)]


def answers(folder: Path, asked: list[list[int]], **settings: Any) -> tuple[list[Any], int]:
    """``(token ids, log-probabilities)`` of each, and how often one was preempted."""
    with LLM(folder, disable_log_stats=True, num_threads=1, **settings) as llm:
        outputs = llm.generate(asked, LONG, use_tqdm=False)
    assert not any(output.error for output in outputs)
    preemptions = sum(output.metrics.num_preemptions for output in outputs)
    return [(list(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs], preemptions


def test_batches_chunks_and_preemption_change_nothing(folder: Path) -> None:
    asked = prompts(4, 120)
    alone = [answers(folder, [prompt])[0][0] for prompt in asked]
    assert len({tuple(ids) for ids, _ in alone}) == 4
    assert answers(folder, asked)[0] == alone
    assert answers(folder, asked, max_chunk_tokens=17, max_num_batched_tokens=50)[0] == alone
    squeezed, preemptions = answers(folder, asked, num_pages=3)
    assert preemptions > 0 and squeezed == alone


def test_text_in_text_out(folder: Path) -> None:
    with LLM(folder, disable_log_stats=True, num_threads=1) as llm:
        (output,) = llm.generate("Hello", SamplingParams(max_tokens=8, seed=1, ignore_eos=True), use_tqdm=False)
        assert llm.get_tokenizer().decode(list(output.outputs[0].token_ids)) == output.outputs[0].text
    assert output.outputs[0].finish_reason == "length"


def test_the_cache_holds_pages_and_no_slots(llama_checkpoints: Any, folder: Path) -> None:
    model = llama_checkpoints.load(folder)
    assert isinstance(model, Model)
    layout = model.cache_layout()
    assert layout.slots == () and layout.bytes_per_slot == 0
    # Keys and values of 3 layers, 2 heads of 24, bf16.
    assert layout.bytes_per_page == 128 * 2 * 3 * 2 * 24 * 2
    caches = CacheEngine(layout, 3, 2, torch.device("cpu"))
    assert caches.copy_slot(1) == {} and caches.nbytes == 3 * layout.bytes_per_page


def test_features_are_the_layers_inputs(golden: Any, llama_checkpoints: Any, folder: Path) -> None:
    model = llama_checkpoints.load(folder)
    seen = LayerFeatures((0, 2), torch.full((5, 2, 64), torch.nan, dtype=torch.bfloat16))
    forward = model.forward
    model.forward = lambda batch, caches, tap: forward(batch, caches, tap, seen)
    runner = golden.Sequences(model)
    runner.add("a", [3, 9, 400, 3, 9])
    runner.step()
    embedded = model.embed_tokens(torch.tensor([3, 9, 400, 3, 9]))
    assert torch.equal(seen.at(0), embedded)
    grown = embedded
    for layer in (0, 1):
        grown = grown + runner.seen[f"layers.{layer}.attn_out"]
        grown = grown + runner.seen[f"layers.{layer}.mlp_out"]
    assert torch.equal(seen.at(2), grown)


def test_inspect_prints_config_and_plan(
    llama_checkpoints: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = llama_checkpoints.Checkpoints(tmp_path).make("qwen2", use_sliding_window=True, sliding_window=20)
    assert main(["inspect", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["architecture"] == "Qwen2ForCausalLM" and shown["num_kv_heads"] == 2
    assert shown["rope.theta"] == 10000.0
    assert [row["window"] for row in shown["plan"]] == ["-", "20", "20"]
