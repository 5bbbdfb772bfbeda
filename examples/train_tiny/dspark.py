"""The drafter: three window-only stages that read the frozen trunk's features and guess five tokens at once.

    python -m train_tiny.dspark --work WORK [--minutes 24] [--steps 2600]

Targets are the trunk's own distributions, so that drafts match what the trunk would say. Resumes from
WORK/drafter.pt; appends to WORK/drafter.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from . import quant
from .attention import Attention
from .data import FOCUS_FROM_EPOCH, Streams
from .experts import MixtureOfExperts
from .layers import Dense, HyperConnection, Norm, Numerics, collapse, expand, rotate
from .model import TinyModel, compile_parts
from .optim import Optimizer
from .train import BALANCE_STEP, SEED, Hashes, rate


class Stage(nn.Module):
    """One stage: a window-only layer whose past keys come from the trunk."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        hidden, eps, settings = config.hidden_size, config.rms_norm_eps, config.dspark
        self.attn_norm, self.ffn_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.attn = Attention(config, 0, owns_kv=False, has_indexer=False)
        self.ffn = MixtureOfExperts(config, settings.num_routed_experts, settings.num_experts_per_token)
        self.hc_attn, self.hc_ffn = HyperConnection(config, 2 * index), HyperConnection(config, 2 * index + 1)

    def main_keys(self, features: Tensor, table: Tensor, numerics: Numerics) -> Tensor:
        """Normed trunk features ``[B,T,d]`` → keys ``[B,T,D]``."""
        keys = rotate(self.attn.kv_norm(self.attn.wkv(features, numerics)), table)
        return quant.straight_through(keys, quant.fp8_groups) if numerics.quantize else keys

    def forward(
        self, streams: Tensor, pre: Tensor, past: Tensor, known: Tensor, table: Tensor, numerics: Numerics
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``streams [A,5,m,d]``, past keys ``[A,W,D]`` of which ``known [A,W]`` exist, ``table [2,A,5,R/2]``."""
        x, (pre, post, comb) = collapse(streams, pre), self.hc_attn(streams, numerics)
        out = self._attend(self.attn_norm(x), past, known, table, numerics)
        streams = expand(out, streams, post, comb)
        x, (pre, post, comb) = collapse(streams, pre), self.hc_ffn(streams, numerics)
        y, counts = self.ffn(self.ffn_norm(x), numerics)
        return expand(y, streams, post, comb), pre, counts

    def _attend(self, x: Tensor, past: Tensor, known: Tensor, table: Tensor, numerics: Numerics) -> Tensor:
        """Every draft row sees the past and all rows of its block."""
        attn, heads = self.attn, self.attn.settings.num_heads
        q = attn.wq_b(attn.q_norm(attn.wq_a(x, numerics)), numerics).unflatten(-1, (heads, -1)).transpose(1, 2)
        q, own = rotate(q, table[:, :, None]), rotate(attn.kv_norm(attn.wkv(x, numerics)), table)
        if numerics.quantize:
            own = quant.straight_through(own, quant.fp8_groups)
        keys = torch.cat([past, own], 1)
        seen = functional.pad(known, (0, own.shape[1]), value=True)[:, None, None]
        scores = (q.float() @ keys[:, None].float().mT) * attn.settings.head_dim**-0.5
        sink = attn.attn_sink[:, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores.masked_fill(~seen, -1e30), sink], -1).softmax(-1)[..., :-1]
        out = (weights.to(torch.bfloat16) @ keys[:, None]).to(torch.bfloat16)
        return attn.project(out, table[:, :, None], numerics)


class Drafter(nn.Module):
    """All stages with their heads. Embedding and output head are the trunk's."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        settings, hidden = config.dspark, config.hidden_size
        self.config, self.settings = config, settings
        self.main_proj = Dense(hidden * len(settings.target_layer_ids), hidden, "fp8")
        self.main_norm = Norm(hidden, config.rms_norm_eps)
        self.stages = nn.ModuleList(Stage(config, index) for index in range(settings.num_stages))
        self.norm = Norm(hidden, config.rms_norm_eps)
        self.markov_embed = nn.Embedding(config.vocab_size, settings.markov_rank)
        nn.init.normal_(self.markov_embed.weight, std=0.1)
        self.markov_head = Dense(settings.markov_rank, config.vocab_size)
        self.confidence = Dense(hidden + settings.markov_rank, 1)

    def past(self, features: list[Tensor], table: Tensor, numerics: Numerics) -> list[Tensor]:
        """Every stage's keys ``[B,T,D]`` from the target layers' features ``[B,T,d]``."""
        main = self.main_norm(self.main_proj(torch.cat(features, -1), numerics))
        return [stage.main_keys(main, table, numerics) for stage in self.stages]

    def hidden(
        self, trunk: TinyModel, first: Tensor, past: list[Tensor], known: Tensor, table: Tensor, numerics: Numerics
    ) -> tuple[Tensor, list[Tensor]]:
        """Tokens ``first [A]`` at the blocks' first places → collapsed hidden ``[A,5,d]`` and expert loads."""
        mult = self.config.hyper_connection.mult
        tokens = torch.full((len(first), self.settings.block_size), self.settings.noise_token_id)
        tokens[:, 0] = first
        streams = trunk.embed(tokens).detach().to(torch.bfloat16)[:, :, None].repeat(1, 1, mult, 1)
        pre = torch.zeros(*tokens.shape, mult)
        pre[..., 0] = 1.0
        loads = []
        for stage, keys in zip(self.stages, past, strict=True):
            streams, pre, counts = stage(streams, pre, keys, known, table, numerics)
            loads.append(counts)
        return collapse(streams, pre), loads

    def outputs(self, trunk: TinyModel, hidden: Tensor, before: Tensor, numerics: Numerics) -> tuple[Tensor, Tensor]:
        """Hidden rows ``[...,d]`` and the tokens just before their guesses → logits ``[...,V]``, confidence logits."""
        memory = self.markov_embed(before).to(torch.bfloat16)
        logits = product_f32(self.norm(hidden), trunk.head.weight.detach()) + product_f32(
            memory, self.markov_head.weight
        )
        confidence = product_f32(torch.cat([hidden, memory], -1), self.confidence.weight)
        return logits, confidence[..., 0]


def product_f32(x: Tensor, weight: Tensor) -> Tensor:
    """The heads' products: bf16 operands, f32 result."""
    return functional.linear(x, weight.to(torch.bfloat16)).float()


def windows_of(values: Tensor, ends: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` rows of ``values [B,T,D]`` up to ``ends [B,A]``: ``[B A, width, D]``, and which exist."""
    at = ends[..., None] - torch.arange(width - 1, -1, -1)
    batch = torch.arange(len(values))[:, None, None]
    return values[batch, at.clamp_min(0)].flatten(0, 1), (at >= 0).flatten(0, 1)


class Anchors:
    """Places ``[B,A]`` after which blocks are drafted, with what a drafter may know there."""

    def __init__(self, drafter: Drafter, trunk: TinyModel, places: Tensor, features: list[Tensor]) -> None:
        self._drafter, self._features, self.places = drafter, features, places
        block, self._width = drafter.settings.block_size, drafter.config.attention.window_size
        self._table = trunk.tables(features[0].shape[1] + block + 1, 0)[0]
        self.rows = places[..., None] + 1 + torch.arange(block)
        """``[B,A,5]`` positions of the draft rows."""

    def hidden(self, trunk: TinyModel, tokens: Tensor, numerics: Numerics) -> tuple[Tensor, list[Tensor]]:
        """Draft hidden states ``[B A, 5, d]`` given ``tokens [B,T]``."""
        past = self._drafter.past(self._features, self._table[:, : self._features[0].shape[1]], numerics)
        pairs = [windows_of(keys, self.places, self._width) for keys in past]
        first = tokens.gather(1, self.rows[..., 0]).flatten()
        table = self._table[:, self.rows.flatten(0, 1)]
        return self._drafter.hidden(trunk, first, [keys for keys, _ in pairs], pairs[0][1], table, numerics)


class Bank:
    """Windows of training text with what the frozen trunk makes of them, computed once."""

    def __init__(self, trunk: TinyModel, hashes: Hashes, windows: Tensor, size: int = 8) -> None:
        parts = [features_of(trunk, hashes, part) for part in windows.split(size) if len(part) == size]
        self.tokens = windows[: len(parts) * size]
        self.hidden = torch.cat([hidden for hidden, _ in parts])
        self.features = [torch.cat(layer) for layer in zip(*(features for _, features in parts), strict=True)]

    def draw(self, count: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """``count`` random windows: tokens ``[B,T]``, final hidden ``[B,T,d]``, features."""
        chosen = torch.randint(0, len(self.tokens), (count,))
        return self.tokens[chosen], self.hidden[chosen], [feature[chosen] for feature in self.features]


@torch.no_grad()
def features_of(trunk: TinyModel, hashes: Hashes, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The frozen trunk's final hidden ``[B,T,d]`` and its target layers' features, of ``tokens [B,T]``."""
    hidden, features, _, _ = trunk(tokens, hashes.rows(tokens), Numerics())
    return hidden, [features[layer] for layer in trunk.config.dspark.target_layer_ids]


def draft_loss(
    drafter: Drafter, trunk: TinyModel, sample: tuple[Tensor, Tensor, list[Tensor]], count: int
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Loss of ``count`` random anchors per sequence, expert loads, and the share of right guesses by place ``[5]``."""
    tokens, hidden, features = sample
    batch, length = tokens.shape
    block, numerics = drafter.settings.block_size, Numerics()
    anchors = Anchors(drafter, trunk, torch.randint(0, length - block - 1, (batch, count)), features)
    rows = anchors.rows.flatten(1)
    with torch.no_grad():
        aim = trunk.logits(hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1])), numerics)
        aim = aim.view(batch * count, block, -1)
    drafts, loads = anchors.hidden(trunk, tokens, numerics)
    before = tokens.gather(1, rows).view(batch * count, block)
    logits, confidence = drafter.outputs(trunk, drafts, before, numerics)
    # Later guesses count only if the earlier ones were right, so they weigh less.
    weights = 0.85 ** torch.arange(block)
    loss = (functional.cross_entropy(logits.mT, aim.softmax(-1).mT, reduction="none") * weights).mean()
    right = (logits.argmax(-1) == aim.argmax(-1)).float()
    return loss + 0.1 * functional.binary_cross_entropy_with_logits(confidence, right), loads, right.mean(0)


@torch.no_grad()
def tokens_per_verification(
    drafter: Drafter, trunk: TinyModel, hashes: Hashes, tokens: list[int], prompt: int
) -> float:
    """Mean tokens that one verification yields while decoding ``tokens`` greedily after ``prompt`` of them."""
    block, numerics = drafter.settings.block_size, Numerics()
    sequence = torch.tensor([tokens])
    _, features = features_of(trunk, hashes, sequence)
    place, steps, start = prompt - 1, 0, prompt - 1
    while place + 1 + block < len(tokens):
        anchors = Anchors(drafter, trunk, torch.tensor([[place]]), features)
        drafts, _ = anchors.hidden(trunk, sequence, numerics)
        accepted, last = 0, tokens[place + 1]
        for row in range(block):
            logits, _ = drafter.outputs(trunk, drafts[0, row], torch.tensor(last), numerics)
            last = int(logits.argmax())
            if last != tokens[place + 2 + row]:
                break
            accepted += 1
        place, steps = place + accepted + 1, steps + 1
    return (place - start) / max(steps, 1)


def load_trunk(work: Path, hashes: Hashes) -> TinyModel:
    """The trained trunk, frozen."""
    trunk = TinyModel(hashes.config)
    trunk.load_state_dict(torch.load(work / "trunk.pt")["model"])
    return trunk.eval().requires_grad_(False)


def train(a: argparse.Namespace) -> None:
    """The whole run."""
    torch.manual_seed(SEED + 1)
    torch.set_num_threads(1)
    hashes, streams = Hashes(a.work), Streams(a.work)
    trunk, drafter = load_trunk(a.work, hashes), Drafter(hashes.config)
    optimizer = Optimizer(drafter, matrix=0.02, table=0.01, other=0.004)
    file, log, seconds = a.work / "drafter.pt", a.work / "drafter.jsonl", 0.0
    if file.exists():
        saved = torch.load(file)
        drafter.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        seconds = saved["seconds"]
    if not a.no_compile:
        compile_parts()
        Stage.forward = torch.compile(Stage.forward, dynamic=False)  # type: ignore[method-assign]
    epochs = range(FOCUS_FROM_EPOCH, FOCUS_FROM_EPOCH + 3)
    windows = np.concatenate([streams.epoch(epoch, a.length) for epoch in epochs])
    chosen = np.random.default_rng(SEED).permutation(len(windows))[: a.windows]
    bank = Bank(trunk, hashes, torch.from_numpy(windows[chosen, :-1].astype(np.int64)))
    checkpointed, progress = seconds, 0.0
    while progress < 1:
        began, step = time.monotonic(), optimizer.steps
        torch.manual_seed(SEED + step)
        loss, loads, right = draft_loss(drafter, trunk, bank.draw(a.batch), a.anchors)
        loss.backward()
        optimizer.step(rate(progress, step))
        for stage, counts in zip(drafter.stages, loads, strict=True):
            stage.ffn.balance(counts, BALANCE_STEP)
        seconds += time.monotonic() - began
        progress = max(optimizer.steps / a.steps, seconds / 60 / a.minutes)
        if (step + 1) % 20 == 0:
            values = {"step": step + 1, "minutes": round(seconds / 60, 2), "loss": round(loss.item(), 4)}
            line = json.dumps({**values, "right": [round(share, 3) for share in right.tolist()]})
            print(line, flush=True)
            with log.open("a") as stream:
                stream.write(line + "\n")
        if progress >= 1 or seconds - checkpointed > 120:
            state = {"model": drafter.state_dict(), "optimizer": optimizer.state_dict(), "seconds": seconds}
            torch.save(state, file)
            checkpointed = seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=24)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--windows", type=int, default=1200, help="windows of training text to learn from")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--anchors", type=int, default=64, help="blocks drafted per window and step")
    parser.add_argument("--no-compile", action="store_true")
    train(parser.parse_args())
