"""One pool per engine: its size, its threads' lives, and what runs on it."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from deepinfer_core import _C, LLM, SamplingParams
from deepinfer_core.errors import PluginError
from deepinfer_core.sampling import DefaultSampler, Drawn, batch_of
from deepinfer_core.worker.host_pool import new_host_pool
from deepinfer_kernels import _cpu, cpu, ops
from deepinfer_kernels.weights import DenseWeight
from deepinfer_plugin_cpu.backend import CpuBackend

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
NAME = "deepinfer-pool\n"
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=1)
PROMPTS: list[Any] = ["Hello", [7, 11] * 40]

needs_tasks = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux lists them")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def pool_threads() -> set[str]:
    """Ids of this process's threads that belong to pools."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text() == NAME:
                found.add(task.name)
        except OSError:  # it has just ended
            continue
    return found


def settled(expected: set[str]) -> set[str]:
    """The threads once they are the expected ones: one that was joined stays listed for a moment."""
    deadline = time.monotonic() + 10
    while (found := pool_threads()) != expected and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


@pytest.fixture
def before() -> Iterator[set[str]]:
    """Threads of pools that outlive the test."""
    gc.collect()
    yield pool_threads()


def linear(rows: int = 256) -> torch.Tensor:
    """An op that is worth several threads."""
    generator = torch.Generator().manual_seed(0)  # not torch's own, which callers at once would share
    x, weight = (torch.randn(n, 1024, generator=generator).to(torch.bfloat16) for n in (rows, 512))
    return ops.cpu.linear(x, DenseWeight(weight), torch.float32)


def draw(sampler: Any, rows: int = 6) -> list[np.ndarray[Any, Any]]:
    """A call of the sampler that is worth several threads."""
    logits = torch.randn(rows, 50_000, generator=torch.Generator().manual_seed(1))
    output = sampler.sample(logits, batch_of([Drawn(SamplingParams(logprobs=3), i, [1] * 9) for i in range(rows)]))
    return [output.token_ids, output.logprobs, output.ranks, output.top_ids, output.top_logprobs]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def llm(num_threads: int) -> LLM:
    return LLM(MODEL, num_threads=num_threads, num_pages=8, max_num_seqs=2, disable_log_stats=True, banner=False)


def generate(engine: LLM) -> list[Any]:
    return [(o.outputs, o.prompt_logprobs) for o in engine.generate(PROMPTS, PARAMS, use_tqdm=False)]


# -- a pool


@needs_tasks
def test_threads_start_when_needed_and_end_with_the_pool(before: set[str]) -> None:
    pool = new_host_pool(CpuBackend(), 3)
    with pool:
        assert pool_threads() == before
        linear()
        linear()
        assert len(pool_threads() - before) == 2, "the third is the caller"
    pool.close()
    assert settled(before) == before


@needs_tasks
@pytest.mark.parametrize("make", [lambda: new_host_pool(CpuBackend(), 3), lambda: _C.HostPool(3)], ids=["cpu", "core"])
def test_a_thousand_pools_leave_nothing(before: set[str], make: Any) -> None:
    logits = np.zeros((3, 50_000), np.float32)
    ids, sampler = np.zeros(3, np.int32), _C.Sampler()
    for _ in range(1000):
        with make():
            sampler.score(logits, token_ids=ids, num_logprobs=ids)
    assert settled(before) == before


