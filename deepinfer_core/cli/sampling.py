"""Sampling options of the command line, shared by the commands that generate."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.interfaces.structured_output import DEFAULT_WHITESPACE
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.plugins import PluginManager
from deepinfer_core.sampling_params import SamplingParams


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be token ids separated by commas, got {text!r}") from None


def _biases(text: str) -> dict[int, float]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        biases = {int(token): float(bias) for token, bias in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 17:5,42:-100 (token id:bias), got {text!r}") from None
    if len(biases) < len(pairs):
        raise argparse.ArgumentTypeError(f"must name each token id once, got {text!r}")
    return biases


def _json_table(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"must be JSON ({error}), got {text!r}") from None
    if not isinstance(table, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return table


#: Options of the group "sampling": the field of SamplingParams, how to read it, its placeholder, its help.
_SAMPLING: tuple[tuple[str, Any, str, str], ...] = (
    ("max_tokens", int, "N", "longest output, in tokens"),
    ("min_tokens", int, "N", "nothing ends the output before it is this long"),
    ("temperature", float, "T", "0 is greedy: always the most likely token"),
    ("top_k", int, "K", "keep the K most likely tokens; -1 keeps all"),
    ("top_p", float, "P", "keep the most likely tokens that hold this share of the probability"),
    ("min_p", float, "P", "keep tokens at least this share as likely as the most likely one"),
    ("presence_penalty", float, "P", "in [-2, 2]: taken from the logits of tokens that the output has"),
    ("frequency_penalty", float, "P", "in [-2, 2]: the same, times how often the output has the token"),
    ("repetition_penalty", float, "P", "above 1: tokens of the prompt and the output become less likely"),
    ("logit_bias", _biases, "IDS", "added to logits, like 17:5,42:-100: pairs of token id and bias in [-100, 100]"),
    ("allowed_token_ids", _ids, "IDS", "the only tokens that may be drawn; token ids separated by commas"),
    ("banned_token_ids", _ids, "IDS", "tokens that must not be drawn"),
    ("forced_token_ids", _ids, "IDS", "what the output begins with"),
    ("seed", int, "N", "the same seed gives the same tokens"),
    ("stop_token_ids", _ids, "IDS", "token ids that end the output"),
    ("logprobs", int, "N", "with --json: logprobs of the chosen and of the N most likely tokens"),
    ("logprobs_mode", str, "MODE", "raw: of the model's logits; processed: of what tokens are drawn from"),
    ("prompt_logprobs", int, "N", "with --json: the same for each token of the prompt, raw"),
    ("extra", _json_table, "JSON", "parameters for logits_processor plugins, by component name"),
)
#: The same, of commands that can show several completions.
_SEVERAL: tuple[tuple[str, Any, str, str], ...] = (
    ("n", int, "N", "completions per prompt; more than one need a temperature"),
)
_PREFIX = "sampling_"


def _contents(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"must be a readable UTF-8 file, got {path!r} ({error})") from None


class _Structured(argparse.Action):
    """Collects what form the output has, as a table for ``SamplingParams.structured``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        structured: dict[str, Any] = getattr(namespace, _PREFIX + "structured", None) or {}
        if self.nargs == 0:
            values = self.const
        if self.dest == "choice":
            values = [*structured.get("choice", ()), values]
        setattr(namespace, _PREFIX + "structured", {**structured, self.dest: values})


def _add_structured_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("structured output (one of the kinds)")

    def add(option: str, dest: str, metavar: str, read: Any, help: str) -> None:
        group.add_argument(
            option, dest=dest, action=_Structured, metavar=metavar, type=read, default=argparse.SUPPRESS, help=help
        )

    add("--json-schema", "json_schema", "FILE", _contents, "the output is JSON that validates against this schema")
    add("--regex", "regex", "PATTERN", str, "the output matches this regular expression, as a whole")
    add("--choice", "choice", "TEXT", str, "the output is one of these texts; repeatable")
    add("--grammar", "ebnf", "FILE", _contents, "the output is of this EBNF grammar, whose first rule is called root")
    add("--structural-tag", "structural_tag", "FILE", _contents, "free text with constrained parts, described in JSON")
    add(
        "--max-whitespace", "max_whitespace", "N", int,
        f"whitespace in a row between elements of JSON; 0: compact (default: {DEFAULT_WHITESPACE})",
    )  # fmt: skip
    group.add_argument(
        "--json-object", dest="json_object", action=_Structured, nargs=0, const=True, default=argparse.SUPPRESS,
        help="the output is a JSON object",
    )  # fmt: skip


def add_sampling_arguments(parser: argparse.ArgumentParser, *, several: bool = False, **defaults: Any) -> None:
    """One option per field; what is not given is left to the checkpoint's generation_config.json, then to
    ``defaults``, then to SamplingParams.

    several: offer several completions per prompt.
    """
    group = parser.add_argument_group("sampling (where not given: as generation_config.json says)")
    known = {field.name: field.default for field in attrs.fields(SamplingParams)} | defaults
    for name, read, metavar, help in (*_SEVERAL, *_SAMPLING) if several else _SAMPLING:
        default = "" if known[name] in (None, (), {}) else f" (default: {known[name]})"
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, dest=_PREFIX + name, type=read, metavar=metavar, help=help + default)
    group.add_argument(
        "--stop", dest="sampling_stop", action="append", metavar="TEXT", help="text that ends the output; repeatable"
    )
    group.add_argument(
        "--ignore-eos", dest="sampling_ignore_eos", action="store_const", const=True,
        help="do not stop at the model's end tokens",
    )  # fmt: skip
    _add_structured_arguments(parser)
    parser.set_defaults(sampling_defaults=defaults)


def sampling_params(args: argparse.Namespace, engine_args: EngineArgs) -> SamplingParams:
    """What the options of :func:`add_sampling_arguments` and the model's generation_config.json ask for."""
    fields = {field.name for field in attrs.fields(SamplingParams)}
    given = {name: getattr(args, _PREFIX + name, None) for name in fields}
    given = {name: value for name, value in given.items() if value is not None}
    manager = PluginManager(
        engine_args.plugins, plugin_config=engine_args.plugin_config, config_file=engine_args.config
    )
    checkpoint = open_model(engine_args.model, manager)
    return SamplingParams.from_dict({**args.sampling_defaults, **checkpoint.sampling_defaults, **given})
