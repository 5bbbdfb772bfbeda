"""Figures of an exported checkpoint for its card, as Markdown, all from the engine but for the drafter's.

    python -m train_tiny.report --work WORK --model FOLDER

Perplexity comes from ``examples/eval_ppl.py``; here are the trainer's own value for comparison, greedy
continuations of ``prompts.txt``, and how many tokens one verification yields with the trained drafter.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from deepinfer_core import LLM, SamplingParams

from .data import SEPARATOR, Streams
from .dspark import Drafter, load_trunk, tokens_per_verification
from .train import Hashes, evaluate

PROMPTS = Path(__file__).with_name("prompts.txt")


def continuations(llm: LLM, length: int = 60) -> list[str]:
    """One Markdown item per prompt."""
    prompts = PROMPTS.read_text().splitlines()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=length))
    texts = (output.outputs[0].text.replace("\n", " ") for output in outputs)
    return [f"- **{prompt}**{text}" for prompt, text in zip(prompts, texts, strict=True)]


def verification_yield(work: Path, llm: LLM, hashes: Hashes, length: int = 96) -> float:
    """Mean tokens per verification over held-out prompts, decoded greedily by the engine."""
    trunk, drafter = load_trunk(work, hashes), Drafter(hashes.config)
    drafter.load_state_dict(torch.load(work / "drafter.pt")["model"])
    drafter.eval()
    texts = (work / "heldout.txt").read_text().split(SEPARATOR)[:12]
    prompts = [" ".join(text.split(" ")[:24]) for text in texts]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
    yields = []
    for output in outputs:
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        yields.append(tokens_per_verification(drafter, trunk, hashes, tokens, len(output.prompt_token_ids)))
    return sum(yields) / len(yields)


def report(work: Path, model: Path) -> str:
    """The figures."""
    hashes, streams, llm = Hashes(work), Streams(work), LLM(str(model))
    trunk = load_trunk(work, hashes)
    heldout = evaluate(trunk, hashes, streams.encode((work / "heldout.txt").read_text()), 512)
    train = evaluate(trunk, hashes, streams.text, 512, limit=20)
    lines = [
        f"- training-text perplexity (trainer, 20 windows of 512): {math.exp(train):.2f}",
        f"- held-out perplexity (trainer, 16 windows of 512): {math.exp(heldout):.2f}",
    ]
    if (work / "drafter.pt").exists():
        lines.append(f"- tokens per verification, greedy, 5 drafts: {verification_yield(work, llm, hashes):.2f}")
    last = json.loads((work / "trunk.jsonl").read_text().splitlines()[-1])
    return "\n".join([*lines, f"- trunk steps: {last['step']}", "", *continuations(llm)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    a = parser.parse_args()
    print(report(a.work, a.model))
