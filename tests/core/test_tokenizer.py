"""The tokenizer gives the golden ids, and refuses what is no text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import CheckpointError, RequestError
from deepinfer_core.tokenizer import load_tokenizer

DATA = Path(__file__).parents[1] / "data"
CHECKPOINT = DATA / "v41-tiny-bf16"
TOKENIZER = load_tokenizer(CHECKPOINT)
GOLDEN = [
    (path.parent, case)
    for path in sorted(DATA.glob("*/golden.json"))
    for case in json.loads(path.read_text())["tokenizer"]
]


@pytest.mark.parametrize(("checkpoint", "case"), GOLDEN)
def test_golden_ids(checkpoint: Path, case: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.encode(case["text"]) == case["ids"]
    assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids_no_special"]


@given(st.text())
def test_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=True) == text


@given(st.lists(st.integers(0, 511)))
def test_token_bytes_add_up_to_the_text(ids: list[int]) -> None:
    data = b"".join(TOKENIZER.token_bytes(token) for token in ids)
    assert data.decode(errors="replace") == TOKENIZER.decode(ids, skip_special_tokens=False)


def test_what_the_checkpoint_says_about_its_tokens() -> None:
    assert (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.vocab_size) == (0, 1, 512)
    assert TOKENIZER.special_tokens["<｜User｜>"] == 4 and TOKENIZER.special_ids == frozenset(range(7))
    assert TOKENIZER.token_text(4) == TOKENIZER.token_spelling(4) == "<｜User｜>"
    the = TOKENIZER.encode(" the", add_special_tokens=False)[0]
    assert (TOKENIZER.token_bytes(the), TOKENIZER.token_text(the)) == (b" the", " the")
    assert TOKENIZER.token_spelling(the) == "Ġthe"
    assert (TOKENIZER.token_bytes(600), TOKENIZER.token_text(600), TOKENIZER.token_spelling(600)) == (b"", "", "")


@pytest.mark.parametrize("text", ["\ud800", "ok \udcff tail"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate '\\ud[0-9a-f]{3}' at character"):
        TOKENIZER.encode(text)


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a"]])
def test_other_types_are_refused(text: Any) -> None:
    with pytest.raises(RequestError, match="a prompt must be text, got"):
        TOKENIZER.encode(text)


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path)
    shutil.copy(CHECKPOINT / "tokenizer_config.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(CheckpointError, match=r"cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="decoder is WordPiece"):
        load_tokenizer(tmp_path)


def test_importing_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, deepinfer_core.tokenizer, deepinfer_core.engine.detokenizer, deepinfer_core.sampling, "
        "deepinfer_core.outputs, deepinfer_core.sampling_params; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
