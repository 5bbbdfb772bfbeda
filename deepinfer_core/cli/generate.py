"""``deepinfer generate``: complete prompts from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.cli.prompts import collect_prompts
from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.hf_config import load_hf_config
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput

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
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer generate``."""
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="text to complete; - is standard input, whole")
    parser.add_argument(
        "--prompts-file", metavar="FILE", help="UTF-8 text, one prompt per line; blank lines are skipped"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt and line")
    EngineArgs.add_cli_args(parser)
    _add_sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Complete the prompts. 0 when all were completed, 2 when any was refused."""
    params = _sampling_params(args)
    prompts = collect_prompts(args.prompts, args.prompts_file)
    engine_args = attrs.asdict(EngineArgs.from_cli_args(args), recurse=False)

    from deepinfer_core import LLM  # last: everything that can be refused without torch has been

    with LLM(**engine_args) as llm:
        if len(prompts) == 1 and not args.json:
            _stream(llm.stream(prompts[0], params))
            return 0
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    for index, output in enumerate(outputs):
        _print(index, len(outputs), output, as_json=args.json)
    return 2 if any(output.error is not None for output in outputs) else 0


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """One option per field; what is not given is left to the checkpoint's generation_config.json."""
    group = parser.add_argument_group("sampling (where not given: as generation_config.json says)")
    defaults = {field.name: field.default for field in attrs.fields(SamplingParams)}
    for name, read, metavar, help in _SAMPLING:
        default = "" if defaults[name] is None else f" (default: {defaults[name]})"
        dest = f"sampling_{name}"
        group.add_argument(f"--{name.replace('_', '-')}", dest=dest, type=read, metavar=metavar, help=help + default)
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


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be token ids separated by commas, got {text!r}") from None


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    prefix = "sampling_"
    given = {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}
    given = {name: value for name, value in given.items() if value is not None}
    if "logprobs" in given and not args.json:
        raise ConfigError("--logprobs needs --json, which prints them")
    return SamplingParams.from_dict({**load_hf_config(args.model).sampling_defaults, **given})


def _stream(pieces: Iterable[CompletionOutput]) -> None:
    """Print text as it comes."""
    for piece in pieces:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    print()


def _print(index: int, count: int, output: RequestOutput, *, as_json: bool) -> None:
    where = f"[{index + 1}/{count}]"
    if as_json:
        print(json.dumps(_as_json(index, output), ensure_ascii=False))
    elif output.error is None:
        print(f"{where} {output.prompt}\n{output.outputs[0].text}\n")
    if output.error is not None:
        sys.stdout.flush()  # so that both streams, shown together, stay in order
        print(f"deepinfer generate: error: {where} {output.error}", file=sys.stderr)


def _as_json(index: int, output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "index": index,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "cumulative_logprob": completion.cumulative_logprob,
        "logprobs": completion.logprobs and [_position_as_json(position) for position in completion.logprobs],
        "error": output.error,
    }


def _position_as_json(position: Mapping[int, Logprob]) -> list[dict[str, Any]]:
    return [{"token_id": token, **attrs.asdict(entry)} for token, entry in position.items()]
