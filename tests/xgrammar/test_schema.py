"""JSON Schemas as grammars: every output validates, what should be reachable is, the rest is refused by name."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.interfaces.structured_output import StructuredOutput
from deepinfer_plugin_xgrammar.schema.numbers import integers, numbers

Outputs = Callable[..., list[str]]
Accepts = Callable[..., bool]


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def check(schema: Any, text: str) -> None:
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(strict(text))


@pytest.mark.parametrize("part", range(4))
def test_outputs_of_random_schemas_validate(schemas: ModuleType, outputs: Outputs, part: int) -> None:
    for seed in range(15 * part, 15 * part + 15):
        schema = schemas.schema(random.Random(seed))
        for text in outputs(1, json_schema=schema, max_whitespace=seed % 3):
            check(schema, text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "9", "12"], ["-4", "13", "-0", "1.0", "007"]),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, ["1"], ["0", "2"]),
        ({"type": "number", "minimum": 0.1, "maximum": 2.5}, ["0.1", "1", "2.50", "0.999"], ["0", "0.09", "2.51", "3"]),
        ({"type": "number", "exclusiveMinimum": -1, "maximum": 0}, ["-0.99", "0"], ["-1", "-1.00", "0.01"]),
        ({"type": "number"}, ["0", "-1.5e+10", "12.25"], ["01", ".5", "1.", "NaN", "+1"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"東\\n"', '"\\u00e9ab"'], ['"a"', '"abcd"']),
        ({"type": "string"}, ['""', '"\\""', '"a\\u0000"', '"😀"'], ['"\t"', '"\n"', '"a', '"\\ud800"', '"\\x"']),
        ({"enum": ["東", 'q"\\\n', 1, None]}, ['"東"', '"q\\"\\\\\\n"', "1", "null"], ['"q"', "2"]),
        ({"const": {"a": [1, "é"]}}, ['{"a":[1,"é"]}'], ["{}"]),
        ({"type": ["string", "null"]}, ['""', "null"], ["1"]),
        ({"type": "object"}, ["{}"], ['{"a":1}']),
        ({"type": "object", "additionalProperties": True}, ["{}", '{"a":[{}]}'], ["[]"]),
        ({"type": "object", "additionalProperties": {"type": "null"}, "properties": {"ab": {"const": 1}}},
         ['{"ab":1,"a":null}', '{"abc":null}', '{"":null}'], ['{"ab":null}', '{"\\u0061b":null}', '{"a":1}']),
        ({"type": "object", "properties": {"a": {}, "b": {"type": "null"}}, "required": ["b"]},
         ['{"b":null}', '{"a":1,"b":null}'], ['{"b":null,"a":1}', '{"a":1}', "{}"]),
        ({"type": "object", "required": ["x"]}, ['{"x":3}'], ["{}"]),
        ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
         ['{"a":1,"b":2}'], ['{"a":1}', "{}"]),
        ({"type": "object", "patternProperties": {"^s_": {"type": "null"}}}, ["{}", '{"s_x":null}'], ['{"x":null}']),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
         ["[null]", "[null,null]"], ["[]", "[null,null,null]", "[1]"]),
        ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False},
         ["[]", "[1]", "[1,2]"], ["[2]"]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"const": 1}],
          "additionalItems": {"const": 3}}, ["[1]", "[1,3,3]"], ["[3]"]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1,1]"]),
        ({"anyOf": [{"type": "null"}, {"minimum": 5, "type": "integer"}]}, ["null", "5"], ["4"]),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         ['{"a":1}', '{"b":1}'], ["{}"]),
        ({"oneOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]},
                    {"type": "object", "properties": {"k": {"const": "y"}, "n": {}}, "required": ["k"]}]},
         ['{"k":"x"}', '{"k":"y","n":1}'], ['{"k":"z"}', '{"k":"x","n":1}']),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, ["3", "5"], ["2", "6"]),
        ({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"const": 1}}}, ["1"], ["2"]),
        ({"$ref": "#/$defs/n", "maximum": 4, "$defs": {"n": {"type": "integer", "minimum": 3}}},
         ["3", "4"], ["2", "5"]),
        ({"properties": {"a": {"pattern": "^x$"}}}, ['{"a":"x"}'], ["1", '{"a":"y"}']),
        (True, ["1", '{"a":[]}'], ["tru"]),
    ],
)  # fmt: skip
def test_what_a_schema_takes(accepts: Accepts, schema: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(text, json_schema=schema), text
        check(schema, text)
    for text in bad:
        assert not accepts(text, json_schema=schema), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/nowhere"}, "points to '#/nowhere', and there is no 'nowhere'"),
        ({"$ref": "http://x/y"}, "must point into the same schema"),
        ({"$ref": "#"}, "nothing can match it"),
        ({"allOf": [{"$ref": "#"}, {"type": "string"}]}, "made of itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "nothing can match it"),
        ({"type": "strin"}, "type at # must be one of null, boolean"),
        ({"type": "string", "maxLenght": 3}, "unknown keyword 'maxLenght'; did you mean 'maxLength'"),
        ({"type": "string", "minLength": -1}, "minLength at # must be an integer >= 0, got -1"),
        ({"type": "integer", "minimum": "3"}, "minimum at # must be a number, got '3'"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf at # is not supported"),
        ({"not": {"type": "string"}}, "not at # is not supported"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems at # is not supported"),
        ({"type": "object", "properties": {"a": {"if": {}}}}, "if at #/properties/a is not supported"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}, "oneOf has options that may both take"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf has options that may both take"),
        ({"type": "string", "pattern": "(?=a)"}, "lookahead and lookbehind"),
        ({"type": "string", "pattern": "("}, "is no regular expression"),
        ({"type": "string", "pattern": "a+b", "maxLength": 3}, "together with minLength or maxLength"),
        ({"enum": []}, "nothing can match it"),
        (False, "nothing can match it"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "nothing can match it"),
        ({"anyOf": []}, "anyOf must be a non-empty list"),
        ({"type": "array", "items": 3}, "a schema must be a table, True or False, got 3"),
        ({"type": "object", "minProperties": 1}, "nothing can match it"),
        ({"type": "integer", "minimum": 10**60}, "at most 40 digits"),
    ],
)
def test_what_is_refused_says_why(accepts: Accepts, schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        accepts("1", json_schema=schema)


def test_impossible_parts_are_left_out(outputs: Outputs) -> None:
    """An option without a value, and an optional property without one, must not be begun."""
    schema = {
        "type": "object",
        "properties": {"a": False, "b": {"anyOf": [{"enum": []}, {"const": 1}]}},
        "required": ["b"],
    }
    assert set(outputs(json_schema=schema, max_whitespace=0)) == {'{"b":1}'}


def test_exploding_schemas_are_refused_quickly(accepts: Accepts) -> None:
    doubling: dict[str, Any] = {"$defs": {"l0": {"type": "null"}}, "$ref": "#/$defs/l40", "minimum": 1}
    for level in range(1, 41):
        lower = {"$ref": f"#/$defs/l{level - 1}", "minLength": level}
        doubling["$defs"][f"l{level}"] = {"anyOf": [lower, {**lower, "minItems": level}]}
    itself = {"type": "object", "properties": {name: {"$ref": "#", "minProperties": 1} for name in "ab"}}
    for schema in (doubling, itself, {"enum": ["x" * 1000 + str(i) for i in range(1000)]}):
        with pytest.raises(ValueError, match=r"make it smaller|nested too deep"):
            accepts("1", json_schema=schema)


@given(st.integers(-(10**6), 10**6), st.integers(0, 2000), st.integers(-(10**6), 10**6))
@settings(max_examples=100)
def test_integers_within_bounds(low: int, width: int, other: int) -> None:
    matched = _regex(integers(Decimal(low), Decimal(low + width)))
    for value in (low - 1, low, low + width // 2, low + width, low + width + 1, other, 0):
        assert bool(matched.fullmatch(str(value))) == (low <= value <= low + width), value


@given(st.decimals(-100, 100, places=2), st.decimals(0, 20, places=1), st.decimals(-120, 120, places=3))
@settings(max_examples=100)
def test_numbers_within_bounds(low: Any, width: Any, value: Any) -> None:
    matched = _regex(numbers(low, low + width, above=True))
    for text in (f"{value:.2f}", f"{low:.2f}", f"{low + width:.2f}", f"{low + width / 2:.2f}", f"{value:.0f}"):
        is_inside = low < Decimal(text) <= low + width and not re.fullmatch(r"-0\.?0*", text)
        assert bool(matched.fullmatch(text)) == is_inside, text


def _regex(node: Any) -> re.Pattern[str]:
    """A node without references, as a regular expression."""
    from deepinfer_plugin_xgrammar import grammar as g

    def spell(part: Any) -> str:
        if isinstance(part, g.Text):
            return re.escape(part.text)
        if isinstance(part, g.Chars):
            return "[" + "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in part.chars.ranges) + "]"
        if isinstance(part, g.Seq):
            return "".join(map(spell, part.parts))
        if isinstance(part, g.Alt):
            return "(?:" + "|".join(map(spell, part.options)) + ")" if part.options else "(?!)"
        return f"(?:{spell(part.item)}){{{part.low},{'' if part.high is None else part.high}}}"

    return re.compile(spell(node))


def test_whitespace_is_bounded_and_compact_on_request(outputs: Outputs, accepts: Accepts) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"items": {"const": 1}}},
        "required": ["a"],
    }
    for limit in (0, 1, 3):
        for text in outputs(json_schema=schema, max_whitespace=limit):
            assert max((len(blank) for blank in re.findall(r"\s+", text)), default=0) <= limit
    assert accepts('{ "a" : 1 , "b" : [ 1 , 1 ] }', json_schema=schema, max_whitespace=1)
    assert not accepts('{  "a":1}', json_schema=schema, max_whitespace=1)
    assert accepts('{"a":"   "}', json_object=True, max_whitespace=0)


def test_json_objects(outputs: Outputs, accepts: Accepts) -> None:
    for text in outputs(30, json_object=True, max_whitespace=1):
        assert isinstance(strict(text), dict)
    assert not accepts("[]", json_object=True)
    assert StructuredOutput(json_object=True).kind == "json_object"


def test_strings_are_utf8(outputs: Outputs) -> None:
    """No bytes of surrogates, however the library spells a set of characters; long strings end as well."""
    import numpy as np

    from deepinfer_core.interfaces.grammar import Vocabulary
    from deepinfer_plugin_xgrammar.engine import XGrammar

    vocabulary = Vocabulary((*[bytes([byte]) for byte in range(256)], b""), {}, (256,))
    for fields in ({}, {"maxLength": 5}, {"maxLength": 100}, {"pattern": "^[^a]*$"}):
        spec = StructuredOutput(json_schema={"type": "string", **fields})
        matcher = XGrammar().compile(spec, vocabulary).matcher()
        assert all(matcher.accept(byte) for byte in b'"\xed')
        row = np.zeros(vocabulary.mask_words, np.int32)
        matcher.fill_mask(row)
        after = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert after[after < 256].tolist() == list(range(0x80, 0xA0))


def test_lengths_beyond_the_last_that_has_escapes(accepts: Accepts) -> None:
    for high, text in ((64, "\\n" * 64), (65, "n" * 65), (None, "x" * 70 + "\\n")):
        schema = {"type": "string", "minLength": 64 if high else 70, **({"maxLength": high} if high else {})}
        assert accepts(f'"{text}"', json_schema=schema) and not accepts(f'"{text[:20]}"', json_schema=schema)
        assert high is None or not accepts(f'"{text}x"', json_schema=schema)
