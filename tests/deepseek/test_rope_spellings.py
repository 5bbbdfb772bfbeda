"""Fault 27: every spelling of the YaRN settings gives the same logits past the original length."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PROMPT = [0, *(7 + 37 * i % 400 for i in range(59))]  # 60 tokens; the original length is 32
YARN = {"factor": 4, "beta_fast": 32, "beta_slow": 1}
LENGTH = {"original_max_position_embeddings": 32}

SPELLINGS = {
    "type": {"rope_scaling": {"type": "yarn", **YARN, **LENGTH}},
    "rope_parameters": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **YARN, **LENGTH}},
    "two tables": {
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0},
            "compress": {"rope_type": "yarn", "rope_theta": 160000.0, **YARN, **LENGTH},
        }
    },
    "original length omitted": {"rope_scaling": {"rope_type": "yarn", **YARN}},
}


def outcome(folder: Path, scaling: dict):
    """Tokens and log-probabilities after PROMPT, with the golden scaling replaced."""
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / name, folder / name)
    config = json.loads((GOLDEN / "config.json").read_text())
    del config["text_config"]["rope_scaling"]
    config["text_config"] |= {"max_position_embeddings": 128, **scaling}
    (folder / "config.json").write_text(json.dumps(config))
    with LLM(folder, max_num_seqs=1, num_pages=1, use_tqdm=False, disable_log_stats=True) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=5, ignore_eos=True)
        completion = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    return completion.token_ids, completion.logprobs


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return outcome(tmp_path_factory.mktemp("rope") / "c", {"rope_scaling": {"rope_type": "yarn", **YARN, **LENGTH}})


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_same_logits(tmp_path, spelling, expected):
    assert outcome(tmp_path / "c", spelling) == expected


def test_scaling_makes_a_difference(tmp_path, expected):
    assert outcome(tmp_path / "c", {})[1] != expected[1]


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"rope_scaling must have rope_type .* got 'foo'"):
        outcome(tmp_path / "c", {"rope_scaling": {"type": "foo", **YARN, **LENGTH}})
