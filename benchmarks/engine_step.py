"""What the host costs: per step and sequence around a model that computes nothing, and how busy it keeps a device.

    python benchmarks/engine_step.py [--sequences 64,256,1024] [--steps 200] [--repeats 3] [--prompts 10000]

Everything around the model is real: intake, scheduler, input columns, sampling parameters, account, outputs. The model
and the sampler are stubs that answer at once; for the overlap, the device sleeps for 5 ms a step instead.

Per step and sequence, in microseconds: ``plain``; ``logprobs`` (5 per token); ``seeds and penalties``; ``5 drafts``
(a drafter that is always right, so a step gives 6 tokens a sequence; picked depth by depth). Times are the least of
the repeats. Where vLLM can be imported, its scheduler's plan and account of the same steps stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from deepinfer_core import SamplingParams
from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.engine.bell import Bell
from deepinfer_core.engine.engine_core import EngineCore
from deepinfer_core.engine.input_processor import InputProcessor
from deepinfer_core.engine.stats_logger import StatsLogger
from deepinfer_core.interfaces.cache import CacheLayout
from deepinfer_core.interfaces.sampler import SamplerOutput
from deepinfer_core.interfaces.speculator import Proposal
from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_core.worker.device_queue import InlineQueue, ThreadQueue
from deepinfer_core.worker.model_runner import ModelRunner
from deepinfer_core.worker.worker import StepRun

CPU = torch.device("cpu")
VOCAB = 1024
TOKEN = 7


class StubModel:
    """Computes nothing, for ``seconds`` a step."""

    token_lookback = 0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def build_metadata(self, rows: Any) -> dict[str, Any]:
        return {}

    def forward(self, batch: Any, caches: Any, tap: Any = None, features: Any = None) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.zeros(len(batch), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), 1)


class StubSampler:
    """Draws the same token for every row."""

    def __init__(self, num_logprobs: int) -> None:
        self._num = num_logprobs

    def sample(self, logits: torch.Tensor, batch: Any) -> SamplerOutput:
        rows = len(batch)
        return SamplerOutput(
            np.full(rows, TOKEN, np.int32),
            np.full(rows, -1.0 if self._num else np.nan, np.float32),
            np.full(rows, 1 if self._num else 0, np.int32),
            np.arange(rows + 1, dtype=np.int64) * self._num,
            np.tile(np.arange(TOKEN, TOKEN + self._num, dtype=np.int32), rows),
            np.full(rows * self._num, -1.0, np.float32),
        )


class StubDrafter:
    """Proposes what the sampler will draw, depth by depth."""

    feature_layers = ()
    num_drafts = 5

    def build_metadata(self, rows: Any) -> dict[str, Any]:
        return {}

    def observe(self, *_: Any) -> None: ...

    def propose(self, batch: Any, caches: Any, pick: Any, tap: Any = None) -> Proposal:
        logits = torch.zeros(len(batch), 1)
        drafts = torch.stack([pick(depth, logits) for depth in range(self.num_drafts)], dim=1)
        return Proposal(drafts, None, torch.full(drafts.shape, 5.0))


class StubWorker:
    """As EngineCore knows it."""

    def __init__(self, num_seqs: int, *, seconds: float, overlaps: bool, drafts: bool, num_logprobs: int) -> None:
        self.overlaps = overlaps
        self.queue = ThreadQueue("stub") if overlaps else InlineQueue()
        self.num_drafts = 5 if drafts else 0
        self.max_model_len = 100_000
        self.sampler = StubSampler(num_logprobs)
        self.host_pool: Any = SimpleNamespace(__enter__=lambda *_: None, __exit__=lambda *_: None)
        self.model = StubModel(seconds)
        caches = CacheEngine(CacheLayout((), ()), 64 * num_seqs + 2, num_seqs + 1, CPU)
        self.runner = ModelRunner(self.model, caches, self.sampler, CPU, StubDrafter() if drafts else None)  # type: ignore[arg-type]

    def launch(self, plan: Any) -> StepRun:
        return StepRun(self.runner, self.queue, NoPool(), plan)  # type: ignore[arg-type]

    def propose(self, *arguments: Any) -> Any:
        return self.runner.propose(*arguments)

    def close(self) -> None:
        self.queue.close()


class NoPool:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def make_core(num_seqs: int, **options: Any) -> EngineCore:
    options = {"seconds": 0.0, "overlaps": False, "drafts": False, "num_logprobs": 0, **options}
    drafts = options["drafts"]
    config = EngineArgs(
        max_num_seqs=num_seqs, max_num_batched_tokens=max(8 * num_seqs, 2048), speculate=5 if drafts else "off"
    ).create_engine_config()
    worker: Any = StubWorker(num_seqs, **options)
    core = EngineCore(config, worker, Hooks(), SimpleNamespace(close=lambda: None), None, lambda error: None, Bell())  # type: ignore[arg-type]
    drafting = core.drafting
    core.stats = StatsLogger(enabled=False, speculation=None if drafting is None else drafting.statistics)
    return core


def make_intake(core: EngineCore) -> InputProcessor:
    return InputProcessor(
        tokenizer=None,
        vocab_size=VOCAB,
        max_model_len=core.worker.max_model_len,
        eos_token_ids=(0,),
        sampling_defaults={},
        processors={},
        check_length=core.scheduler.check,
        check_structured=lambda spec: None,
        seed=0,
    )


def start(core: EngineCore, num_seqs: int, params: SamplingParams) -> None:
    """All of them decode."""
    intake = make_intake(core)
    core.add([intake.process(str(i), [3, 4, 5], params) for i in range(num_seqs)])
    for _ in range(20):
        core.step()


def per_sequence(num_seqs: int, steps: int, repeats: int, params: SamplingParams, **options: Any) -> float:
    """Microseconds of a step for each of its sequences."""
    core = make_core(num_seqs, **options)
    start(core, num_seqs, params)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(steps):
            core.step()
        best = min(best, (time.perf_counter() - begin) / steps)
    assert core.scheduler.num_running == num_seqs
    core.close()
    return 1e6 * best / num_seqs


def busy_share(num_seqs: int, steps: int, *, overlaps: bool) -> float:
    """How much of the time a device is at work that sleeps 5 ms a step, then draws; the rest it waits for the host."""
    core = make_core(num_seqs, seconds=0.005, overlaps=overlaps)
    start(core, num_seqs, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    core.stats = StatsLogger(enabled=False)
    for _ in range(steps):
        core.step()
    share = 1.0 - core.stats.snapshot()["device_wait_share"]
    core.close()
    return share


def one_token_prompts(count: int) -> float:
    """Microseconds for each of so many prompts of one token, from intake to output, one output token each."""
    core = make_core(256)
    intake = make_intake(core)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    begin = time.perf_counter()
    core.add([intake.process(str(i), [i % VOCAB], params) for i in range(count)])
    done = 0
    while done < count:
        done += len(core.step())
    seconds = time.perf_counter() - begin
    core.close()
    return 1e6 * seconds / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", default="64,256,1024")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=10_000)
    args = parser.parse_args()
    endless = {"temperature": 0.8, "max_tokens": None, "ignore_eos": True}
    kinds: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
        "plain": (SamplingParams(**endless), {}),
        "logprobs": (SamplingParams(**endless, logprobs=5), {"num_logprobs": 5}),
        "seeds and penalties": (
            SamplingParams(**endless, seed=1, frequency_penalty=0.5, repetition_penalty=1.1), {},
        ),
        "5 drafts": (SamplingParams(**endless), {"drafts": True}),
    }  # fmt: skip
    results: dict[str, Any] = {}
    for name, (params, options) in kinds.items():
        for num_seqs in map(int, args.sequences.split(",")):
            cost = per_sequence(num_seqs, args.steps, args.repeats, params, **options)
            results[f"{name}, {num_seqs} sequences, us per step and sequence"] = round(cost, 3)
            print(f"{name:20s} {num_seqs:5d} sequences  {cost:6.2f} us per step and sequence", flush=True)
    for overlaps in (False, True):
        share = busy_share(256, args.steps, overlaps=overlaps)
        results[f"device busy, overlap {'on' if overlaps else 'off'}"] = round(share, 4)
        print(f"5 ms device, 256 sequences, overlap {'on' if overlaps else 'off':3s}: busy {share:.1%}", flush=True)
    cost = one_token_prompts(args.prompts)
    results[f"{args.prompts} one-token prompts, us each"] = round(cost, 2)
    print(f"{args.prompts} one-token prompts: {cost:.1f} us each", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
