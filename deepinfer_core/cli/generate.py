"""``deepinfer generate``: complete prompts from arguments, a file or standard input."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.cli.prompts import collect_prompts
from deepinfer_core.cli.sampling import add_sampling_arguments, sampling_params
from deepinfer_core.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer_core.outputs import CompletionOutput, Logprob, RequestOutput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer generate``."""
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="text to complete; - is standard input, whole")
    parser.add_argument(
        "--prompts-file", metavar="FILE", help="UTF-8 text, one prompt per line; blank lines are skipped"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per completion and line")
    EngineArgs.add_cli_args(parser)
    add_sampling_arguments(parser, several=True)


def run(args: argparse.Namespace) -> int:
    """Complete the prompts. 0 when all were completed, 2 when any was refused."""
    engine_args = EngineArgs.from_cli_args(args)
    params = sampling_params(args, engine_args)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None and not args.json:
            raise ConfigError(f"--{name.replace('_', '-')} needs --json, which prints them")
    prompts = collect_prompts(args.prompts, args.prompts_file)

    from deepinfer_core import LLM  # last: everything that can be refused without torch has been

    with LLM(**attrs.asdict(engine_args, recurse=False)) as llm:
        if len(prompts) == 1 and params.n == 1 and not args.json:
            _stream(llm.stream(prompts[0], params))
            return 0
        outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    for index, output in enumerate(outputs):
        _print(index, len(outputs), output, as_json=args.json)
    return 2 if any(output.error is not None for output in outputs) else 0


def _stream(pieces: Iterable[CompletionOutput]) -> None:
    """Print text as it comes."""
    for piece in pieces:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    print()


def _print(index: int, count: int, output: RequestOutput, *, as_json: bool) -> None:
    where = f"[{index + 1}/{count}]"
    if as_json:
        for completion in output.outputs:
            print(json.dumps(_as_json(index, output, completion), ensure_ascii=False))
    elif whole := [completion for completion in output.outputs if completion.finish_reason != "error"]:
        print(f"{where} {output.prompt}")
        for completion in whole:
            print(f"({completion.index + 1}) {completion.text}" if len(output.outputs) > 1 else completion.text)
        print()
    if output.error is not None:
        sys.stdout.flush()  # so that both streams, shown together, stay in order
        print(f"deepinfer generate: error: {where} {output.error}", file=sys.stderr)


def _as_json(index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
    return {
        "index": index,
        "sample": completion.index,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "cumulative_logprob": _finite(completion.cumulative_logprob),
        "logprobs": completion.logprobs and [_position_as_json(position) for position in completion.logprobs],
        "prompt_logprobs": output.prompt_logprobs
        and [position and _position_as_json(position) for position in output.prompt_logprobs],
        "error": output.error,
    }


def _position_as_json(position: Mapping[int, Logprob]) -> list[dict[str, Any]]:
    return [
        {"token_id": token, **attrs.asdict(entry), "logprob": _finite(entry.logprob)}
        for token, entry in position.items()
    ]


def _finite(logprob: float | None) -> float | None:
    """None for the -inf of a token that could not be drawn (a forced one): JSON has no infinities."""
    return None if logprob is None or math.isinf(logprob) else logprob
