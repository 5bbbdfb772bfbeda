"""Cost of one scheduler step with no model behind it, in microseconds.

    python benchmarks/bench_scheduler.py [--seqs 64,256,1024] [--context 1000] [--steps 200] [--prompts 1000]

Decode: N running requests of `context` tokens each decode one token per step. One step is release_deferred() +
schedule() + reading every array of the plan + commit() + take_finished(). Prefill: the same step while `prompts`
requests of 512 tokens pass through a budget of 2048 rows, preemptions included. Making up the sampled tokens is
not counted.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from deepinfer_core._C import Scheduler, StepPlan

ARRAYS = (
    "handles", "slots", "starts", "num_tokens", "is_decode", "samples", "new_pages", "block_table_offsets",
    "block_table", "token_ids", "positions", "query_offsets", "history",
)  # fmt: skip


def timed_step(scheduler: Scheduler, times: list[float]) -> StepPlan:
    """One engine step; appends its microseconds."""
    begin = time.perf_counter_ns()
    scheduler.release_deferred()
    plan = scheduler.schedule()
    for name in ARRAYS:
        getattr(plan, name)
    middle = time.perf_counter_ns()
    tokens = np.full(plan.num_samples, 5, np.int32)
    resume = time.perf_counter_ns()
    scheduler.commit(plan, tokens)
    scheduler.take_finished()
    times.append((middle - begin + time.perf_counter_ns() - resume) / 1e3)
    return plan


def report(name: str, times: list[float]) -> None:
    """Print median and 90th percentile."""
    median, tail = np.percentile(times, [50, 90])
    print(f"{name:32s} median {median:8.1f} us   p90 {tail:8.1f} us   steps {len(times)}")


def decode(num_seqs: int, context: int, steps: int) -> None:
    """Steady decoding of `num_seqs` requests."""
    pages = num_seqs * ((context + steps) // 128 + 2) + 1
    scheduler = Scheduler(
        num_pages=pages,
        num_slots=num_seqs + 1,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(8192, num_seqs),
        max_model_len=context + steps + 64,
        max_chunk_tokens=8192,
        token_history=3,
    )
    for i in range(num_seqs):
        scheduler.submit(str(i), np.full(context, i, np.int32), max_tokens=steps + 50)
    warm: list[float] = []
    while timed_step(scheduler, warm).num_samples < num_seqs:
        pass
    times: list[float] = []
    for _ in range(steps):
        timed_step(scheduler, times)
    report(f"decode, {num_seqs} seqs x {context}", times)


def prefill(prompts: int) -> None:
    """Many prompts through a cache that holds about 64 of them."""
    scheduler = Scheduler(
        num_pages=64 * 5,
        num_slots=257,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=2048,
        max_chunk_tokens=2048,
        token_history=3,
    )
    submitted: list[float] = []
    for i in range(prompts):
        tokens = np.full(512, i, np.int32)
        begin = time.perf_counter_ns()
        scheduler.submit(str(i), tokens, max_tokens=200)
        submitted.append((time.perf_counter_ns() - begin) / 1e3)
    report("submit, 512 tokens", submitted)
    times: list[float] = []
    while scheduler.has_unfinished():
        timed_step(scheduler, times)
    report(f"mixed, {prompts} prompts", times)
    print(f"{'':32s} preemptions {scheduler.num_preemptions}")


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", default="64,256,1024")
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=1000)
    arguments = parser.parse_args()
    for num_seqs in map(int, arguments.seqs.split(",")):
        decode(num_seqs, arguments.context, arguments.steps)
    prefill(arguments.prompts)


if __name__ == "__main__":
    main()
