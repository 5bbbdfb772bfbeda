"""The native sampler against the usual torch composition, and greedy against one read of the logits.

Run: python benchmarks/bench_sampler.py [--rows 64] [--vocab 129280] [--threads N]

Prints best-of-several times and their ratios, all from one run with the same number of threads. ``flat`` logits
are N(0, 1), the hard case: top-p 0.9 keeps most of the vocabulary. ``peaked`` ones are N(0, 3), nearer to a model's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.sampling_params import SamplingParams


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Shortest of ``repeats`` runs after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def torch_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Sort, cumulative sum, mask, scatter back, multinomial."""
    ordered, ids = torch.sort(logits, dim=-1, descending=True)
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    ordered = ordered.masked_fill(before >= top_p, float("-inf"))
    kept = torch.empty_like(logits).scatter_(-1, ids, ordered)
    return torch.multinomial(torch.softmax(kept, dim=-1), 1)


def torch_full(logits: torch.Tensor) -> torch.Tensor:
    """Softmax and multinomial."""
    return torch.multinomial(torch.softmax(logits, dim=-1), 1)


def torch_penalties(logits: torch.Tensor, prompts: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Counts of the whole vocabulary, then repetition 1.2, frequency 0.5 and presence 0.5, then greedy."""
    counts = torch.zeros_like(logits).scatter_add_(1, outputs, torch.ones(outputs.shape))
    seen = torch.zeros_like(logits).scatter_(1, prompts, 1.0) + counts > 0
    logits = torch.where(seen, torch.where(logits > 0, logits / 1.2, logits * 1.2), logits)
    return (logits - 0.5 * counts - 0.5 * (counts > 0)).argmax(dim=-1)


PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 500
PENALTIES = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5}


def compare(name: str, logits: torch.Tensor, sampler: DefaultSampler) -> None:
    """Print one table."""

    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(logits.shape[1], (logits.shape[0], PROMPT_TOKENS), generator=generator)
    outputs = torch.randint(logits.shape[1], (logits.shape[0], OUTPUT_TOKENS), generator=generator)

    def native(**params: Any) -> float:
        batch = batch_of(
            [
                Drawn(SamplingParams(**params), seed, prompt, output)
                for seed, (prompt, output) in enumerate(zip(prompts.numpy(), outputs.numpy(), strict=True))
            ]
        )
        return best_seconds(lambda: sampler.sample(logits, batch), 10)

    read = best_seconds(lambda: logits.max(), 10)
    cases = [
        ("greedy", native(temperature=0), "one read (max)", read),
        ("top_p 0.9", native(top_p=0.9), "torch", best_seconds(lambda: torch_top_p(logits, 0.9), 3)),
        ("no filter", native(), "torch", best_seconds(lambda: torch_full(logits), 3)),
        ("top_k 50", native(top_k=50), "torch top_p 0.9", 0.0),
        ("greedy + 5 logprobs", native(temperature=0, logprobs=5), "one read (max)", read),
        ("greedy + 10 biases", native(temperature=0, logit_bias=dict.fromkeys(range(10), 1.0)), "one read (max)", read),
        ("greedy, 1000 allowed", native(temperature=0, allowed_token_ids=[*range(1000)]), "one read (max)", read),
        (
            "greedy + penalties",
            native(temperature=0, **PENALTIES),
            "torch",
            best_seconds(lambda: torch_penalties(logits, prompts, outputs), 3),
        ),
    ]
    cases[3] = (*cases[3][:3], cases[1][3])
    print(f"\n{name}: {logits.shape[0]} x {logits.shape[1]} logits, {torch.get_num_threads()} threads")
    for case, ours, other, theirs in cases:
        ratio = f"{theirs / ours:.1f}x faster" if theirs > ours else f"{ours / theirs:.2f}x its time"
        print(f"  {case:<20} {1e3 * ours:9.2f} ms   {other:<16} {1e3 * theirs:9.2f} ms   {ratio}")


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=129_280)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sampler = DefaultSampler(args.threads)
    logits = torch.randn(args.rows, args.vocab, generator=torch.Generator().manual_seed(0))
    compare("flat", logits, sampler)
    compare("peaked", logits * 3, sampler)


if __name__ == "__main__":
    main()
