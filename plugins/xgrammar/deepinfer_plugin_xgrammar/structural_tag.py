"""Structural tags: free text with constrained parts. Their schemas and patterns become grammars of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepinfer_plugin_xgrammar.grammar import Rules
from deepinfer_plugin_xgrammar.patterns import Pattern
from deepinfer_plugin_xgrammar.schema import schema_rules


def translate(tag: Mapping[str, Any], max_whitespace: int) -> dict[str, Any]:
    """The tag with every ``json_schema`` and ``regex`` format replaced by a ``grammar`` format.

    Raises ValueError for a part that is refused. What remains is the library's to check.
    """
    if tag.get("type") != "structural_tag" or not isinstance(tag.get("format"), Mapping):
        raise ValueError('it must be like {"type": "structural_tag", "format": {"type": ..., ...}}')
    return {name: _part(value, max_whitespace) for name, value in tag.items()}


def _part(value: Any, max_whitespace: int) -> Any:
    if isinstance(value, tuple):
        return [_part(item, max_whitespace) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("type") == "json_schema" and value.get("style", "json") == "json":
        limit = value.get("max_whitespace_cnt", max_whitespace)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"max_whitespace_cnt must be an integer >= 0, got {limit!r:.80}")
        _refuse_others(value, ("type", "style", "json_schema", "max_whitespace_cnt"))
        schema = value.get("json_schema")
        if not isinstance(schema, Mapping | bool):
            raise ValueError(f"json_schema of a format must be a table, true or false, got {schema!r:.80}")
        return {"type": "grammar", "grammar": schema_rules(schema, limit).ebnf()}
    if value.get("type") == "regex":
        _refuse_others(value, ("type", "pattern"))
        return {"type": "grammar", "grammar": pattern_rules(value.get("pattern")).ebnf()}
    return {name: _part(item, max_whitespace) for name, item in value.items()}


def _refuse_others(value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in value:
        if name not in known:
            raise ValueError(f"{name!r} of the format {value['type']!r} is not supported; it knows {', '.join(known)}")


def pattern_rules(pattern: Any) -> Rules:
    """The grammar of texts that match a pattern as a whole. Raises ValueError."""
    if not isinstance(pattern, str):
        raise ValueError(f"a pattern must be text, got {pattern!r:.80}")
    rules = Rules()
    rules.add(Pattern(pattern).whole(), "root")
    rules.prune()
    return rules
