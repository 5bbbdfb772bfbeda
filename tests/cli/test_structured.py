"""``--json-schema``, ``--regex``, ``--choice``, ``--grammar`` on the command line, through to the output."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.main import main
from deepinfer_core.cli.sampling import add_sampling_arguments

MODEL = ("--model", str(Path(__file__).parents[1] / "data" / "v41-tiny-bf16"))


def structured(*arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    add_sampling_arguments(parser)
    return getattr(parser.parse_args(arguments), "sampling_structured", None)


def test_options_become_one_table(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"type": "null"}')
    assert structured() is None
    assert structured("--choice", "a", "--choice", "b c") == {"choice": ["a", "b c"]}
    assert structured("--regex", "a+", "--max-whitespace", "0") == {"regex": "a+", "max_whitespace": 0}
    assert structured("--json-schema", str(file)) == {"json_schema": '{"type": "null"}'}
    assert structured("--grammar", str(file)) == {"ebnf": '{"type": "null"}'}
    assert structured("--structural-tag", str(file)) == {"structural_tag": '{"type": "null"}'}
    assert structured("--json-object") == {"json_object": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json-schema", "/nowhere/x"), "must be a readable UTF-8 file, got '/nowhere/x'"),
        (("--regex", "a", "--choice", "b"), "exactly one of .*, got regex and choice"),
        (("--max-whitespace", "3"), "exactly one of .*, got none"),
        (("--json-schema", __file__), "json_schema is not valid JSON"),
    ],
)
def test_bad_options_end_with_2_before_a_model_is_loaded(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["generate", *MODEL, *arguments, "Hello"])
    except SystemExit as end:  # argparse's own
        code = int(end.code or 0)
    assert code == 2 and re.search(message, capsys.readouterr().err)


def test_generate_follows_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["ok", "n"],
    }
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    options = ("--json-schema", str(file), "--max-whitespace", "0", "--max-tokens", "60", "--seed", "1")
    assert main(["generate", *MODEL, *options, "--json", "Hello", "you"]) == 0
    for line in capsys.readouterr().out.splitlines():
        result = json.loads(line)
        assert result["finish_reason"] == "stop" and re.fullmatch(r'\{"ok":(true|false),"n":[12]\}', result["text"])
    assert main(["generate", *MODEL, "--choice", "yes", "--choice", "no", "--max-tokens", "9", "Hello"]) == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")


def test_a_refused_grammar_is_reported_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *MODEL, "--regex", "(?=a)", "--json", "Hello"]) == 2
    assert "lookahead and lookbehind in '(?=a)' are not supported" in capsys.readouterr().err
