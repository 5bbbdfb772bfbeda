"""What the engine makes of an exported checkpoint: the figures of its card.

    python -m train_tiny.evaluate FOLDER

FOLDER holds the texts too: ``train_sample.txt``, the beginning of what the model learnt, and ``heldout.txt``, the
entries that it never saw. The figures depend on the checkpoint and the engine only, so they come out the same again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deepinfer_core import LLM, SamplingParams

from .data import SEPARATOR

sys.path.append(str(Path(__file__).parents[1]))
import eval_ppl

PROMPTS = Path(__file__).with_name("prompts.txt")
#: File and tokens per window of every perplexity.
PERPLEXITIES = (("train_sample.txt", 256), ("train_sample.txt", 1024), ("heldout.txt", 256))


def perplexity(llm: LLM, folder: Path, name: str, window: int) -> float:
    """Perplexity of one of the folder's texts."""
    text = (folder / name).read_text(encoding="utf-8")
    return float(eval_ppl.evaluate(llm, text, window=window)["perplexity"])


def continuations(llm: LLM, length: int = 60) -> dict[str, str]:
    """Greedy continuations by prompt."""
    prompts = PROMPTS.read_text(encoding="utf-8").splitlines()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=length), use_tqdm=False)
    return {prompt: output.outputs[0].text for prompt, output in zip(prompts, outputs, strict=True)}


def heldout_prompts(folder: Path, words: int = 24) -> Iterator[str]:
    """The beginning of every held-out entry that is longer."""
    for text in (folder / "heldout.txt").read_text(encoding="utf-8").split(SEPARATOR):
        start = text.split(" ")[:words]
        if len(start) == words:
            yield " ".join(start)


def tokens_per_verification(llm: LLM, prompts: Sequence[str], length: int = 96) -> float:
    """Mean tokens that a verification yields, over greedy continuations of ``prompts``."""
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    found = [output.metrics.speculation for output in llm.generate(prompts, params, use_tqdm=False)]
    return 1 + sum(one.num_accepted for one in found) / sum(one.num_verifications for one in found)


def verification_yields(model: Path, drafts: int = 5) -> dict[str, float]:
    """Of the beginnings of held-out entries, and of the prompts that the card shows."""
    with LLM(str(model), speculate=drafts, disable_log_stats=True) as llm:
        return {
            "held-out prompts": tokens_per_verification(llm, list(heldout_prompts(model))),
            "prompts below": tokens_per_verification(llm, PROMPTS.read_text(encoding="utf-8").splitlines()),
        }


def figures(model: Path) -> dict[str, Any]:
    """Everything, as plain data."""
    with LLM(str(model), speculate="off", disable_log_stats=True) as llm:
        found = {f"{name} {window}": perplexity(llm, model, name, window) for name, window in PERPLEXITIES}
        texts = continuations(llm)
    return {"perplexity": found, "tokens_per_verification": verification_yields(model), "continuations": texts}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="FOLDER", type=Path)
    print(json.dumps(figures(parser.parse_args().model), indent=1, ensure_ascii=False))
