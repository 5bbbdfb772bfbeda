"""The checkpoint that ``deepinfer-model-tiny`` brings: complete, as small as promised, and as good as its card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core import LLM, SamplingParams

FOLDER = Path(__file__).parents[2] / "plugins/tiny/deepinfer_model_tiny/checkpoint"
FIGURES = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def again() -> dict:
    from train_tiny.evaluate import figures

    return figures(FOLDER)


def test_the_default_model_is_found_by_name_and_speaks_english():
    with LLM() as llm:
        output = llm.generate("A hacker is", SamplingParams(temperature=0, max_tokens=12))[0]
    assert output.outputs[0].text.startswith(" a person who enjoys exploring the details")


def test_it_is_small_and_uses_every_part_of_the_architecture():
    assert sum(file.stat().st_size for file in FOLDER.glob("*.safetensors")) <= 16e6
    config = json.loads((FOLDER / "config.json").read_text())["text_config"]
    assert set(config["compress_ratios"]) == {0, 1, 2}
    assert config["candidate_source_layer_id"] in config["kv_source_layer_ids"]
    assert len(config["engram_layer_ids"]) == 2 and config["num_nextn_predict_layers"] == 3
    dtypes = set()
    for file in FOLDER.glob("*.safetensors"):
        header = file.read_bytes()
        table = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
        dtypes |= {entry["dtype"] for name, entry in table.items() if name != "__metadata__"}
    assert {"I8", "F8_E4M3", "F8_E8M0", "BF16", "F32"} == dtypes


def test_the_figures_come_out_again(again):
    assert again["perplexity"] == pytest.approx(FIGURES["perplexity"], rel=1e-3)
    assert again["tokens_per_verification"] == pytest.approx(FIGURES["tokens_per_verification"], rel=0.02)
    assert again["continuations"] == FIGURES["continuations"]


def test_the_figures_are_what_the_model_is_for():
    assert FIGURES["perplexity"]["train_sample.txt 256"] < 15
    assert min(FIGURES["tokens_per_verification"].values()) > 1.5


def test_the_card_shows_the_figures_and_continuations():
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for value in FIGURES["perplexity"].values():
        assert f"{value:.3f} by the engine" in card
    for name, value in FIGURES["tokens_per_verification"].items():
        assert f"{value:.2f} on the {name}" in card
    for prompt, text in FIGURES["continuations"].items():
        assert f"- **{prompt}**{text}".replace("\n", " ") in card
    assert (FOLDER / "curves.png").stat().st_size > 10_000
    assert (FOLDER / "trunk.jsonl").read_text() and (FOLDER / "drafter.jsonl").read_text()
