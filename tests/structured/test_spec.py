"""What a request may ask of its output's form, and what is refused before anything is compiled."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import SamplingParams
from deepinfer_core.errors import RequestError
from deepinfer_core.interfaces.structured_output import StructuredOutput

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab東"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab東"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("ab東"), plain, max_size=4))
def test_text_and_table_are_the_same_and_stay_as_they_were(schema: dict[str, Any]) -> None:
    table, text = StructuredOutput(json_schema=schema), StructuredOutput(json_schema=json.dumps(schema))
    assert table == text and table.key == text.key and hash(table) == hash(text)
    assert pickle.loads(pickle.dumps(table)) == table
    before = table.key
    schema["later"] = 1
    assert table.key == before


def test_the_key_tells_contents_apart_that_are_equal_as_tables() -> None:
    """The order of properties is the order of the output."""
    first = StructuredOutput(json_schema={"properties": {"a": {}, "b": {}}})
    second = StructuredOutput(json_schema={"properties": {"b": {}, "a": {}}})
    assert first.key != second.key
    assert StructuredOutput(regex="a").key != StructuredOutput(ebnf="a").key
    assert StructuredOutput(json_object=True).key != StructuredOutput(json_object=True, max_whitespace=0).key


def test_sampling_params_take_a_table() -> None:
    params = SamplingParams(structured={"choice": ["a", "b", "a"]})
    assert params.structured == StructuredOutput(choice=["a", "b"]) and params.structured.kind == "choice"
    assert hash(params) == hash(SamplingParams(structured=StructuredOutput(choice=("a", "b"))))
    assert SamplingParams.from_dict({"structured": None}).structured is None
    assert StructuredOutput(json_schema=False).kind == "json_schema"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of json_schema, .* got none"),
        ({"regex": "a", "choice": ["b"]}, "exactly one of .* got regex and choice"),
        ({"json_shema": {}}, "no field 'json_shema'; did you mean 'json_schema'"),
        ({"json_schema": "{"}, "json_schema is not valid JSON"),
        ({"json_schema": '{"const": NaN}'}, "NaN is no JSON"),
        ({"json_schema": [1]}, "json_schema must be a JSON Schema"),
        ({"json_schema": {"a": object()}}, "json_schema must be a JSON Schema"),
        ({"json_schema": {1: 2}}, "the key 1, which is not text"),
        ({"json_schema": '{"const": "\\ud800"}'}, r"must be valid Unicode, got '\\ud800'"),
        ({"regex": 3}, "regex must be text, got 3"),
        ({"ebnf": "\ud800"}, "ebnf must be valid Unicode"),
        ({"choice": []}, "choice must be a non-empty list"),
        ({"choice": "yes"}, "choice must be a non-empty list"),
        ({"choice": ["a", ""]}, "choice must be a non-empty list"),
        ({"json_object": 1}, "json_object must be True or False, got 1"),
        ({"structural_tag": "[]"}, "structural_tag must be a table"),
        ({"json_object": True, "max_whitespace": -1}, r"max_whitespace must be an integer in \[0, 64\], got -1"),
        ({"json_object": True, "max_whitespace": True}, "max_whitespace must be an integer"),
    ],
)
def test_bad_specifications_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(structured=fields)


def test_a_bad_type_is_refused() -> None:
    with pytest.raises(RequestError, match=r"structured must be None, a StructuredOutput or a table .* got 'json'"):
        SamplingParams(structured="json")


def test_deep_nesting_is_refused_and_costs_no_recursion() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(RequestError, match="nested at most 200 levels deep"):
        StructuredOutput(json_schema=deep)
    with pytest.raises(RequestError, match=r"nested at most|not valid JSON"):
        StructuredOutput(json_schema='{"a":' * 100_000 + "1" + "}" * 100_000)
    while deep:  # a table this deep cannot be freed in one go
        deep = deep.pop("a")
