"""Regular expressions, choices, grammars and structural tags."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_plugin_xgrammar.charset import ANY, CharSet, outside

Outputs = Callable[..., list[str]]
Accepts = Callable[..., bool]
ranges = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)).map(lambda pair: tuple(sorted(pair))), max_size=4)


@given(ranges, ranges)
def test_sets_of_characters(first: Any, second: Any) -> None:
    a, b = CharSet.of(first), CharSet.of(second)
    inside = {code for low, high in first for code in range(low, high + 1)}
    other = {code for low, high in second for code in range(low, high + 1)}
    everything = range(320)
    assert {code for code in everything if code in a} == inside
    assert {code for code in everything if code in (a | b)} == inside | other
    assert {code for code in everything if code in (a & b)} == inside & other
    assert {code for code in everything if code in (a - b)} == inside - other
    assert {code for code in everything if code in ~a} == set(everything) - inside
    assert ~~a == a and (ANY & a) == a


def test_complements_of_classes_are_outside_of_ascii_and_unicode() -> None:
    for kind, escape in (("digit", r"\d"), ("word", r"\w"), ("space", r"\s")):
        for code in range(0x3000):
            if code in outside(kind):
                assert not re.match(escape, chr(code)), hex(code)


@pytest.mark.parametrize("part", range(2))
def test_outputs_of_random_patterns_match(schemas: ModuleType, outputs: Outputs, part: int) -> None:
    for seed in range(40 * part, 40 * part + 40):
        pattern = schemas.pattern(random.Random(seed))
        for text in outputs(1, regex=pattern):
            assert re.fullmatch(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("ab", ["ab", "xaby"], ["ba", ""]),
        ("^ab", ["ab", "abx"], ["xab"]),
        ("ab$", ["ab", "xab"], ["abx"]),
        ("^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
        ("(^a|^b)", ["a", "bx"], ["xa"]),
        ("^[ab]{2,3}$", ["ab", "bbb"], ["a", "aaaa"]),
        (r"^\"\\$", ['\\"\\\\'], []),
        ("^\t$", ["\\t"], []),
        ("^[^a]$", ["b", "\\n", '\\"', "東"], ["a"]),
        ("(?<year>[0-9]{4})", ["2024", "x2024"], ["202"]),
        ("", ["", "x"], []),
    ],
)
def test_patterns_match_somewhere_unless_anchored(
    accepts: Accepts, pattern: str, good: list[str], bad: list[str]
) -> None:
    for content in good:
        assert accepts(f'"{content}"', json_schema={"type": "string", "pattern": pattern}), content
    for content in bad:
        assert not accepts(f'"{content}"', json_schema={"type": "string", "pattern": pattern}), content


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a|b", ["a", "b"], ["ab", ""]),
        ("^a$", ["a"], ["aa"]),
        ("(a|b)*c?", ["", "abac"], ["ca"]),
        (r"\d{3}-\d+", ["123-4"], ["12-3"]),
        ("a{0}b", ["b"], ["ab"]),
        ("[^\\n]é", ["xé", "東é"], ["\né"]),
        ("x.y", ["x y", "x東y"], ["x\ny"]),
        ("(?:ab)+?", ["ab", "abab"], ["a"]),
        ("\x00\x7f", ["\x00\x7f"], []),
    ],
)
def test_regex_is_a_full_match(accepts: Accepts, pattern: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(text, regex=pattern) and re.fullmatch(pattern, text), text
    for text in bad:
        assert not accepts(text, regex=pattern), text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a", "is no regular expression: missing )"),
        ("(?=a)b", "lookahead and lookbehind"),
        ("(?<!a)b", "lookahead and lookbehind"),
        (r"(a)\1", "references to groups"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        (r"\bword", "word boundaries"),
        ("a^b", "^ and $ other than at the ends"),
        ("(?>a)", "atomic groups"),
        ("a++", "possessive repeats"),
        ("[^\\s\\S]", "nothing can match it"),
        (r"\p{L}", "is no regular expression"),
        ("(" * 5000 + ")" * 5000, "is no regular expression"),
        ("a{99999999999}", "is no regular expression"),
    ],
)
def test_bad_and_unsupported_patterns_are_refused(accepts: Accepts, pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        accepts("a", regex=pattern)


def test_large_repeats_cost_little(accepts: Accepts) -> None:
    assert accepts("a" * 500, regex="((a{1,1000}){1,1000}){1,1000}")
    assert not accepts("a" * 500, regex="a{1000000}")
    assert accepts('"' + "x" * 500 + '"', json_schema={"type": "string", "maxLength": 10**9})


def test_choices(outputs: Outputs, accepts: Accepts) -> None:
    texts = ["yes", "no", "ja\n", 'q"\\', "東", "no way"]
    assert set(outputs(200, choice=texts)) == set(texts)
    assert not accepts("n", choice=texts) and not accepts("yesno", choice=texts)


def test_grammars(outputs: Outputs, accepts: Accepts) -> None:
    spec = {"ebnf": 'root ::= "(" root ")" | "x"'}
    assert all(text.count("(") == text.count(")") and "x" in text for text in outputs(**spec))
    assert accepts("((x))", **spec) and not accepts("((x)", **spec)
    for bad, message in (
        ("rot ::= 1", "root"),
        ('root ::= "a', "EBNF"),
        ("root ::= x", '"x" is not defined'),
        ("", "root"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            accepts("a", ebnf=bad)
        assert ".cc:" not in str(caught.value)
    with pytest.raises(ValueError, match="at most 200000 characters"):
        accepts("a", ebnf='root ::= "' + "a" * 200_001 + '"')


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "string"}}, "end": "</f>"}
        ],
    },
}


def test_structural_tags_constrain_what_follows_a_trigger(accepts: Accepts) -> None:
    for text in ("", "free text {", '<f>"a"</f>', 'say <f>"a"</f> and <f>"b\\n"</f>.'):
        assert accepts(text, structural_tag=TAG), text
    for text in ("<f>1</f>", '<f>"\t"</f>', "<f>", "<fx", '<f>"a"'):
        assert not accepts(text, structural_tag=TAG), text


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ({"type": "tag"}, "it must be like"),
        ({"type": "structural_tag", "format": {"type": "nonsense"}}, "Invalid structural tag"),
        ({"type": "structural_tag", "format": {"type": "regex", "pattern": "(?=a)"}}, "lookahead"),
        ({"type": "structural_tag", "format": {"type": "regex", "pattern": "a", "x": 1}}, "'x' of the format 'regex'"),
        ({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"not": {}}}}, "not at # is not"),
    ],
)
def test_bad_structural_tags_are_refused(accepts: Accepts, tag: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accepts("a", structural_tag=tag)
