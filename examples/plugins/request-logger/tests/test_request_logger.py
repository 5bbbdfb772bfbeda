"""Each request leaves its lines, and what requests say stays out of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deepinfer_request_logger import Config, RequestLogger

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import PluginError
from deepinfer_core.testing import HooksSuite

MODEL = Path(__file__).parents[4] / "tests" / "data" / "v41-tiny-bf16"


class TestConformance(HooksSuite):
    plugin = "request-logger"


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]


def test_a_request_leaves_two_lines_and_a_refused_one_none(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    config = {"request-logger": {"path": str(path)}}
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 5, 1)]
    with LLM(MODEL, plugins=["request-logger"], plugin_config=config, disable_log_stats=True) as llm:
        llm.generate(["Hello", [1, 2, 3, 4], ""], params, use_tqdm=False)
        vocabulary = llm.get_tokenizer()
    started, *lines = events(path.read_text())
    assert started["event"] == "started"
    added = {line["request_id"]: line["prompt_tokens"] for line in lines if line["event"] == "added"}
    ended = {line["request_id"]: line for line in lines if line["event"] == "finished"}
    assert len(lines) == 4 and added == {"0": len(vocabulary.encode("Hello")), "1": 4}
    assert {i: line["output_tokens"] for i, line in ended.items()} == {"0": [3], "1": [5]}
    assert {i: line["finish_reasons"] for i, line in ended.items()} == {"0": ["length"], "1": ["length"]}
    for line in ended.values():
        assert 0 <= line["queue_seconds"] <= line["time_to_first_token"] <= line["total_seconds"]
    assert "Hello" not in path.read_text()


def test_without_a_path_it_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(MODEL, plugins=[RequestLogger()], disable_log_stats=True) as llm:
        llm.generate([[1, 2]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert [line["event"] for line in events(capsys.readouterr().err)] == ["started", "added", "finished"]


def test_a_failure_is_logged_with_its_request(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logger = RequestLogger(Config(path=str(path)))
    with LLM(MODEL, plugins=[logger], disable_log_stats=True) as llm:
        llm.engine.worker.runner.model = None  # type: ignore[assignment]
        llm.generate([[1, 2]], SamplingParams(max_tokens=1), use_tqdm=False)
    failed = [line for line in events(path.read_text()) if line["event"] == "failed"]
    assert {line["request_id"] for line in failed} == {None, "0"} and all(
        "NoneType" in line["error"] for line in failed
    )


def test_a_path_that_cannot_be_written_to_stops_start_up(tmp_path: Path) -> None:
    config = {"request-logger": {"path": str(tmp_path / "missing" / "log.jsonl")}}
    with pytest.raises(PluginError, match="request-logger"):
        LLM(MODEL, plugins=["request-logger"], plugin_config=config)
