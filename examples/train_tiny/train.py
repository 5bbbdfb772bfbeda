"""Train the trunk. Resumes from WORK/trunk.pt if it is there.

    python -m train_tiny.train --work WORK [--minutes 76] [--steps 2500] [--processes 2]

Stops at the step or minute that comes first; the rate's decay follows whichever is nearer its end. Appends to
WORK/trunk.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

from deepinfer_core.tokenizer import load_tokenizer
from deepinfer_plugin_deepseek.engram import HashLayout, TokenHasher, compressed_token_map

from .data import Streams
from .layers import Numerics
from .model import TinyModel, compile_parts
from .optim import Optimizer
from .settings import BOS, TEXT, model_config

SEED = 20260
BALANCE_STEP = 0.002
INDEX_LOSS_WEIGHT = 0.1
#: In the first and in the second half: share of input tokens that are replaced by others of the batch, and share of
#: what sublayers add that is left out.
NOISE, DROPOUT = (0.05, 0.02), (0.1, 0.04)


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


def noisy(tokens: Tensor, share: float) -> Tensor:
    """``tokens [B,T]`` with a share replaced, so that recitation does not hang on every single one."""
    others = tokens.flatten()[torch.randint(tokens.numel(), tokens.shape)]
    replaced = (torch.rand(tokens.shape) < share) & (tokens != BOS)
    return torch.where(replaced, others, tokens)


def text_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy, nats per token; ``hidden [B,T,d]``."""
    logits = functional.linear(hidden.flatten(0, 1), weight.to(torch.bfloat16)).float()
    return functional.cross_entropy(logits, targets.flatten())


@torch.compiler.set_stance("force_eager")
@torch.no_grad()
def evaluate(model: TinyModel, hashes: Hashes, tokens: list[int], length: int, limit: int = 16) -> float:
    """Nats per token over the first ``limit`` windows of ``length``, each after a begin token."""
    model.eval()
    total, count, exact = 0.0, 0, Numerics(precise=True)
    windows = [torch.tensor([BOS, *tokens[at : at + length]]) for at in range(0, len(tokens), length)][:limit]
    while windows:
        # The last window may be shorter than the others.
        size = 8 if len(windows) > 8 else max(len(windows) - 1, 1)
        part, windows = torch.stack(windows[:size]), windows[size:]
        inputs, targets = part[:, :-1], part[:, 1:]
        logits = model.logits(model(inputs, hashes.rows(inputs), exact)[0], exact)
        total += float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
        count += targets.numel()
    model.train()
    return total / count


def rate(progress: float, step: int, warmup: int = 20, floor: float = 0.02) -> float:
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


class Group:
    """The processes of a run: each has its own share of a batch and sums gradients with the others.

    One thread each: on busy machines threads that wait for each other in every product cost far more.
    """

    def __init__(self, rank: int, size: int, work: Path) -> None:
        self.rank, self.size = rank, size
        torch.set_num_threads(1)
        if size > 1:
            meeting = f"file://{(work / 'processes').resolve()}"
            distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)

    def share(self, windows: Tensor) -> Tensor:
        """This process's part of a batch."""
        return windows.chunk(self.size)[self.rank]

    def agree(self, value: float) -> float:
        """The first process's value."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(shared, 0)
        return float(shared)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace f32 tensors by their means over the processes."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.size
        for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))


def train(rank: int, a: argparse.Namespace) -> None:
    """One process of the run."""
    torch.manual_seed(SEED)
    group = Group(rank, a.processes, a.work)
    hashes, streams = Hashes(a.work), Streams(a.work)
    model = TinyModel(hashes.config)
    model.engram_dropout = a.engram_dropout
    optimizer = Optimizer(model, matrix=0.02, table=0.01, other=0.004)
    run = Run(a.work, model, optimizer)
    heldout = streams.encode((a.work / "heldout.txt").read_text())
    loss_of = text_loss
    if not a.no_compile:
        compile_parts()
        loss_of = torch.compile(text_loss, dynamic=False)
    checkpointed, losses = run.seconds, []
    for epoch, batch in batches(streams, optimizer.steps, a.batch * a.processes, a.length):
        began, step = time.monotonic(), optimizer.steps
        progress = group.agree(max(step / a.steps, run.seconds / 60 / a.minutes))
        if progress >= 1:
            break
        torch.manual_seed(SEED + step * group.size + rank)
        windows = group.share(batch)
        half = int(progress >= 0.5)
        inputs, targets = noisy(windows[:, :-1], NOISE[half]), windows[:, 1:].contiguous()
        numerics = Numerics(select=progress >= a.select_from, dropout=DROPOUT[half])
        hidden, _, loads, index = model(inputs, hashes.rows(inputs), numerics)
        loss = loss_of(hidden, model.head.weight, targets)
        (loss + INDEX_LOSS_WEIGHT * index).backward()
        loads, shared = [load.float() for load in loads], loss.detach().clone()
        group.average([*(p.grad for p in model.parameters() if p.grad is not None), *loads, shared])
        optimizer.step(rate(progress, step))
        model.balance(loads, BALANCE_STEP)
        losses.append(float(shared))
        run.seconds += time.monotonic() - began
        if rank == 0 and ((step + 1) % 20 == 0 or step < 5):
            run.log(
                step=step + 1, epoch=epoch, minutes=run.seconds / 60, loss=sum(losses) / len(losses),
                index=index.item(), rate=rate(progress, step), busiest=_busiest(loads),
                tokens_per_second=batch[:, 1:].numel() / (time.monotonic() - began),
            )  # fmt: skip
            losses = []
        if rank == 0 and run.seconds - checkpointed > 180:
            run.save()
            run.log(step=step + 1, heldout_loss=evaluate(model, hashes, heldout, a.length, 8))
            checkpointed = run.seconds
    if rank == 0:
        run.save()
        losses = [evaluate(model, hashes, tokens, a.length) for tokens in (streams.text, heldout)]
        run.log(step=optimizer.steps, train_loss=losses[0], heldout_loss=losses[1])


def _busiest(loads: list[Tensor]) -> float:
    """Largest share of a layer's rows that one expert got."""
    return max(float(counts.max() / counts.sum()) for counts in loads)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=76)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="sequences per process and step")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--engram-dropout", type=float, default=0.5, help="mean share of tokens without n-grams")
    parser.add_argument("--select-from", type=float, default=0.5, help="progress at which the indexer's choice counts")
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    (arguments.work / "processes").unlink(missing_ok=True)
    # Before the children load their thread pools.
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.spawn(train, (arguments,), nprocs=arguments.processes)
