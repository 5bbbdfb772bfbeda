"""Write the card of an exported checkpoint, FOLDER/README.md, its logs and its loss curves beside it.

    python -m train_tiny.report --work WORK --model FOLDER

Perplexities come from the engine (``examples/eval_ppl.py``) and, for comparison, from the training model; the
continuations from the engine; the drafter's yield from its training model on the engine's own greedy output.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from deepinfer_core import LLM, SamplingParams

from .data import SEPARATOR, Streams
from .dspark import Drafter, load_trunk, tokens_per_verification
from .model import TinyModel
from .plot import plot
from .train import Hashes, evaluate

sys.path.append(str(Path(__file__).parents[1]))
import eval_ppl

CARD, PROMPTS = Path(__file__).with_name("card.md"), Path(__file__).with_name("prompts.txt")


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


def perplexities(work: Path, llm: LLM, hashes: Hashes, trunk: TinyModel) -> Iterator[str]:
    """A line per text: the engine's value and the trainer's, on the same windows."""
    streams = Streams(work)
    for name, what, window, limit in (
        ("train.txt", "training text", 256, 16), ("train.txt", "training text", 1024, 4),
        ("heldout.txt", "held-out entries", 256, 16),
    ):  # fmt: skip
        text = (work / name).read_text()
        engine = eval_ppl.evaluate(llm, text, window=window, limit=limit)["perplexity"]
        trainer = math.exp(evaluate(trunk, hashes, streams.encode(text), window, limit))
        command = f"eval_ppl.py FOLDER WORK/{name} --window {window} --limit {limit}"
        yield f"- perplexity of the {what}: {engine:.3f} by `{command}`; the training model says {trainer:.3f}"


def report(work: Path, model: Path) -> str:
    """The card."""
    torch.set_num_threads(1)
    hashes, llm = Hashes(work), LLM(str(model))
    trunk = load_trunk(work, hashes)
    figures = list(perplexities(work, llm, hashes, trunk))
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 1e6
    parameters = sum(value.numel() for value in trunk.parameters())
    if (work / "drafter.pt").exists():
        figures.append(f"- tokens per verification, greedy, 5 drafts: {verification_yield(work, llm, hashes):.2f}")
        parameters += sum(value.numel() for value in Drafter(hashes.config).parameters())
    log = [json.loads(line) for line in (work / "trunk.jsonl").read_text().splitlines()]
    minutes = max(line.get("minutes", 0) for line in log)
    return CARD.read_text().format(
        parameters=f"{parameters / 1e6:.1f}",
        stored=f"{stored:.1f}",
        steps=log[-1]["step"],
        minutes=f"{minutes:.0f}",
        figures="\n".join(figures),
        continuations="\n".join(continuations(llm)),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    a = parser.parse_args()
    (a.model / "README.md").write_text(report(a.work, a.model))
    for file in a.work.glob("*.jsonl"):
        shutil.copyfile(file, a.model / file.name)
    plot(a.work, a.model / "curves.png")
