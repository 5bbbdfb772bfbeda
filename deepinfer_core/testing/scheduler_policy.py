"""Conformance of ``scheduler_policy`` components."""

from __future__ import annotations

import copy
import random

import pytest

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.scheduler_policy import (
    MAX_WINDOW,
    RequestView,
    SchedulerPolicy,
    SchedulerView,
    check_decision,
)
from deepinfer_core.testing.scheduling import Limits, Simulation
from deepinfer_core.testing.suite import Suite


def random_view(rng: random.Random, num_waiting: int, num_running: int) -> SchedulerView:
    """Some state of a scheduler, likely or not."""
    handles = sorted(rng.sample(range(1, 10_000), num_waiting + num_running))
    running = sorted(rng.sample(handles, num_running))
    return SchedulerView(
        step_id=rng.randrange(10**6),
        waiting=tuple(_waiting(rng, handle) for handle in handles if handle not in running),
        running=tuple(_running(rng, handle) for handle in running),
        num_free_pages=rng.choice((0, 1, 50)),
        num_pages=100,
        page_size=128,
        max_num_seqs=64,
        max_num_batched_tokens=rng.choice((1, 64, 4096)),
        max_chunk_tokens=rng.choice((1, 512)),
    )


def _waiting(rng: random.Random, handle: int) -> RequestView:
    prompt, output = rng.randrange(1, 5000), rng.choice((0, 0, 7))
    return RequestView(
        handle,
        prompt,
        output,
        max_length=prompt + output + rng.randrange(1, 500),
        num_preemptions=int(output > 0),
        waiting_steps=rng.choice((0, 3, 10**6)),
    )


def _running(rng: random.Random, handle: int) -> RequestView:
    prompt, output = rng.randrange(1, 5000), rng.choice((0, 1, 400))
    is_decoding = output > 0 and rng.random() < 0.8
    computed = prompt + output - 1 if is_decoding else rng.randrange(prompt)
    return RequestView(
        handle, prompt, output, computed, is_decoding, prompt + output + rng.randrange(1, 500), -(-computed // 128)
    )


class SchedulerPolicySuite(Suite):
    """Every decision is legal, follows from what was shown, and lets all requests come to their end."""

    seam = "scheduler_policy"

    @pytest.mark.parametrize(
        ("num_waiting", "num_running"), [(0, 0), (1, 0), (0, 1), (5, 3), (40, 0), (0, 64), (MAX_WINDOW, 64)]
    )
    def test_decisions_are_legal(self, component: SchedulerPolicy, num_waiting: int, num_running: int) -> None:
        """Handles of the right requests, each once, every prefill ordered, and somebody admitted when nothing runs."""
        for seed in range(30):
            view = random_view(random.Random(seed), num_waiting, num_running)
            try:
                check_decision(component.decide(view), view)
            except PluginError as error:
                pytest.fail(f"{error}\nfor {view}")

    def test_the_same_views_give_the_same_decisions(self, component: SchedulerPolicy) -> None:
        """No clock, no randomness, no identity: a run can be repeated."""
        twin = copy.deepcopy(component)
        for seed in range(60):
            rng = random.Random(seed)
            view = random_view(rng, rng.randrange(20), rng.randrange(20))
            assert component.decide(view) == twin.decide(copy.deepcopy(view)), f"step {seed} of two equal runs"

    @pytest.mark.parametrize("num_pages", [9, 20, 200])
    @pytest.mark.parametrize("seed", range(4))
    def test_every_request_comes_to_its_end(self, component: SchedulerPolicy, num_pages: int, seed: int) -> None:
        """With hardly any and with plenty of pages, arrivals over time and aborts; no step stands idle."""
        rng = random.Random(seed)
        limits = Limits(
            page_size=4, num_pages=num_pages, num_slots=6, max_num_seqs=5, max_num_batched_tokens=rng.choice((6, 64)),
            max_model_len=64, max_chunk_tokens=rng.choice((3, 32)),
        )  # fmt: skip
        simulation = Simulation(component, limits)
        work, idle = 0, 0
        arrivals = sorted(rng.randrange(60) for _ in range(40))
        while arrivals or simulation.waiting or simulation.running:
            while arrivals and (arrivals[0] <= simulation.num_steps):
                del arrivals[0]
                prompt, output = rng.randrange(1, min(31, 4 * (num_pages - 1) - 1)), rng.randrange(1, 20)
                simulation.submit(prompt, output)
                work += prompt + output
            if rng.random() < 0.02 and simulation.running:
                simulation.cancel(rng.choice(sorted(simulation.running)))
            is_busy = bool(simulation.waiting or simulation.running)
            idle = idle + 1 if not simulation.step().rows and is_busy else 0
            assert idle < 2, f"two steps without a row: {simulation.view()}"
            assert simulation.num_steps < 1000 + 60 * work, f"requests go round in circles: {simulation.view()}"
