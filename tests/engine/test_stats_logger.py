"""Statistics: rates over the last interval, totals that add up, a line every interval and not more often."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.engine.stats_logger import NUM_RECENT_REQUESTS, StatsLogger
from deepinfer_core.outputs import RequestMetrics


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(**options: Any) -> tuple[StatsLogger, Clock]:
    clock = Clock()
    return StatsLogger(clock=clock, **options), clock


def step(stats: StatsLogger, prefill: int = 0, generated: int = 0, **now: int) -> None:
    gauges = {"running": 0, "waiting": 0, "used_pages": 0, "total_pages": 8} | now
    stats.step(prefill_tokens=prefill, generated_tokens=generated, **gauges)
    stats.log_if_due()


def request(arrival: float, first: float | None, last: float | None) -> RequestMetrics:
    return RequestMetrics(arrival, first_token_time=first, last_token_time=last)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_fresh_logger_has_zeros_and_no_latencies() -> None:
    metrics = make()[0].snapshot()
    assert metrics["steps"] == metrics["generated_tokens_per_second"] == metrics["cache_usage"] == 0
    assert not any("latency" in name or "first_token" in name for name in metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_rates_are_of_the_last_interval_and_totals_of_all_time() -> None:
    stats, clock = make(interval_seconds=10.0)
    with stats.phase("execute"):
        clock.now += 2.0
    step(stats, prefill=100, generated=1)
    assert stats.snapshot()["prefill_tokens_per_second"] == 50.0
    clock.now += 3.0
    step(stats, generated=4)
    metrics = stats.snapshot()
    assert (metrics["prefill_tokens_per_second"], metrics["generated_tokens_per_second"]) == (20.0, 1.0)
    clock.now += 9.0
    metrics = stats.snapshot()
    assert (metrics["prefill_tokens_per_second"], metrics["generated_tokens_per_second"]) == (0.0, 0.4)
    assert (metrics["prefill_tokens"], metrics["generated_tokens"], metrics["steps"]) == (100, 5, 2)


def test_queues_and_cache_are_the_latest() -> None:
    stats, _ = make()
    step(stats, running=3, waiting=9, used_pages=8)
    step(stats, running=2, waiting=1, used_pages=2)
    metrics = stats.snapshot()
    assert (metrics["running"], metrics["waiting"], metrics["used_pages"], metrics["cache_usage"]) == (2, 1, 2, 0.25)


def test_time_shares_are_of_wall_time() -> None:
    stats, clock = make()
    for _ in range(2):
        with stats.phase("schedule"):
            clock.now += 0.25
        with stats.phase("execute"):
            clock.now += 1.0
        with stats.phase("execute"):
            clock.now += 0.5
        clock.now += 0.25
        step(stats)
    metrics = stats.snapshot()
    assert (metrics["time_share_schedule"], metrics["time_share_execute"]) == (0.125, 0.75)


def test_a_phase_that_fails_is_charged_and_raises() -> None:
    stats, clock = make()
    with pytest.raises(KeyError), stats.phase("execute"):
        clock.now += 1.0
        raise KeyError
    step(stats)
    assert stats.snapshot()["time_share_execute"] == 1.0


def test_latencies_of_finished_requests() -> None:
    stats, _ = make()
    stats.finished(request(10.0, 10.5, 12.5), 5)
    stats.finished(request(10.0, 11.5, 11.5), 1)
    stats.finished(request(10.0, None, None), 0)
    metrics = stats.snapshot()
    assert metrics["finished_requests"] == 3
    assert (metrics["time_to_first_token_mean"], metrics["time_to_first_token_p50"]) == (1.0, 0.5)
    assert metrics["inter_token_latency_mean"] == metrics["inter_token_latency_p99"] == 0.5


@given(st.lists(st.floats(0, 100), min_size=1, max_size=NUM_RECENT_REQUESTS + 50))
def test_latencies_are_of_recent_requests_and_in_order(seconds: list[float]) -> None:
    stats, _ = make()
    for value in seconds:
        stats.finished(request(0.0, value, value), 1)
    recent = seconds[-NUM_RECENT_REQUESTS:]
    metrics = stats.snapshot()
    assert min(recent) <= metrics["time_to_first_token_p50"] <= metrics["time_to_first_token_p99"] <= max(recent)
    assert metrics["time_to_first_token_mean"] == pytest.approx(sum(recent) / len(recent))


def test_one_line_per_interval_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stats, clock = make(interval_seconds=10.0)
    for _ in range(25):
        clock.now += 1.0
        step(stats, generated=7, running=2)
    assert len(lines(caplog)) == 2
    stats.close()
    stats.close()
    assert len(lines(caplog)) == 3


def test_the_line_says_it_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stats, clock = make(extra_metrics=lambda metrics: {"acceptance": metrics["steps"] + 0.5, "more": "x"})
    with stats.phase("execute"):
        clock.now += 2.0
    stats.finished(request(100.0, 100.25, 100.5), 6)
    step(stats, prefill=30, generated=6, running=1, waiting=2, used_pages=2)
    stats.log()
    assert lines(caplog) == [
        "prefill 15.0 tokens/s | decode 3.0 tokens/s | running 1, waiting 2, finished 1 | cache 25.0% of 8 pages | "
        "first token 250.0 ms (p99 250.0) | inter-token 50.0 ms (p99 50.0) | time: execute 100% | "
        "acceptance 1.5 | more x"
    ]


def test_disabled_means_no_lines_but_all_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stats, clock = make(enabled=False, interval_seconds=1.0)
    for _ in range(5):
        clock.now += 1.0
        step(stats, generated=2)
    stats.close()
    assert lines(caplog) == [] and stats.snapshot()["generated_tokens"] == 10


def test_memory_is_bounded_by_the_interval() -> None:
    stats, clock = make(interval_seconds=10.0, enabled=False)
    for _ in range(1000):
        clock.now += 1.0
        step(stats)
    assert len(stats._steps) <= 11
