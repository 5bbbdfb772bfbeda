"""Write the card of an exported checkpoint, FOLDER/README.md, with its texts, figures, logs and loss curves beside it.

    python -m train_tiny.report --work WORK --model FOLDER      # needs matplotlib

Figures come from the engine (``train_tiny.evaluate``); the perplexities stand beside the training model's.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch

from .data import Streams
from .dspark import Drafter, load_trunk
from .evaluate import figures
from .plot import plot
from .train import Hashes, evaluate

CARD = Path(__file__).with_name("card.md")
#: Characters of the training text that go with the checkpoint.
SAMPLE = 24_000
_TEXTS = {"train_sample.txt": "training text", "heldout.txt": "held-out entries"}


def copy_texts(work: Path, model: Path) -> None:
    """What the figures are measured on."""
    (model / "train_sample.txt").write_text((work / "train.txt").read_text()[:SAMPLE])
    shutil.copyfile(work / "heldout.txt", model / "heldout.txt")


def figure_lines(work: Path, model: Path, found: dict[str, Any]) -> list[str]:
    """The card's list."""
    hashes, streams = Hashes(work), Streams(work)
    trunk = load_trunk(work, hashes)
    lines = []
    for key, value in found["perplexity"].items():
        name, window = key.split(" ")
        tokens = streams.encode((model / name).read_text())
        trainer = math.exp(evaluate(trunk, hashes, tokens, int(window), limit=len(tokens)))
        lines.append(
            f"- perplexity of the {_TEXTS[name]} in windows of {window}: {value:.3f} by the engine, "
            f"{trainer:.3f} by the training model"
        )
    yields = "; ".join(f"{value:.2f} on the {name}" for name, value in found["tokens_per_verification"].items())
    return [*lines, f"- tokens per verification, 5 drafts, greedy: {yields}"]


def card(work: Path, model: Path, found: dict[str, Any]) -> str:
    """The card."""
    config = Hashes(work).config
    parameters = sum(p.numel() for part in (load_trunk(work, Hashes(work)), Drafter(config)) for p in part.parameters())
    log = [json.loads(line) for line in (work / "trunk.jsonl").read_text().splitlines()]
    return CARD.read_text().format(
        parameters=f"{parameters / 1e6:.1f}",
        stored=f"{sum(file.stat().st_size for file in model.glob('*.safetensors')) / 1e6:.1f}",
        steps=log[-1]["step"],
        minutes=f"{max(line.get('minutes', 0) for line in log):.0f}",
        figures="\n".join(figure_lines(work, model, found)),
        continuations="\n".join(
            f"- **{prompt}**{text}".replace("\n", " ") for prompt, text in found["continuations"].items()
        ),
    )


def report(work: Path, model: Path) -> None:
    """Everything that goes beside the checkpoint."""
    torch.set_num_threads(1)
    copy_texts(work, model)
    found = figures(model)
    (model / "figures.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (model / "README.md").write_text(card(work, model, found))
    for file in work.glob("*.jsonl"):
        shutil.copyfile(file, model / file.name)
    plot(work, model / "curves.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    a = parser.parse_args()
    report(a.work, a.model)
