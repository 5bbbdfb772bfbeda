"""The engine under a random model: what finishes validates, and the faults that others met."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.outputs import CompletionOutput

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """Without a plugin named: the first structured request activates the default engine."""
    with LLM(MODEL, disable_log_stats=True) as made:
        yield made


def params(structured: dict[str, Any], **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100, "seed": 1, "structured": structured, **fields})


def run(llm: LLM, *requests: SamplingParams) -> list[CompletionOutput]:
    outputs = llm.generate(["Hello"] * len(requests), list(requests), use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0] for output in outputs]


def check(schema: Any, text: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text, parse_constant=refuse))


def test_nothing_of_it_is_loaded_before_a_request_needs_it() -> None:
    code = (
        "import sys\nfrom deepinfer_core import LLM, SamplingParams\n"
        f"with LLM({str(MODEL)!r}, disable_log_stats=True, banner=False) as llm:\n"
        "    llm.generate('a', SamplingParams(max_tokens=1), use_tqdm=False)\n"
        "    print([n for n in sys.modules if 'xgrammar' in n])\n"
        "    llm.generate('a', SamplingParams(max_tokens=1, structured={'regex': 'a'}), use_tqdm=False)\n"
        "    print('xgrammar' in sys.modules, [r.reason for r in llm.plugins if r.component == 'xgrammar'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["[]", "True ['the default of seam grammar']"]


def test_every_finished_output_validates_for_300_schemas_and_patterns(llm: LLM, schemas: ModuleType) -> None:
    specs: list[tuple[str, Any]] = [("json_schema", schemas.schema(random.Random(1000 + i))) for i in range(180)]
    specs += [("regex", schemas.pattern(random.Random(2000 + i))) for i in range(120)]
    requests = [
        params({kind: spec, "max_whitespace": i % 2} if kind == "json_schema" else {kind: spec}, seed=i, temperature=2)
        for i, (kind, spec) in enumerate(specs)
    ]
    finished = 0
    for (kind, spec), output in zip(specs, run(llm, *requests), strict=True):
        if output.finish_reason == "length":
            assert len(output.token_ids) == 100
            continue
        finished += 1
        if kind == "regex":
            assert re.fullmatch(spec, output.text), (spec, output.text)
        else:
            check(spec, output.text)
    assert finished > 240


def test_every_member_of_an_enum_is_reachable_and_strict_json(llm: LLM) -> None:
    """Fault 17, members and names that are not ASCII."""
    values = ["東", "é", "e\u0301", "😀", 'q"\\\n']
    specs = [{"json_schema": {"enum": [value]}} for value in values]
    specs += [{"json_schema": {"const": value}} for value in values]
    named = [{"type": "object", "properties": {v: {"const": v}}, "required": [v]} for v in values]
    specs += [{"json_schema": schema, "max_whitespace": 0} for schema in named]
    texts = [output.text for output in run(llm, *[params(spec) for spec in specs])]
    assert [json.loads(text) for text in texts] == [*values, *values, *[{v: v} for v in values]]


def test_raw_control_characters_never_get_into_strings(llm: LLM) -> None:
    """Fault 17, the sibling: a model that likes tabs and newlines."""
    tokenizer = llm.get_tokenizer()
    blank = [t for t in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(t)) & set(b"\t\n\r")]
    bias = dict.fromkeys(blank, 50.0)
    for schema in ({"type": "string", "maxLength": 20}, {"type": "string", "minLength": 1, "maxLength": 9}):
        for output in run(llm, *[params({"json_schema": schema}, logit_bias=bias, seed=seed) for seed in range(8)]):
            if output.finish_reason == "stop":
                check(schema, output.text)
            assert not re.search(r"[\x00-\x1f]", output.text.strip("\t\n\r"))


def test_blanks_are_bounded_for_a_model_that_likes_them(llm: LLM) -> None:
    """Fault 21."""
    tokenizer = llm.get_tokenizer()
    blank = [
        t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) and not tokenizer.token_bytes(t).strip()
    ]
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a", "b"],
    }
    fields: dict[str, Any] = {"logit_bias": dict.fromkeys(blank, 50.0), "max_tokens": 400}
    for limit in (8, 2, 0):
        spec = {"json_schema": schema, "max_whitespace": limit}
        outputs = run(llm, *[params(spec, seed=seed, **fields) for seed in range(4)])
        for output in outputs:
            assert output.finish_reason == "stop"
            check(schema, output.text)
            assert max(map(len, re.findall(r"\s+", output.text)), default=0) == limit
    (cut,) = run(llm, params({"json_schema": schema}, **{**fields, "max_tokens": 5}))
    assert cut.finish_reason == "length"


HOSTILE = """
import json, sys
from deepinfer_core import LLM, SamplingParams
specs = json.loads(sys.stdin.read())
with LLM({model!r}, disable_log_stats=True, banner=False) as llm:
    requests = [SamplingParams(max_tokens=60, seed=3, temperature=2, structured=spec) for spec in specs]
    outputs = llm.generate(["a"] * len(specs), requests, use_tqdm=False)
    plain = llm.generate("a", SamplingParams(max_tokens=3), use_tqdm=False)[0]
