"""Perplexity by the engine equals that of the model's own logits, in double precision."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from deepinfer_core import LLM
from deepinfer_core.errors import RequestError

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "data" / "v41-tiny-bf16"
TEXT = "Salt, 塩, sel. The lamp is lit; but they know that the sea is not far from here, and go on.\n" * 3


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eval_ppl", ROOT / "examples" / "eval_ppl.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recomputed(golden, model, tokens, bos, size):
    """Nats per token from logits, window by window."""
    values = []
    for start in range(0, len(tokens), size):
        window = tokens[start : start + size]
        sequences = golden.Sequences(model)
        sequences.add("x", [bos, *window], max_tokens=1)
        _, rows = sequences.step()
        (logits,) = rows.values()
        log_softmax = torch.log_softmax(logits.double(), -1)
        values += [-float(log_softmax[place, token]) for place, token in enumerate(window)]
    return math.fsum(values) / len(values)


def test_it_equals_a_recomputation_from_logits(script, golden, golden_case):
    model = golden_case("v41-tiny-bf16").model
    with LLM(MODEL, disable_log_stats=True, num_pages=64) as llm:
        tokenizer = llm.get_tokenizer()
        tokens = tokenizer.encode(TEXT, add_special_tokens=False)
        found = script.evaluate(llm, TEXT, window=50)
        whole = script.evaluate(llm, TEXT)
        part = script.evaluate(llm, TEXT, window=50, limit=2)
        with pytest.raises(RequestError, match="window must be from 1 to 4094"):
            script.evaluate(llm, TEXT, window=4095)
        with pytest.raises(RequestError, match="no token to judge"):
            script.evaluate(llm, "")
    expected = recomputed(golden, model, tokens, tokenizer.bos_token_id, 50)
    assert (found["tokens"], found["windows"]) == (len(tokens), -(-len(tokens) // 50))
    assert found["nats_per_token"] == pytest.approx(expected, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(expected * len(tokens) / math.log(2) / len(TEXT.encode()), rel=1e-6)
    assert whole["windows"] == 1
    assert whole["nats_per_token"] == pytest.approx(
        recomputed(golden, model, tokens, tokenizer.bos_token_id, len(tokens)), rel=1e-6
    )
    assert part["tokens"] == 100


def test_without_a_begin_token_every_token_but_the_first_counts_once(script):
    assert script.windows([1, 2, 3, 4, 5], 2, None) == [[1, 2, 3], [3, 4, 5]]
    assert script.windows([1, 2, 3, 4], 2, None) == [[1, 2, 3], [3, 4]]
    assert script.windows([1, 2, 3], 2, 0) == [[0, 1, 2], [0, 3]]
    assert script.windows([1], 2, None) == script.windows([], 2, 0) == []


def test_the_command(script, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("The lamp is lit.", encoding="utf-8")
    assert script.main([str(MODEL), str(text), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["windows"] == 1
    assert script.main([str(MODEL), str(tmp_path / "missing.txt")]) == 2
    text.write_bytes(b"\xff")
    assert script.main([str(MODEL), str(text)]) == 2
    assert "can't decode byte 0xff" in capsys.readouterr().err
