"""Loss curves of the logs as a PNG (needs matplotlib).

python -m train_tiny.plot --work WORK --out curves.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def read_log(file: Path, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of the log's lines that have ``name``."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    found = [line for line in lines if name in line]
    return [line["step"] for line in found], [line[name] for line in found]


def plot(work: Path, out: Path) -> None:
    """Trunk and drafter, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("trunk", "drafter"), strict=True):
        axis.set(title=name, xlabel="step", ylabel="nats per token")
        axis.grid(alpha=0.3)
        file = work / f"{name}.jsonl"
        if file.exists():
            for name, label in (("loss", "training, with noise"), ("heldout_loss", "held out")):
                steps, values = read_log(file, name)
                if steps:
                    axis.plot(steps, values, label=label)
            axis.legend()
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    plot(a.work, a.out)
