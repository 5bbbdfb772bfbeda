"""Sampling options of the command line, shared by the commands that generate."""

from __future__ import annotations

import argparse
from typing import Any

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.model_loader.resolve import open_model
from deepinfer_core.plugins import PluginManager
from deepinfer_core.sampling_params import SamplingParams

#: Options of the group "sampling": the field of SamplingParams, how to read it, its placeholder, its help.
_SAMPLING: tuple[tuple[str, Any, str, str], ...] = (
    ("max_tokens", int, "N", "longest output, in tokens"),
    ("min_tokens", int, "N", "nothing ends the output before it is this long"),
    ("temperature", float, "T", "0 is greedy: always the most likely token"),
    ("top_k", int, "K", "keep the K most likely tokens; -1 keeps all"),
    ("top_p", float, "P", "keep the most likely tokens that hold this share of the probability"),
    ("min_p", float, "P", "keep tokens at least this share as likely as the most likely one"),
    ("seed", int, "N", "the same seed gives the same tokens"),
    ("logprobs", int, "N", "with --json: logprobs of the chosen and of the N most likely tokens"),
    ("prompt_logprobs", int, "N", "with --json: the same for each token of the prompt"),
)
_PREFIX = "sampling_"


def add_sampling_arguments(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """One option per field; what is not given is left to the checkpoint's generation_config.json, then to
    ``defaults``, then to SamplingParams.
    """
    group = parser.add_argument_group("sampling (where not given: as generation_config.json says)")
    known = {field.name: field.default for field in attrs.fields(SamplingParams)} | defaults
    for name, read, metavar, help in _SAMPLING:
        default = "" if known[name] is None else f" (default: {known[name]})"
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, dest=_PREFIX + name, type=read, metavar=metavar, help=help + default)
    group.add_argument(
        "--stop", dest="sampling_stop", action="append", metavar="TEXT", help="text that ends the output; repeatable"
    )
    group.add_argument(
        "--stop-token-ids", dest="sampling_stop_token_ids", type=_ids, metavar="IDS",
        help="token ids that end the output, separated by commas",
    )  # fmt: skip
    group.add_argument(
        "--ignore-eos", dest="sampling_ignore_eos", action="store_const", const=True,
        help="do not stop at the model's end tokens",
    )  # fmt: skip
    parser.set_defaults(sampling_defaults=defaults)


def sampling_params(args: argparse.Namespace, engine_args: EngineArgs) -> SamplingParams:
    """What the options of :func:`add_sampling_arguments` and the model's generation_config.json ask for."""
    fields = {field.name for field in attrs.fields(SamplingParams)}
    given = {name: getattr(args, _PREFIX + name, None) for name in fields}
    given = {name: value for name, value in given.items() if value is not None}
    checkpoint = open_model(engine_args.model, PluginManager(engine_args.plugins))
    return SamplingParams.from_dict({**args.sampling_defaults, **checkpoint.sampling_defaults, **given})


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be token ids separated by commas, got {text!r}") from None
