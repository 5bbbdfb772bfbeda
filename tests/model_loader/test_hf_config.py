"""config.json and generation_config.json: clear refusals, and end tokens that survive merging (fault 25)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.model_loader import load_hf_config

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def folder(tmp_path):
    def make(config, generation=None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Some"], **config}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return make


def test_golden_folder():
    hf = load_hf_config(DATA / "v41-tiny-bf16", ["DeepseekV41ForCausalLM"])
    assert hf.architecture == "DeepseekV41ForCausalLM"
    assert hf.config["text_config"]["hidden_size"] == 128
    assert (hf.generation, hf.eos_token_ids, hf.sampling_defaults) == ({}, (1,), {})


def test_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no folder .*nowhere.*must be the path"):
        load_hf_config(tmp_path / "nowhere")


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_hf_config(tmp_path / "file")


def test_folder_without_config(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"architectures": [', "not valid JSON: .* at line 1, column 20"),
        (b'{"a": "\xff"}', "not UTF-8 text: byte 7 is 0xff"),
        (b"[1]", "must hold a JSON object, got list"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "'vocab_size' twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b"{}", "architectures with exactly one name, got None"),
        (b'{"architectures": []}', r"exactly one name, got \[\]"),
        (b'{"architectures": ["A", "B"]}', "exactly one name"),
    ],
)
def test_bad_config(tmp_path, content, words):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_hf_config(tmp_path)


def test_unknown_architecture_names_the_known_ones(folder):
    path = folder({"architectures": ["DeepseekV40ForCausalLM"]})
    with pytest.raises(ConfigError) as caught:
        load_hf_config(path, ["DeepseekV41ForCausalLM", "Other"])
    assert "did you mean 'DeepseekV41ForCausalLM'?" in str(caught.value)
    assert "known: DeepseekV41ForCausalLM, Other" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 1}, None, (1,)),
        ({"eos_token_id": [1, 7]}, {"temperature": 0.6}, (1, 7)),
        ({"eos_token_id": 1}, {"eos_token_id": [1, 7], "temperature": 0.6}, (1, 7)),
        ({"eos_token_id": [7]}, {"eos_token_id": 1}, (7, 1)),
        ({"text_config": {"eos_token_id": 5}}, {"eos_token_id": None}, (5,)),
        ({}, {"eos_token_id": 3}, (3,)),
        ({}, None, ()),
    ],
)
def test_end_tokens_of_both_files_are_one_set(folder, config, generation, expected):
    assert load_hf_config(folder(config, generation)).eos_token_ids == expected


@pytest.mark.parametrize("value", [-1, True, "1", [1, "7"], 1.0])
def test_bad_end_token(folder, value):
    with pytest.raises(ConfigError, match="eos_token_id must be"):
        load_hf_config(folder({}, {"eos_token_id": value}))


def test_sampling_defaults_are_per_key(folder):
    hf = load_hf_config(folder({}, {"temperature": 0.6, "top_k": None, "max_new_tokens": 9, "repetition_penalty": 1.1}))
    assert hf.sampling_defaults == {"temperature": 0.6, "max_tokens": 9, "repetition_penalty": 1.1}


def test_do_sample_false_means_greedy(folder):
    assert load_hf_config(folder({}, {"do_sample": False, "top_p": 0.9})).sampling_defaults == {
        "temperature": 0.0,
        "top_p": 0.9,
    }
