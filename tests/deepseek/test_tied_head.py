"""Fault 23: an output head that is tied to the embedding, or should be, or cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import CheckpointError

GOLDEN = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"


@pytest.fixture(scope="module")
def weights():
    return load_file(GOLDEN / "model.safetensors")


def checkpoint(folder: Path, weights, tie: bool | None, head: str) -> Path:
    """The golden checkpoint with ``tie_word_embeddings`` and a head that is absent, equal or different."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / name, folder / name)
    config = json.loads((GOLDEN / "config.json").read_text())
    del config["text_config"]["tie_word_embeddings"]
    if tie is not None:
        config["text_config"]["tie_word_embeddings"] = tie
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(weights)
    stored = tensors.pop("head.weight")
    if head != "absent":
        tensors["head.weight"] = tensors["embed.weight"].clone() if head == "equal" else stored
    save_file(tensors, folder / "model.safetensors")
    return folder


def outcome(folder: Path):
    """What the checkpoint generates, with log-probabilities that show the logits' bits."""
    with LLM(folder, max_num_seqs=1, num_pages=1, use_tqdm=False, disable_log_stats=True) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=5, ignore_eos=True)
        completion = llm.generate([[0, 72, 338]], params, use_tqdm=False)[0].outputs[0]
    return completion.token_ids, completion.logprobs


@pytest.fixture(scope="module")
def tied(tmp_path_factory, weights):
    """The tied logits, by the plainest means: an untied model whose head is a copy of the embedding."""
    return outcome(checkpoint(tmp_path_factory.mktemp("tied") / "c", weights, False, "equal"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory, weights):
    return outcome(checkpoint(tmp_path_factory.mktemp("untied") / "c", weights, False, "different"))


@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_told_to_tie(tmp_path, caplog, weights, tied, untied, head):
    assert outcome(checkpoint(tmp_path / "c", weights, True, head)) == tied != untied
    assert ("embed.weight is used and head.weight is ignored" in caplog.text) is (head == "different")


@pytest.mark.parametrize("head", ["equal", "different"])
def test_an_absent_flag_is_false(tmp_path, weights, tied, untied, head):
    assert outcome(checkpoint(tmp_path / "c", weights, None, head)) == (tied if head == "equal" else untied)


@pytest.mark.parametrize("tie", [False, None])
def test_no_head_and_nothing_to_tie(tmp_path, weights, tie):
    with pytest.raises(CheckpointError, match=r"1 problem\):\n  missing: head\.weight \[512, 128\] BF16"):
        LLM(checkpoint(tmp_path / "c", weights, tie, "absent"))
