"""The command on a real checkpoint."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.cli.main import main

MODEL = str(Path(__file__).parents[1] / "data" / "v41-tiny-bf16")
OPTIONS = ["--model", MODEL, "--num-pages", "64", "--max-num-seqs", "4", "--temperature", "0"]


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[str, list[int]]]:
    """Text and token ids of a few prompts, from Python."""
    prompts = ["Hello", "a b"]
    with LLM(MODEL, num_pages=64, max_num_seqs=4) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0), use_tqdm=False)
    return {prompt: (o.outputs[0].text, o.outputs[0].token_ids) for prompt, o in zip(prompts, outputs, strict=True)}


def test_the_command_prints_what_python_returns(expected: dict[str, tuple[str, list[int]]]) -> None:
    command = [sys.executable, "-m", "deepinfer_core.cli.main", "generate", *OPTIONS, "Hello"]
    result = subprocess.run(command, capture_output=True, check=True)
    assert result.stdout.decode() == expected["Hello"][0] + "\n"
    assert result.stderr == b""


def test_json_and_a_refused_prompt(
    expected: dict[str, tuple[str, list[int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *OPTIONS, "--json", "--logprobs", "1", "--prompt-logprobs", "0", "Hello", "", "a b"]) == 2
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.split("\n") if line]
    assert {row["prompt"]: (row["text"], row["token_ids"]) for row in rows if row["error"] is None} == expected
    assert [row["finish_reason"] for row in rows] == ["length", "error", "length"]
    assert len(rows[0]["logprobs"]) == len(rows[0]["token_ids"])
    first, *others = rows[0]["prompt_logprobs"]
    assert first is None
    assert [entry[0]["token_id"] for entry in others] == rows[0]["prompt_token_ids"][1:]
    assert "error: [2/3] the prompt is empty" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop-token-ids", "999999"], "stop_token_ids must be below the vocabulary's size 512"),
        (["--plugins", "deepsek"], "unknown plugin 'deepsek'; did you mean 'deepseek'"),
        (["--backend", "gpu9"], "unknown backend 'gpu9'"),
        (["--num-pages", "0"], "num_pages must be"),
    ],
)
def test_what_the_engine_refuses_ends_with_2(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["generate", *OPTIONS, *options, "Hello"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_damaged_checkpoint_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path(MODEL).iterdir():
        if not file.name.startswith("golden"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["generate", "--model", str(tmp_path), "Hello"]) == 2
    error = capsys.readouterr().err
    assert "model.safetensors" in error
    assert "Traceback" not in error


def test_an_interrupt_while_generating_ends_with_130() -> None:
    long = ["--max-tokens", "3000", "--ignore-eos"]
    command = [sys.executable, "-m", "deepinfer_core.cli.main", "generate", *OPTIONS, *long, "Hello"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        os.read(process.stdout.fileno(), 1)  # it streams: this does not wait for the end
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in error
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    ("redirection", "message"),
    [(">&-", "standard output is closed"), (">/dev/full", "cannot write the output: No space left on device")],
)
def test_output_that_cannot_be_written_ends_with_2(options: list[str], redirection: str, message: str) -> None:
    command = shlex.join([sys.executable, "-m", "deepinfer_core.cli.main", "generate", *OPTIONS, *options, "Hello"])
    result = subprocess.run(["sh", "-c", f"{command} {redirection}"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"deepinfer generate: error: {message}")
    assert result.stderr.count("\n") == 1