print(json.dumps([[o.error, o.outputs[0].finish_reason, o.outputs[0].text] for o in [*outputs, plain]]))
"""


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 9}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_recursive_and_hostile_grammars_never_take_the_process_down() -> None:
    """Faults 19 and 20: valid output or a refusal with its reason, in a process that ends as it should."""
    tree = {"type": "object", "properties": {"f": {"$ref": "#/$defs/forest"}}, "required": ["f"]}
    defs = {"tree": tree, "forest": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}
    valid: list[Any] = [
        {"$ref": "#/$defs/tree", "$defs": defs},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        *({"type": "string", "pattern": pattern} for pattern in ("ab", "^ab", "ab$", "^a|b$")),
        nested(60),
        {"anyOf": [{"const": 1}, {"$ref": "#"}]},
    ]
    refused: list[Any] = [
        {"$ref": "#"},
        {"type": "string", "pattern": "(?=a)"},
        {"$ref": "#/$defs/nowhere"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"enum": [f"{i:0100}" for i in range(5000)]},
    ]
    others = [
        {"regex": "(" * 3000 + "a" + ")" * 3000},
        {"regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"regex": "(a*)*"},
        {"ebnf": "root ::= root"},
        {"ebnf": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
        {"ebnf": 'root ::= "a"{1,1000000}'},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "sequence"}}},
    ]
    specs = [*({"json_schema": schema, "max_whitespace": 0} for schema in [*valid, *refused]), *others]
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE.format(model=str(MODEL))],
        input=json.dumps(specs), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.splitlines()[-1])
    for schema, (error, reason, text) in zip(valid, results, strict=False):
        assert error is None, error
        if reason == "stop":
            check(schema, text)
    for schema, (error, reason, _) in zip(refused, results[len(valid) :], strict=False):
        assert error and reason == "error", schema
    assert results[-1][0] is None
    assert {reason for _, reason, _ in results} <= {"stop", "length", "error"}


def test_free_text_until_a_trigger(llm: LLM) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f"],
            "tags": [
                {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"const": {"a": 1}}}, "end": "</f>"}
            ],
        },
    }
    opening = llm.get_tokenizer().encode("so <f", add_special_tokens=False)
    spec = {"structural_tag": tag, "max_whitespace": 0}
    for output in run(llm, *[params(spec, forced_token_ids=opening, seed=seed) for seed in range(4)]):
        assert re.match(r'so <f>\{"a":1\}</f>', output.text), output.text


def test_a_grammar_has_the_same_tokens_alone_and_beside_others(llm: LLM) -> None:
    requests = [params({"regex": "[a-z ]{5,30}"}, seed=5), params({"json_object": True}), SamplingParams(seed=2)]
    assert [o.token_ids for o in run(llm, *requests)] == [run(llm, each)[0].token_ids for each in requests]
