"""Loss curves of the logs as a PNG (needs matplotlib).

python -m train_tiny.plot --work WORK --out curves.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def read_log(file: Path) -> list[dict[str, Any]]:
    """The log's lines that have a loss."""
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return [line for line in lines if "loss" in line]


def plot(work: Path, out: Path) -> None:
    """Trunk and drafter, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("trunk", "drafter"), strict=True):
        axis.set(title=name, xlabel="step", ylabel="nats per token")
        axis.grid(alpha=0.3)
        file = work / f"{name}.jsonl"
        if file.exists():
            log = read_log(file)
            axis.plot([line["step"] for line in log], [line["loss"] for line in log])
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    plot(a.work, a.out)
