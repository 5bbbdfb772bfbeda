"""Tokens per step and per second without drafts, with a fixed number of them, and with as many as pay.

Run: python benchmarks/speculation.py [--model MODEL] [--max-tokens 128] [--batch 1] [--temperature 0] [--verifier NAME]

Without --model: the model ``tiny`` if it is installed, otherwise a random checkpoint of the tests, whose drafter is
random too. All runs are of one process and the same requests; ``ratio`` is tokens per second over those of ``off``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import attrs

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.outputs import RequestOutput
from deepinfer_core.plugins import PluginManager

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = (ROOT / "examples" / "train_tiny" / "prompts.txt").read_text(encoding="utf-8").splitlines()


@attrs.frozen
class Run:
    """One mode's figures. ``steps`` are those of a batch, its prompts' steps included."""

    mode: str
    tokens: int
    steps: int
    seconds: float
    accepted_length: float | None
    outputs: list[list[int]]


def default_model() -> str:
    """``tiny`` if a plugin ships it."""
    shipped = [row.name for row in PluginManager().checkpoints()]
    return "tiny" if "tiny" in shipped else str(ROOT / "tests" / "data" / "v41-tiny-fp8fp4")


def measure(mode: str, args: argparse.Namespace) -> Run:
    """Complete the prompts in batches, after one batch that warms up."""
    params = SamplingParams(temperature=args.temperature, seed=0, max_tokens=args.max_tokens, ignore_eos=True)
    speculate = int(mode) if mode.isdecimal() else mode
    with LLM(
        args.model, speculate=speculate, verifier=args.verifier, disable_log_stats=True, num_threads=args.threads
    ) as llm:
        prompts = [PROMPTS[i % len(PROMPTS)] for i in range(args.prompts)]
        llm.generate(prompts[: args.batch], params, use_tqdm=False)
        before, begin = llm.get_metrics(), time.perf_counter()
        outputs: list[RequestOutput] = []
        for first in range(0, len(prompts), args.batch):
            outputs += llm.generate(prompts[first : first + args.batch], params, use_tqdm=False)
        seconds, after = time.perf_counter() - begin, llm.get_metrics()
    verifications = after.get("verifications", 0) - before.get("verifications", 0)
    accepted = after.get("accepted_tokens", 0) - before.get("accepted_tokens", 0)
    ids = [output.outputs[0].token_ids for output in outputs]
    length = 1 + accepted / verifications if verifications else None
    return Run(mode, sum(map(len, ids)), int(after["steps"] - before["steps"]), seconds, length, ids)


def main() -> None:
    """Measure each mode and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--modes", default="off,1,3,5,auto")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--verifier", default="coupled")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    runs = [measure(mode, args) for mode in args.modes.split(",")]
    print(f"{args.model}: {args.prompts} prompts of {args.max_tokens} tokens, {args.batch} at once")
    heads = ("drafts", "tokens/s", "ratio", "tokens/step", "tokens/verification", "same output")
    print("{:>8} {:>10} {:>7} {:>12} {:>20} {:>12}".format(*heads))
    for run in runs:
        rate, base = run.tokens / run.seconds, runs[0].tokens / runs[0].seconds
        length = "" if run.accepted_length is None else f"{run.accepted_length:.2f}"
        same = "yes" if run.outputs == runs[0].outputs else "no"
        per_step = run.tokens / run.steps / args.batch
        print(f"{run.mode:>8} {rate:>10.1f} {rate / base:>7.2f} {per_step:>12.2f} {length:>20} {same:>12}")


if __name__ == "__main__":
    main()
