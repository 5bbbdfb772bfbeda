"""What the engine is doing, as numbers for ``get_metrics`` and as a log line every few seconds."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from deepinfer_core.outputs import RequestMetrics
    from deepinfer_core.speculation.statistics import SpeculationStatistics
    from deepinfer_core.trace import ChromeTrace

logger = logging.getLogger(__name__)

#: Latencies are those of this many last finished requests.
NUM_RECENT_REQUESTS = 512

Metrics = dict[str, float]


@attrs.frozen(slots=True)
class _Step:
    """One step, as it ended."""

    time: float
    prefill_tokens: int
    generated_tokens: int
    phases: Mapping[str, float]
    seconds: float
    device_seconds: float


class StatsLogger:
    """Counts steps and requests. Nothing here waits, and a step costs a few microseconds.

    enabled: whether lines are logged (at level info); :meth:`snapshot` works either way.
    interval_seconds: between lines, and the time over which rates and shares are taken.
    speculation: what drafting comes to; None without a drafter.
    extra_metrics: given the snapshot, returns further entries for the line; the bound hook
        ``build_extra_metrics_log``.
    trace: gets the phases as spans on the track ``host``; None: nobody does.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        interval_seconds: float = 10.0,
        extra_metrics: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        speculation: SpeculationStatistics | None = None,
        trace: ChromeTrace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trace = trace
        self._speculation = speculation
        self._enabled = enabled
        self._interval = interval_seconds
        self._extra_metrics = extra_metrics
        self._clock = clock
        self._started: float | None = None
        self._next_log = 0.0
        self._has_news = False
        self._phases: dict[str, float] = {}
        self._steps: deque[_Step] = deque()
        self._totals: Metrics = dict.fromkeys(("steps", "prefill_tokens", "generated_tokens", "finished_requests"), 0)
        self._gauges: Metrics = dict.fromkeys(("running", "waiting", "used_pages", "total_pages"), 0)
        self._first_token: deque[float] = deque(maxlen=NUM_RECENT_REQUESTS)
        self._inter_token: deque[float] = deque(maxlen=NUM_RECENT_REQUESTS)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to this phase of the current step."""
        begin = self._now()
        try:
            yield
        finally:
            end = self._clock()
            self._phases[name] = self._phases.get(name, 0.0) + end - begin
            if self._trace is not None:
                self._trace.add("host", name, begin, end)

    def step(
        self,
        *,
        prefill_tokens: int,
        generated_tokens: int,
        running: int,
        waiting: int,
        used_pages: int,
        total_pages: int,
        seconds: float = 0.0,
        device_seconds: float = 0.0,
    ) -> None:
        """A step has ended: its tokens, and the queues and the cache as they are now.

        seconds: how long it took; device_seconds: how much of that the device computed.
        """
        now = self._now()
        self._steps.append(_Step(now, prefill_tokens, generated_tokens, self._phases, seconds, device_seconds))
        self._phases = {}
        self._forget_before(now - self._interval)
        self._totals["steps"] += 1
        self._totals["prefill_tokens"] += prefill_tokens
        self._totals["generated_tokens"] += generated_tokens
        self._gauges = {"running": running, "waiting": waiting, "used_pages": used_pages, "total_pages": total_pages}
        self._has_news = True

    def log_if_due(self) -> None:
        """Log a line if the last one is an interval old. Raises what ``extra_metrics`` raises."""
        if self._enabled and self._has_news and self._now() >= self._next_log:
            self.log()

    def finished(self, metrics: RequestMetrics, num_tokens: int) -> None:
        """A request has ended with ``num_tokens`` generated; its latencies count from now on."""
        self._totals["finished_requests"] += 1
        if metrics.time_to_first_token is not None:
            self._first_token.append(metrics.time_to_first_token)
        if num_tokens > 1 and metrics.first_token_time is not None and metrics.last_token_time is not None:
            self._inter_token.append((metrics.last_token_time - metrics.first_token_time) / (num_tokens - 1))

    def snapshot(self) -> Metrics:
        """Everything as plain numbers: totals, queues and cache now, rates and time shares of the last interval,
        latencies of recent requests (absent until one has finished).

        Rates are per second of wall time. ``time_share_<phase>`` is of wall time too; what is missing to 1 was
        spent outside the phases. ``device_wait_share`` is how much of the steps' time the device waited for the host.
        Latencies are ``<name>_mean``, ``_p50``, ``_p99`` in seconds: to a request's first token from its arrival, and
        between its tokens on average.
        """
        now = self._now()
        # Copies, for the stepping thread goes on meanwhile.
        steps = [step for step in list(self._steps) if step.time >= now - self._interval]
        elapsed = max(min(self._interval, now - self._started) if self._started is not None else 0.0, 1e-9)
        metrics: Metrics = {**self._totals, **self._gauges}
        metrics["cache_usage"] = self._gauges["used_pages"] / max(self._gauges["total_pages"], 1)
        metrics["prefill_tokens_per_second"] = sum(step.prefill_tokens for step in steps) / elapsed
        metrics["generated_tokens_per_second"] = sum(step.generated_tokens for step in steps) / elapsed
        for name in dict.fromkeys(name for step in steps for name in step.phases):
            metrics[f"time_share_{name}"] = sum(step.phases.get(name, 0.0) for step in steps) / elapsed
        if (spent := sum(step.seconds for step in steps)) > 0:
            computed = sum(step.device_seconds for step in steps)
            metrics["device_wait_share"] = max(1.0 - computed / spent, 0.0)
        if self._speculation is not None:
            metrics |= self._speculation.snapshot()
        metrics |= _latencies("time_to_first_token", self._first_token)
        metrics |= _latencies("inter_token_latency", self._inter_token)
        return metrics

    def log(self) -> None:
        """Log a line now."""
        metrics = self.snapshot()
        self._next_log = self._now() + self._interval
        self._has_news = False
        extra = {} if self._extra_metrics is None else self._extra_metrics(metrics)
        logger.info("%s", _line(metrics, extra))

    def close(self) -> None:
        """Log what has happened since the last line, if anything has."""
        if self._enabled and self._has_news:
            self.log()

    def _now(self) -> float:
        now = self._clock()
        if self._started is None:
            self._started = now
            self._next_log = now + self._interval
        return now

    def _forget_before(self, time: float) -> None:
        while self._steps and self._steps[0].time < time:
            self._steps.popleft()


def _latencies(name: str, seconds: deque[float]) -> Metrics:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        f"{name}_mean": sum(ordered) / len(ordered),
        f"{name}_p50": ordered[(len(ordered) - 1) // 2],
        f"{name}_p99": ordered[(len(ordered) - 1) * 99 // 100],
    }


def _line(metrics: Metrics, extra: Mapping[str, Any]) -> str:
    parts = [
        f"prefill {metrics['prefill_tokens_per_second']:.1f} tokens/s",
        f"decode {metrics['generated_tokens_per_second']:.1f} tokens/s",
        f"running {metrics['running']}, waiting {metrics['waiting']}, finished {metrics['finished_requests']}",
        f"cache {metrics['cache_usage']:.1%} of {metrics['total_pages']} pages",
    ]
    for label, name in (("first token", "time_to_first_token"), ("inter-token", "inter_token_latency")):
        if f"{name}_mean" in metrics:
            parts.append(f"{label} {1e3 * metrics[f'{name}_mean']:.1f} ms (p99 {1e3 * metrics[f'{name}_p99']:.1f})")
    if "mean_accepted_length" in metrics:
        depths = [value for name, value in metrics.items() if name.startswith("acceptance_depth_")]
        parts.append(
            f"drafts: {metrics['mean_accepted_length']:.2f} tokens per verification (accepted by depth "
            f"{', '.join(f'{share:.0%}' for share in depths)}; expected within {metrics['confidence_error']:.1%})"
        )
    if "device_wait_share" in metrics:
        parts.append(f"device waits {metrics['device_wait_share']:.1%}")
    shares = [
        f"{name.removeprefix('time_share_')} {share:.0%}"
        for name, share in metrics.items()
        if name.startswith("time_share_")
    ]
    if shares:
        parts.append("time: " + ", ".join(shares))
    return " | ".join([*parts, *(f"{name} {value}" for name, value in extra.items())])
