"""Train the trunk. Resumes from WORK/trunk.pt if it is there.

    python -m train_tiny.train --work WORK [--minutes 60] [--steps 2000]

Stops at the step or minute that comes first; the rate's decay follows whichever is nearer its end. Appends to
WORK/trunk.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deepinfer_core.tokenizer import load_tokenizer
from deepinfer_plugin_deepseek.engram import HashLayout, TokenHasher, compressed_token_map

from .data import SEPARATOR, Streams
from .layers import Numerics
from .model import TinyModel, compile_parts
from .optim import Optimizer
from .settings import BOS, TEXT, model_config

SEED = 20260
BALANCE_STEP = 0.002
INDEX_LOSS_WEIGHT = 0.1


class Hashes:
    """N-gram table rows of token batches."""

    def __init__(self, work: Path, **changes: Any) -> None:
        token_map = compressed_token_map(load_tokenizer(work), changes.get("vocab_size", TEXT["vocab_size"]))
        self.config = model_config(int(token_map.max()) + 1, **changes)
        self._hasher = TokenHasher(self.config.engram, HashLayout(self.config.engram), token_map)

    def rows(self, tokens: Tensor) -> dict[int, Tensor]:
        """``tokens [B,T]`` → ``{layer: [B,T,C]}``."""
        batch, length = tokens.shape
        depth = self.config.engram.max_ngram
        padded = functional.pad(tokens, (depth - 1, 0), value=-1)
        context = torch.stack([padded[:, depth - 1 - k : depth - 1 - k + length] for k in range(depth)], -1)
        rows = self._hasher.rows(context.flatten(0, 1))
        return {layer: value.unflatten(0, (batch, length)) for layer, value in rows.items()}


def batches(streams: Streams, done: int, size: int, length: int) -> Iterator[tuple[int, Tensor]]:
    """Endless ``(epoch, [size, length + 1])``, from batch ``done`` on."""
    epoch = 0
    while True:
        windows = streams.epoch(epoch, length)
        for start in range(0, len(windows) - size + 1, size):
            if done:
                done -= 1
                continue
            yield epoch, torch.from_numpy(windows[start : start + size].astype(np.int64))
        epoch += 1


def text_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, nats per token; ``hidden [B,T,d]``."""
    logits = functional.linear(hidden.flatten(0, 1), weight.to(torch.bfloat16)).float()
    return functional.cross_entropy(logits, targets.flatten())


@torch.no_grad()
def evaluate(model: TinyModel, hashes: Hashes, tokens: list[int], length: int, limit: int = 16) -> float:
    """Nats per token over the first ``limit`` windows of ``length``, each after a begin token."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, min(len(tokens), limit * length), length):
        window = torch.tensor([[BOS, *tokens[start : start + length]]])
        inputs, targets = window[:, :-1], window[:, 1:]
        hidden = model(inputs, hashes.rows(inputs), Numerics())[0]
        logits = model.logits(hidden, Numerics())
        total += float(functional.cross_entropy(logits[0], targets[0], reduction="sum"))
        count += targets.numel()
    model.train()
    return total / count


def rate(progress: float, step: int, warmup: int = 40, floor: float = 0.02) -> float:
    """Share of the peak rate: linear warm-up, flat, then a linear decay over the second half."""
    decay = 1.0 if progress < 0.5 else max(floor, 2 * (1 - progress))
    return min(1.0, (step + 1) / warmup) * decay


class Run:
    """A training run with its checkpoint and its log."""

    def __init__(self, work: Path, model: TinyModel, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.seconds = 0.0
        self._file, self._log = work / "trunk.pt", work / "trunk.jsonl"
        if self._file.exists():
            saved = torch.load(self._file)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            self.seconds = saved["seconds"]

    def save(self) -> None:
        """Write the checkpoint, never half of it."""
        fresh = self._file.with_suffix(".new")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "seconds": self.seconds}
        torch.save(state, fresh)
        fresh.replace(self._file)

    def log(self, **values: Any) -> None:
        """Append a line."""
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()})
        print(line, flush=True)
        with self._log.open("a") as file:
            file.write(line + "\n")


def train(work: Path, *, minutes: float, steps: int, size: int, length: int, compiled: bool, select_from: float) -> None:
    """The whole run."""
    torch.manual_seed(SEED)
    hashes, streams = Hashes(work), Streams(work)
    model = TinyModel(hashes.config)
    optimizer = Optimizer(model, matrix=0.02, table=0.01, other=0.004)
    run = Run(work, model, optimizer)
    loss_of = text_loss
    if compiled:
        compile_parts()
        loss_of = torch.compile(text_loss, dynamic=False)
    heldout = streams.encode((work / "heldout.txt").read_text())
    checkpointed, losses = run.seconds, []
    for epoch, windows in batches(streams, optimizer.steps, size, length):
        began, cpu, step = time.monotonic(), time.process_time(), optimizer.steps
        progress = max(step / steps, run.seconds / 60 / minutes)
        if progress >= 1:
            break
        inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        numerics = Numerics(select=progress >= select_from)
        hidden, _, loads, index = model(inputs, hashes.rows(inputs), numerics)
        loss = loss_of(hidden, model.head.weight, targets)
        (loss + INDEX_LOSS_WEIGHT * index).backward()
        optimizer.step(rate(progress, step))
        model.balance(loads, BALANCE_STEP)
        losses.append(loss.item())
        run.seconds += time.monotonic() - began
        if (step + 1) % 20 == 0 or step < 5:
            run.log(
                step=step + 1, epoch=epoch, minutes=run.seconds / 60, loss=sum(losses) / len(losses),
                index=index.item(), rate=rate(progress, step), busiest=_busiest(loads),
                tokens_per_second=size * length / (time.monotonic() - began), cpu_seconds=time.process_time() - cpu,
            )  # fmt: skip
            losses = []
        if run.seconds - checkpointed > 180:
            run.save()
            checkpointed = run.seconds
    run.save()
    report = {"heldout_loss": evaluate(model, hashes, heldout, length), "step": optimizer.steps}
    run.log(**report, train_loss=evaluate(model, hashes, streams.text, length), separator=len(SEPARATOR))


def _busiest(loads: list[Tensor]) -> float:
    """Largest share of a layer's rows that one expert got."""
    return max(float(counts.max() / counts.sum()) for counts in loads)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--select-from", type=float, default=0.8, help="progress at which the indexer's choice counts")
    parser.add_argument("--no-compile", action="store_true")
    a = parser.parse_args()
    train(
        a.work, minutes=a.minutes, steps=a.steps, size=a.batch, length=a.length,
        compiled=not a.no_compile, select_from=a.select_from,
    )  # fmt: skip
