"""Conformance of ``grammar`` components."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pytest

from deepinfer_core.interfaces.grammar import Grammar, GrammarEngine, Matcher, Vocabulary
from deepinfer_core.interfaces.structured_output import KINDS, StructuredOutput
from deepinfer_core.testing.protocols import problems
from deepinfer_core.testing.suite import Suite

CHOICES = ("red", "green", "greenish", "東京", "é", 'say "no"\\')
PATTERN = r"[a-c]{2,4}-\d\d"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}, "東": {"enum": ["a", "\n"]}},
    "required": ["n", "ok", "東"],
    "additionalProperties": False,
}
#: By kind, what is compiled. Each begins with a constraint: not every token may come first.
SPECS: Final[Mapping[str, Mapping[str, Any]]] = {
    "choice": {"choice": CHOICES},
    "regex": {"regex": PATTERN},
    "json_schema": {"json_schema": SCHEMA},
    "json_object": {"json_object": True},
    "ebnf": {"ebnf": 'root ::= "x" ("y" | "z") "."'},
}
#: By kind, what must be refused.
BAD: Final[Mapping[str, Mapping[str, Any]]] = {
    "regex": {"regex": "(a"},
    "json_schema": {"json_schema": {"$ref": "#/$defs/nowhere"}},
    "ebnf": {"ebnf": 'start ::= "no rule is called root"'},
}
_WORDS = (b"re", b"een", b"ish", b"ab", b"-4", b'{"', b'n":', b'"ok":', b" tr", b"ue", "東".encode(), b"xy", b"z.")


def make_vocabulary() -> Vocabulary:
    """All bytes, some longer tokens, special ones; its size is no multiple of 32."""
    tokens = (*(bytes([byte]) for byte in range(256)), *_WORDS, b"", b"", b"")
    size = len(tokens)
    return Vocabulary(tokens, {"<special>": size - 3}, (size - 2, size - 1))


def bits(matcher: Matcher, vocabulary: Vocabulary) -> list[bool]:
    """Which tokens the matcher allows, end-of-sequence ids left out: those are the core's."""
    row = np.zeros(vocabulary.mask_words, np.int32)
    matcher.fill_mask(row)
    allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(vocabulary)].astype(bool)
    allowed[list(vocabulary.eos_token_ids)] = False
    found: list[bool] = allowed.tolist()
    return found


def check_text(kind: str, text: str) -> None:
    """Fail unless a complete output is one of the grammar."""
    if kind == "choice":
        assert text in CHOICES
    elif kind == "regex":
        assert re.fullmatch(PATTERN, text), text
    elif kind == "ebnf":
        assert text in ("xy.", "xz.")
    else:
        value = json.loads(text, strict=True)
        assert isinstance(value, dict), text
        if kind == "json_schema":
            assert list(value) == ["n", "ok", "東"] and type(value["n"]) is int and type(value["ok"]) is bool, text
            assert value["東"] in ("a", "\n"), text