def test_bindings_nest_and_belong_to_a_thread() -> None:
    outside, seen = cpu.get_num_threads(), []
    with new_host_pool(CpuBackend(), 3) as outer:
        with new_host_pool(CpuBackend(), 1), outer, _C.HostPool(5):
            assert cpu.get_num_threads() == 3, "the core's own pools are none of the ops' business"
        assert cpu.get_num_threads() == 3
        thread = threading.Thread(target=lambda: seen.append(cpu.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == [outside] == [cpu.get_num_threads()]


def test_leaving_out_of_order_is_refused() -> None:
    one, other = _C.HostPool(1), _C.HostPool(1)
    with one:
        with pytest.raises(RuntimeError, match="the newest first"):
            other.__exit__()
        with other, pytest.raises(RuntimeError, match="the newest first"):
            one.__exit__()


@needs_tasks
def test_one_that_is_closed_inside_serves_until_it_is_left(before: set[str]) -> None:
    pool = new_host_pool(CpuBackend(), 2)
    with pool:
        pool.close()
        linear()
        assert len(pool_threads() - before) == 1
    assert settled(before) == before
    with pytest.raises(RuntimeError, match="closed"):
        pool.__enter__()
    pool.close()


@pytest.mark.parametrize("threads", [0, -1])
def test_wrong_sizes_are_refused(threads: int) -> None:
    for make in (_C.HostPool, cpu.new_host_pool):
        with pytest.raises(ValueError, match=f"at least 1, got {threads}"):
            make(threads)


@pytest.mark.parametrize("wrong", [3, None, __import__("datetime").datetime_CAPI], ids=["int", "None", "capsule"])
def test_what_is_no_pool_is_refused_with_the_backends_name(wrong: Any) -> None:
    backend = CpuBackend()
    backend.new_host_pool = lambda num_threads: wrong  # type: ignore[method-assign]
    with pytest.raises(PluginError, match=r"backend 'cpu': new_host_pool must return a PyCapsule"):
        new_host_pool(backend, 1)


@needs_tasks
def test_a_backend_without_a_pool_gets_the_cores(before: set[str]) -> None:
    pool: Any = new_host_pool(SimpleNamespace(name="bare"), 2)  # type: ignore[arg-type]
    assert pool.num_threads == 2 and new_host_pool(SimpleNamespace(), None).num_threads == _C.usable_cpus()  # type: ignore[arg-type]
    sampler = DefaultSampler()
    with pool:
        draw(sampler)
        assert len(pool_threads() - before) == 1
    del pool
    assert settled(before) == before


@needs_fork
def test_a_forked_child_computes_alone_and_frees_its_copy() -> None:
    pool = new_host_pool(CpuBackend(), 2)
    sampler, ids = _C.Sampler(num_threads=2), np.zeros(4, np.int32)
    logits = np.random.default_rng(0).normal(size=(4, 50_000)).astype(np.float32)
    x, weight = (torch.randn(n, 1024).to(torch.bfloat16) for n in (64, 512))
    sampler.score(logits, token_ids=ids, num_logprobs=ids)
    with pool:
        expected = ops.cpu.linear(x, DenseWeight(weight), torch.float32)
        scored = sampler.score(logits, token_ids=ids, num_logprobs=ids)
    out = torch.zeros_like(expected).share_memory_()
    child = os.fork()
    if child == 0:
        # Straight to the extension: torch is not to be used after a fork.
        code = 1
        try:
            with pool:
                _cpu.linear(
                    (x.data_ptr(), False), (0, weight.data_ptr(), 0, 512, 1024), (out.data_ptr(), True), 64, False
                )
                is_same = same([*scored], [*sampler.score(logits, token_ids=ids, num_logprobs=ids)])
            pool.close()
            del sampler
            fresh = _C.HostPool(2)
            with fresh:  # one that is made here has threads
                _C.Sampler().score(logits, token_ids=ids, num_logprobs=ids)
            fresh.close()
            code = 0 if is_same else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "the child ended well"
    assert torch.equal(out, expected)
    with pool:
        linear()
    pool.close()


# -- samplers


@needs_tasks
def test_a_sampler_starts_no_threads_of_its_own_inside_a_pool(before: set[str]) -> None:
    class Derived(DefaultSampler):
        def __init__(self) -> None:
            super().__init__(num_threads=4)

    with new_host_pool(CpuBackend(), 2) as pool:
        linear()
        threads = pool_threads()
        for sampler in (DefaultSampler(), Derived()):
            for _ in range(5):
                draw(sampler)
        assert pool_threads() == threads and len(threads - before) == 1
        pool.close()


@needs_tasks
def test_a_sampler_outside_keeps_its_threads(before: set[str]) -> None:
    sampler = DefaultSampler(num_threads=3)
    draw(sampler)
    threads = pool_threads()
    assert len(threads - before) == 2
    for _ in range(5):
        draw(sampler)
    assert pool_threads() == threads
    del sampler
    assert settled(before) == before


def test_no_pool_changes_a_result() -> None:
    expected, product = draw(DefaultSampler(num_threads=1)), linear()
    for threads in (1, 2, 3):
        for pool in (new_host_pool(CpuBackend(), threads), _C.HostPool(threads)):
            with pool:
                assert same(draw(DefaultSampler()), expected) and torch.equal(linear(), product)


def test_callers_at_once_share_a_pool_and_nobody_waits_for_ever() -> None:
    expected, product = draw(DefaultSampler(num_threads=1)), linear()
    pool, wrong = new_host_pool(CpuBackend(), 3), []

    def call() -> None:
        for _ in range(10):
            with pool:
                if not (same(draw(DefaultSampler()), expected) and torch.equal(linear(), product)):
                    wrong.append(threading.get_ident())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_row_throws_reaches_the_caller_and_the_pool_goes_on() -> None:
    sampler, logits = DefaultSampler(), torch.zeros(4, 50_000)
    good = batch_of([Drawn(SamplingParams(), i) for i in range(4)])
    with _C.HostPool(2):
        with pytest.raises(ValueError, match="position must be >= 0, got -1"):
            sampler.sample(logits, attrs.evolve(good, position=np.array([0, 0, 0, -1])))
        assert len(sampler.sample(logits, good).token_ids) == 4


# -- engines


@needs_tasks
def test_engines_side_by_side_have_their_own_threads(before: set[str]) -> None:
    one, two = llm(1), llm(2)
    assert [engine.engine.worker.host_pool.num_threads for engine in (one, two)] == [1, 2]
    expected = generate(one)
    assert pool_threads() == before, "one thread is the caller's"
    assert generate(two) == expected
    helpers = pool_threads() - before
    assert len(helpers) <= 1, "a model this small may never be worth two"
    with one.engine.worker.host_pool:
        assert cpu.get_num_threads() == 1
    with two.engine.worker.host_pool:
        assert cpu.get_num_threads() == 2
        linear()
    assert len(pool_threads() - before) == 1
    assert generate(one) == generate(two) == expected
    assert len(pool_threads() - before) == 1
    two.close()
    assert settled(before) == before
    assert generate(one) == expected
    one.close()


def test_a_step_runs_on_its_engines_threads_whichever_thread_calls() -> None:
    seen: list[tuple[int, int]] = []

    class Looking(DefaultSampler):
        seam, name = "sampler", "looking"

        def sample(self, logits: Any, batch: Any) -> Any:
            seen.append((threading.get_ident(), cpu.get_num_threads()))
            return super().sample(logits, batch)

    with LLM(MODEL, plugins=[Looking()], num_threads=3, num_pages=8, disable_log_stats=True) as engine:
        generate(engine)
        thread = threading.Thread(target=generate, args=[engine])
        thread.start()
        thread.join()
    assert len({ident for ident, _ in seen}) == 1 and {threads for _, threads in seen} == {3}, "the engine's own thread"


@needs_tasks
def test_an_engine_that_nobody_closes_ends_its_threads_when_it_is_collected(before: set[str]) -> None:
    engine = llm(3)
    with engine.engine.worker.host_pool:
        linear()
    assert len(pool_threads() - before) == 2
    del engine
    gc.collect()
    assert settled(before) == before
