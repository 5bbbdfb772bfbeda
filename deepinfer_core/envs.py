"""Every environment variable DeepInfer reads, and the one strict parser for them. None is ever needed."""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from attrs import frozen

from deepinfer_core.errors import ConfigError

PREFIX: Final = "DEEPINFER_"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_LEVELS: Final = ("debug", "info", "warning", "error")


def parse_bool(text: str) -> bool:
    """1, true, yes, on or 0, false, no, off, in any case, blanks around them allowed. Raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("one of 1, true, yes, on, 0, false, no, off")


def parse_names(text: str) -> tuple[str, ...]:
    """Names separated by commas; blanks around them and empty parts are dropped."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_table(text: str) -> dict[str, dict[str, Any]]:
    """A JSON object of objects. Raises ValueError."""
    rule = 'JSON like {"name": {"key": 1}}'
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{rule} ({error})") from None
    if not isinstance(table, dict) or not all(isinstance(inner, dict) for inner in table.values()):
        raise ValueError(rule)
    return table


def parse_level(text: str) -> str:
    """A log level, in any case. Raises ValueError."""
    word = text.strip().lower()
    if word not in _LEVELS:
        raise ValueError(f"one of {', '.join(_LEVELS)}")
    return word


@frozen
class Variable:
    """One environment variable: its type by ``parse`` (raises ValueError saying what it accepts)."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str


_TABLE: Final = (
    Variable("DEEPINFER_PLUGINS", parse_names, (), "names of plugins to activate, separated by commas"),
    Variable("DEEPINFER_PLUGIN_CONFIG", parse_table, {}, 'configuration of plugins, as JSON: {"name": {"key": 1}}'),
    Variable("DEEPINFER_CONFIG", str, "", "configuration file in place of the user's own"),
    Variable("DEEPINFER_LOG_LEVEL", parse_level, "warning", f"log level of the command: {', '.join(_LEVELS)}"),
    Variable("DEEPINFER_DEBUG", parse_bool, False, "show the traceback of every error of the command"),
)

VARIABLES: Final = MappingProxyType({variable.name: variable for variable in _TABLE})


def read(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The parsed value of a listed variable, or its default when unset. Raises ConfigError."""
    variable = VARIABLES[name]
    text = (os.environ if environ is None else environ).get(name)
    if text is None:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ConfigError(f"environment variable {name} must be {error}, got {text!r}") from None


def unknown(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that start with ``DEEPINFER_`` but are none of ours, each with a hint at the nearest one."""
    names = os.environ if environ is None else environ
    # Compared without the prefix, which would make any two of them alike.
    near = {n.removeprefix(PREFIX): n for n in VARIABLES}
    hints = {}
    for name in sorted(n for n in names if n.startswith(PREFIX) and n not in VARIABLES):
        match = difflib.get_close_matches(name.removeprefix(PREFIX), near, n=1)
        hints[name] = f"; did you mean {near[match[0]]!r}?" if match else ""
    return hints


def check(environ: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for a wrong value or a misspelt name; warn of other unknown ``DEEPINFER_`` names."""
    for name in VARIABLES:
        read(name, environ)
    for name, hint in unknown(environ).items():
        if hint:
            raise ConfigError(f"unknown environment variable {name}{hint}; correct or unset it")
        warnings.warn(f"{name} is no environment variable of DeepInfer and has no effect", stacklevel=1)
