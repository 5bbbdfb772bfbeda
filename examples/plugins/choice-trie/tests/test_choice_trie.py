"""The trie's masks against the definition, and the engine in use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from deepinfer_choice_trie.engine import ChoiceTrie
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.interfaces.grammar import Vocabulary
from deepinfer_core.interfaces.structured_output import StructuredOutput

MODEL = Path(__file__).parents[4] / "tests" / "data" / "v41-tiny-bf16"
TOKENS = (b"", *(bytes([byte]) for byte in "ab東".encode()), b"ab", b"ba", b"aba", "東".encode(), b"b", b"")
VOCABULARY = Vocabulary((*TOKENS, *[b"x"] * 30), {}, (0,))


@given(st.lists(st.text("ab東", min_size=1, max_size=5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_token_may_come_where_some_choice_goes_on_with_it(choices: list[str], random: object) -> None:
    texts = [choice.encode() for choice in choices]
    matcher, done = ChoiceTrie().compile(StructuredOutput(choice=choices), VOCABULARY).matcher(), [b""]
    while True:
        row = np.zeros(VOCABULARY.mask_words, np.int32)
        matcher.fill_mask(row)
        found = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
        pieces = VOCABULARY.token_bytes
        leading = {t for t, piece in enumerate(pieces) if piece and any(x.startswith(done[-1] + piece) for x in texts)}
        assert found == leading and matcher.is_complete == (done[-1] in texts)
        assert not any(matcher.accept(token) for token in range(len(pieces)) if token not in leading)
        if not leading:
            break
        token = random.choice(sorted(leading))  # type: ignore[attr-defined]
        assert matcher.accept(token)
        matcher.rollback(1)
        assert matcher.accept(token)
        done.append(done[-1] + pieces[token])
    matcher.rollback(len(done) - 1)
    assert matcher.is_complete is False


def test_it_is_the_engine_where_it_is_named() -> None:
    with LLM(MODEL, plugins=["choice-trie"], disable_log_stats=True) as llm:
        requests = [
            SamplingParams(structured={"choice": ["red", "green", "greenish", "東京"]}, seed=seed, max_tokens=20)
            for seed in range(4)
        ]
        outputs = llm.generate(["Hello"] * 4, requests, use_tqdm=False)
        assert all(output.outputs[0].text in ("red", "green", "greenish", "東京") for output in outputs)
        (refused,) = llm.generate("a", SamplingParams(structured={"regex": "a"}), use_tqdm=False)
        assert refused.error == "grammar engine 'choice-trie' does not support regex (it does: choice)"


def test_too_much_text_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes in all, got 1100000"):
        ChoiceTrie().compile(StructuredOutput(choice=["a" * 1_100_000]), VOCABULARY)