class GrammarSuite(Suite):
    """Masks and acceptance agree, rolling back is exact, and what is complete is an output of the grammar."""

    seam = "grammar"

    @pytest.fixture
    def vocabulary(self) -> Vocabulary:
        """What tokens stand for."""
        return make_vocabulary()

    @pytest.fixture
    def grammars(self, component: GrammarEngine, vocabulary: Vocabulary) -> dict[str, Grammar]:
        """By kind, a grammar of each that the engine compiles and that there is one for."""
        kinds = [kind for kind in SPECS if kind in component.kinds]
        if not kinds:
            pytest.skip(f"the engine compiles {list(component.kinds)}, and there are examples of {list(SPECS)}")
        return {kind: component.compile(StructuredOutput(**SPECS[kind]), vocabulary) for kind in kinds}

    def test_kinds_are_known(self, component: GrammarEngine) -> None:
        """At least one, all of them fields of StructuredOutput."""
        assert component.kinds and set(component.kinds) <= set(KINDS)

    def test_compiled_grammars_fill_their_protocols(self, grammars: dict[str, Grammar]) -> None:
        """Grammar and Matcher."""
        for grammar in grammars.values():
            assert problems(grammar, Grammar) == [] and problems(grammar.matcher(), Matcher) == []

    def test_a_token_is_accepted_exactly_if_its_bit_is_set(
        self, grammars: dict[str, Grammar], vocabulary: Vocabulary
    ) -> None:
        """In every state of a walk; a refused token changes nothing, nor does asking for the mask."""
        for kind, grammar in grammars.items():
            rng, matcher = random.Random(1), grammar.matcher()
            for step in range(6):
                allowed = bits(matcher, vocabulary)
                _check_acceptance(matcher, vocabulary, allowed, f"{kind}, token {step}")
                if not any(allowed):
                    break
                matcher.accept(rng.choice([token for token, is_set in enumerate(allowed) if is_set]))

    def test_the_beginning_is_constrained(self, grammars: dict[str, Grammar], vocabulary: Vocabulary) -> None:
        """Something may come first, and not everything."""
        for kind, grammar in grammars.items():
            allowed = bits(grammar.matcher(), vocabulary)
            assert any(allowed) and not all(allowed[:256]), kind

    @pytest.mark.parametrize("seed", range(5))
    def test_complete_outputs_are_valid(self, grammars: dict[str, Grammar], vocabulary: Vocabulary, seed: int) -> None:
        """Whatever tokens are drawn, and nothing is a dead end. Random JSON need not end in time."""
        for kind, grammar in grammars.items():
            has_ended = _walk(kind, grammar, vocabulary, random.Random(seed))
            assert has_ended or kind.startswith("json"), f"{kind} did not end within 300 tokens"

    def test_rolling_back_is_exact(self, grammars: dict[str, Grammar], vocabulary: Vocabulary) -> None:
        """Drafts are accepted ahead and taken back: one, several, and all."""
        for kind, grammar in grammars.items():
            rng, matcher = random.Random(3), grammar.matcher()
            states = [(bits(matcher, vocabulary), matcher.is_complete)]
            while len(states) < 9 and any(states[-1][0]):
                matcher.accept(rng.choice([token for token, is_set in enumerate(states[-1][0]) if is_set]))
                states.append((bits(matcher, vocabulary), matcher.is_complete))
            for count in (1, 2, len(states)):
                count = min(count, len(states) - 1)
                matcher.rollback(count)
                del states[len(states) - count :]
                found = bits(matcher, vocabulary), matcher.is_complete
                assert found == states[-1], f"{kind} after taking back {count} tokens"

    def test_matchers_do_not_share_their_state(self, grammars: dict[str, Grammar], vocabulary: Vocabulary) -> None:
        """One goes on, the other stays."""
        for kind, grammar in grammars.items():
            one, other = grammar.matcher(), grammar.matcher()
            before = bits(other, vocabulary)
            assert one.accept(before.index(True)), f"{kind}: the first allowed token"
            assert bits(other, vocabulary) == before, kind

    def test_it_compiles_on_several_threads_at_once(
        self, component: GrammarEngine, grammars: dict[str, Grammar]
    ) -> None:
        """With the same result, for a vocabulary that it sees for the first time too."""
        vocabulary = make_vocabulary()
        for kind, grammar in grammars.items():
            spec = StructuredOutput(**SPECS[kind])
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda _, spec=spec: component.compile(spec, vocabulary), range(8)))
            first = bits(grammar.matcher(), vocabulary)
            assert all(bits(each.matcher(), vocabulary) == first for each in found), kind

    def test_bad_grammars_are_refused_with_a_value_error(
        self, component: GrammarEngine, vocabulary: Vocabulary
    ) -> None:
        """And with words: they end one request."""
        kinds = [kind for kind in BAD if kind in component.kinds]
        if not kinds:
            pytest.skip(f"no grammar of the kinds {list(component.kinds)} is known to be bad")
        for kind in kinds:
            with pytest.raises(ValueError, match=r"\w"):
                component.compile(StructuredOutput(**BAD[kind]), vocabulary)


def _check_acceptance(matcher: Matcher, vocabulary: Vocabulary, allowed: list[bool], where: str) -> None:
    for token, text in enumerate(vocabulary.token_bytes):
        if token in vocabulary.eos_token_ids:
            continue
        accepted = matcher.accept(token)
        assert accepted == allowed[token], f"{where}: {text!r} accepted {accepted}, in the mask {allowed[token]}"
        assert text or not accepted, f"{where}: a token that adds no text was accepted"
        if accepted:
            matcher.rollback(1)
    assert bits(matcher, vocabulary) == allowed, f"{where}: tokens that were refused or taken back left a trace"


def _walk(kind: str, grammar: Grammar, vocabulary: Vocabulary, rng: random.Random) -> bool:
    """Draw tokens, check what is complete on the way; whether an end was reached."""
    matcher, text = grammar.matcher(), b""
    for _ in range(300):
        if matcher.is_complete:
            check_text(kind, text.decode())
        choices = [token for token, is_set in enumerate(bits(matcher, vocabulary)) if is_set]
        if not choices:
            assert matcher.is_complete, f"{kind}: {text!r} can neither go on nor end"
            return True
        # What closes is preferred, or strings and lists would grow without end.
        closing = [token for token in choices if vocabulary.token_bytes[token] in (b'"', b"}", b"]", b",", b":")]
        token = rng.choice(closing if closing and rng.random() < 0.7 else choices)
        assert matcher.accept(token), f"{kind}: {vocabulary.token_bytes[token]!r} is in the mask after {text!r}"
        text += vocabulary.token_bytes[token]
    return False
