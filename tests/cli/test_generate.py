"""``deepinfer generate``: where prompts come from, what is printed, and how bad input is refused."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.generate import _as_json
from deepinfer_core.cli.main import main
from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput

DATA = Path(__file__).parents[1] / "data"
MODEL = ("--model", str(DATA / "v41-tiny-bf16"))


class Input(io.TextIOWrapper):
    """Standard input with given bytes, a terminal or not."""

    def __init__(self, data: bytes, *, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def generate(*arguments: str) -> int:
    return main(["generate", *MODEL, *arguments])


def test_one_prompt_is_streamed(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("Hello") == 0
    assert capsys.readouterr().out == "olleH\n"
    assert llm.made[0].is_closed


def test_several_prompts_are_printed_in_order(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("ab", "cd") == 0
    assert capsys.readouterr().out == "[1/2] ab\nba\n\n[2/2] cd\ndc\n\n"


def test_json_prints_one_object_per_line(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--json", "ab", "é") == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = map(json.loads, lines)
    assert (first["index"], first["prompt"], first["text"], first["token_ids"]) == (0, "ab", "ba", [7, 8])
    assert (first["finish_reason"], first["error"]) == ("stop", None)
    assert [entry["token_id"] for entry in first["logprobs"][0]] == [7, 8]
    assert first["logprobs"][0][1] == {"token_id": 8, "logprob": -1.5, "rank": 2, "decoded_token": "y"}
    assert "é" in lines[1] and second["index"] == 1


def test_several_completions_are_numbered(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--n", "2", "--temperature", "1", "ab") == 0
    assert capsys.readouterr().out == "[1/1] ab\n(1) ba\n(2) ba\n\n"
    assert generate("--n", "2", "--temperature", "1", "--json", "ab", "cd") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["index"], line["sample"], line["text"]) for line in lines] == [
        (0, 0, "ba"), (0, 1, "ba"), (1, 0, "dc"), (1, 1, "dc"),
    ]  # fmt: skip


def test_a_token_that_could_not_be_drawn_has_no_logprob_in_the_json() -> None:
    """JSON has no infinities, and a forced token may have been excluded."""
    position = {7: Logprob(-math.inf, 9, "x"), 8: Logprob(-0.5, 1, "y")}
    completion = CompletionOutput(0, "x", [7], cumulative_logprob=-math.inf, logprobs=[position])
    shown = _as_json(0, RequestOutput("0", "p", [1], [completion], finished=True), completion)
    assert shown["cumulative_logprob"] is None
    assert [entry["logprob"] for entry in shown["logprobs"][0]] == [None, -0.5]
    json.dumps(shown, allow_nan=False)


def test_options_reach_the_engine_and_the_sampler(llm: Any) -> None:
    options = [
        "--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1", "--seed", "9", "--max-tokens", "5",
        "--min-tokens", "2", "--stop", "a", "--stop", "b", "--stop-token-ids", "4,5", "--ignore-eos",
        "--logprobs", "2", "--json", "--num-threads", "1", "--kv-cache-memory", "1MiB", "--plugins", "cpu,deepseek",
    ]  # fmt: skip
    assert generate("Hello", *options) == 0
    made, params = llm.made[0], llm.made[0].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.5, 3, 0.9, 0.1, 9)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos, params.logprobs) == (5, 2, True, 2)
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (4, 5))
    assert made.arguments["num_threads"] == 1
    assert made.arguments["kv_cache_memory"] == 2**20
    assert made.arguments["plugins"] == ("cpu", "deepseek")
    assert made.arguments["seed"] == 0  # --seed is the request's here


def test_options_that_edit_logits_reach_the_sampler(llm: Any) -> None:
    options = [
        "--presence-penalty", "0.5", "--frequency-penalty", "-0.25", "--repetition-penalty", "1.5",
        "--logit-bias", "17:5,42:-100", "--allowed-token-ids", "17,18", "--banned-token-ids", "18",
        "--forced-token-ids", "4,3,4", "--logprobs-mode", "processed", "--extra", '{"bigrams": {"window": [1, 2]}}',
    ]  # fmt: skip
    assert generate("Hello", *options) == 0
    params = llm.made[0].params
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.25, 1.5)
    assert params.logit_bias == {17: 5.0, 42: -100.0}
    assert (params.allowed_token_ids, params.banned_token_ids) == ((17, 18), (18,))
    assert (params.forced_token_ids, params.logprobs_mode) == ((4, 3, 4), "processed")
    assert params.extra == {"bigrams": {"window": (1, 2)}}


def test_what_is_not_given_comes_from_generation_config(llm: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((DATA / "v41-tiny-bf16/config.json").read_text())
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25, "top_p": 0.75}')
    assert main(["generate", "--model", str(tmp_path), "--top-p", "0.5", "Hi"]) == 0
    assert (llm.made[0].params.temperature, llm.made[0].params.top_p) == (0.25, 0.5)


# -- where prompts come from


def test_a_file_gives_one_prompt_per_line(llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("a b\r\n\n  \né\n".encode())
    assert generate("--json", "first", "--prompts-file", str(file)) == 0
    prompts = [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]
    assert prompts == ["first", "a b", "é"]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_is_one_prompt(
    llm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Input(b"two\nlines\n"))
    assert generate("--json", *arguments) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "two\nlines"


def test_a_terminal_is_not_waited_for(
    llm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Input(b"", is_terminal=True))
    assert generate() == 2
    assert "no prompt: give one as argument" in capsys.readouterr().err


def test_a_prompt_may_look_like_an_option_after_two_dashes(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--max-tokens", "3", "--", "-5 apples") == 0
    assert capsys.readouterr().out == "selppa 5-\n"


def test_prompts_and_options_may_alternate(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("ab", "--max-tokens", "3", "cd") == 0
    assert capsys.readouterr().out == "[1/2] ab\nba\n\n[2/2] cd\ndc\n\n"


# -- bad input


def refused(capsys: pytest.CaptureFixture[str], llm: Any, code: int) -> str:
    """The message of a command that ended with code 2, without traceback and without making an engine."""
    captured = capsys.readouterr()
    assert code == 2
    assert llm.made == []
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.startswith("deepinfer generate: error: ")
    return captured.err


def test_an_invalid_file_is_refused_with_its_name_and_offset(
    llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(b"fine\n\xc3\xa9 \xff here")
    message = refused(capsys, llm, generate("--prompts-file", str(file)))
    assert f"{file} is not UTF-8 text: byte 0xff at offset 8" in message


def test_a_missing_or_empty_file_is_refused(llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, llm, generate("--prompts-file", str(tmp_path / "none")))
    assert "No such file or directory" in message
    (tmp_path / "empty").write_text("\n \n")
    assert "holds no prompt" in refused(capsys, llm, generate("--prompts-file", str(tmp_path / "empty")))


def test_invalid_bytes_in_an_argument_or_on_standard_input_are_refused(
    llm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "byte 0xff at offset 2" in refused(capsys, llm, generate("ab\udcff"))
    monkeypatch.setattr(sys, "stdin", Input(b"\xff"))
    assert "standard input is not UTF-8 text: byte 0xff at offset 0" in refused(capsys, llm, generate())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temprature", "1"], "unrecognized arguments: --temprature 1; did you mean '--temperature'?"),
        (["--max-token", "1"], "did you mean '--max-tokens'?"),
        (["--top-p", "1.7"], "top_p must be in (0, 1], got 1.7"),
        (["--top-p", "high"], "argument --top-p: invalid float value: 'high'"),
        (["--stop-token-ids", "1,x"], "must be token ids separated by commas, got '1,x'"),
        (["--logit-bias", "1:x"], "must be like 17:5,42:-100 (token id:bias), got '1:x'"),
        (["--logit-bias", "1"], "must be like 17:5,42:-100 (token id:bias), got '1'"),
        (["--logit-bias", "1:2,1:3"], "must name each token id once, got '1:2,1:3'"),
        (["--logit-bias", "1:200"], "logit_bias must be None or a table from token ids >= 0 to biases in [-100, 100]"),
        (["--presence-penalty", "3"], "presence_penalty must be in [-2, 2], got 3.0"),
        (["--logprobs-mode", "cooked"], "logprobs_mode must be 'raw' or 'processed', got 'cooked'"),
        (["--extra", "{"], "argument --extra: must be JSON ("),
        (["--extra", "[1]"], "argument --extra: must be a JSON object, got '[1]'"),
        (["--logprobs", "1"], "--logprobs needs --json"),
        (["--kv-cache-memory", "much"], "a memory size must look like 4GiB"),
        (["--max-tokens", "2", "--min-tokens", "3"], "min_tokens must be <= max_tokens (2), got 3"),
    ],
)
def test_a_bad_option_is_refused(
    llm: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in refused(capsys, llm, generate("Hello", *arguments))


def test_a_bad_model_folder_is_refused(llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["generate", "--model", str(tmp_path), "Hello"])
    assert f"{tmp_path} has no config.json" in refused(capsys, llm, code)
    unknown = refused(capsys, llm, main(["generate", "--model", "no-such-model", "Hello"]))
    assert "unknown model 'no-such-model' (installed: " in unknown


def test_a_refused_prompt_of_a_batch_leaves_the_others_alone(llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("ab", "", "cd") == 2
    captured = capsys.readouterr()
    assert captured.out == "[1/3] ab\nba\n\n[3/3] cd\ndc\n\n"
    assert captured.err == "deepinfer generate: error: [2/3] the prompt is empty\n"
    assert generate("--json", "") == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == "the prompt is empty"
    assert generate("") == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "deepinfer generate: error: the prompt is empty\n")


def test_an_interrupt_ends_with_130(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "stream", interrupt)
    assert generate("Hello") == 130
    assert llm.made[0].is_closed


def test_an_internal_error_shows_its_traceback(
    llm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llm, "stream", lambda *_: 1 / 0)
    assert generate("Hello") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
