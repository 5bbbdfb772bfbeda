"""JSON Schema as a grammar: what it takes validates, and what cannot be followed exactly is refused by name."""

from deepinfer_plugin_xgrammar.schema.converter import json_object_rules, schema_rules

__all__ = ["json_object_rules", "schema_rules"]
