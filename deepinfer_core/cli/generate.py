"""``deepinfer generate``: complete prompts from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.cli.prompts import collect_prompts
from deepinfer_core.errors import ConfigError
from deepinfer_core.model_loader.hf_config import load_hf_config
from deepinfer_core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.outputs import RequestOutput

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
            return _exit_code([_stream(llm.stream(prompts[0], params))])
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    for index, output in enumerate(outputs):
        if args.json:
            print(json.dumps(_as_json(index, output), ensure_ascii=False))
        else:
            _print_one(index, len(outputs), output)
    return _exit_code(outputs)


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


def _stream(outputs: Iterable[RequestOutput]) -> RequestOutput:
    """Print text as it comes; each output carries the whole text so far. Returns the last one."""
    shown, last = 0, None
    for last in outputs:
        text = last.outputs[0].text if last.outputs else ""
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
    if last is None:
        raise RuntimeError("the engine ended a request without an output")
    if last.error is None or shown:
        print()
    _report(last, "")
    return last


def _print_one(index: int, count: int, output: RequestOutput) -> None:
    where = f"[{index + 1}/{count}]"
    if output.error is None:
        print(f"{where} {output.prompt}\n{output.outputs[0].text}\n")
    _report(output, f"{where} ")


def _report(output: RequestOutput, where: str) -> None:
    if output.error is not None:
        sys.stdout.flush()
        print(f"deepinfer generate: error: {where}{output.error}", file=sys.stderr)


def _exit_code(outputs: Iterable[RequestOutput]) -> int:
    return 2 if any(output.error is not None for output in outputs) else 0


def _as_json(index: int, output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0] if output.outputs else None
    logprobs = completion.logprobs if completion else None
    return {
        "index": index,
        "prompt": output.prompt,
        "prompt_token_ids": _plain(output.prompt_token_ids),
        "text": completion.text if completion else "",
        "token_ids": _plain(completion.token_ids) if completion else [],
        "finish_reason": completion.finish_reason if completion else "error",
        "stop_reason": completion.stop_reason if completion else None,
        "cumulative_logprob": completion.cumulative_logprob if completion else None,
        "logprobs": logprobs and [{str(k): attrs.asdict(v) for k, v in position.items()} for position in logprobs],
        "error": output.error,
    }


def _plain(ids: Iterable[int] | None) -> list[int] | None:
    return None if ids is None else [int(token) for token in ids]
