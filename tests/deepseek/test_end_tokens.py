"""Fault 25: a list of end tokens survives every way of overriding sampling defaults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
PROMPT = [0, 72, 338, 345, 423]
LENGTH = 6


def run(folder: Path, params: SamplingParams | None):
    """The completion of PROMPT; its own limit applies where ``params`` are the checkpoint's."""
    with LLM(folder, max_num_seqs=1, num_pages=1, use_tqdm=False, disable_log_stats=True) as llm:
        return llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    """What greedy decoding gives when nothing stops it."""
    return list(run(GOLDEN, SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)).token_ids)


@pytest.fixture
def folder(tmp_path, tokens):
    """The golden checkpoint whose generation_config.json adds a greedy token to the end tokens."""

    def make(**generation) -> Path:
        for path in GOLDEN.iterdir():
            if not path.name.startswith("golden"):
                shutil.copy(path, tmp_path / path.name)
        generation |= {"eos_token_id": [1, end_token(tokens)], "max_new_tokens": LENGTH}
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return make


def end_token(tokens: list[int]) -> int:
    """A token that greedy decoding reaches, but not first."""
    return next(token for token in tokens if token != tokens[0])


@pytest.mark.parametrize(
    ("generation", "params"),
    [
        ({"temperature": 0.6}, SamplingParams(temperature=0, top_p=1.0, max_tokens=LENGTH)),
        ({"temperature": 0.6}, SamplingParams(temperature=0)),
        ({"do_sample": False}, None),
    ],
    ids=["explicit", "temperature only", "none"],
)
def test_it_stops(folder, tokens, generation, params):
    completion = run(folder(**generation), params)
    at = tokens.index(end_token(tokens))
    assert list(completion.token_ids) == tokens[: at + 1]
    assert completion.finish_reason == "stop"


def test_ignoring_the_end_means_all_end_tokens(folder, tokens):
    completion = run(folder(), SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True))
    assert (list(completion.token_ids), completion.finish_reason) == (tokens, "length")


def test_not_before_min_tokens(folder, tokens):
    at = tokens.index(end_token(tokens))
    completion = run(folder(), SamplingParams(temperature=0, max_tokens=LENGTH, min_tokens=at + 1))
    assert len(completion.token_ids) > at + 1 and end_token(tokens) not in completion.token_ids[: at + 1]


def test_an_end_token_beyond_the_vocabulary_is_refused(folder):
    """It could never be drawn, and banning it before min_tokens would fail the step of everyone."""
    path = folder()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 600]}))
    with pytest.raises(ConfigError, match=r"eos_token_id must be below the vocabulary's size 512, got \[1, 600\]"):
        LLM(path, max_num_seqs=1, num_pages=1, use_tqdm=False, disable_log_stats=True)
