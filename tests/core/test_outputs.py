"""Outputs: the names that the ecosystem knows, and times that are differences."""

from __future__ import annotations

import attrs

from deepinfer_core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


def test_the_ecosystems_names() -> None:
    assert [field.name for field in attrs.fields(CompletionOutput)] == [
        "index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
    ]  # fmt: skip
    names = {field.name for field in attrs.fields(RequestOutput)}
    assert names == {
        "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "metrics", "error",
    }  # fmt: skip
    assert Logprob(-0.5).rank is None and Logprob(-0.5, 1, "a").decoded_token == "a"


def test_a_refused_request_has_an_output_like_any_other() -> None:
    output = RequestOutput.refused("7", "top_p must be in (0, 1], got 3", prompt="Hi")
    assert output.finished and output.error == "top_p must be in (0, 1], got 3" and output.prompt == "Hi"
    (completion,) = output.outputs
    assert completion.finished and completion.finish_reason == "error"
    assert (completion.text, completion.token_ids) == ("", [])
    assert not CompletionOutput(0, "", []).finished


def test_metrics_measure_from_arrival() -> None:
    metrics = RequestMetrics(arrival_time=10.0)
    assert (metrics.queue_seconds, metrics.time_to_first_token, metrics.total_seconds) == (None, None, None)
    metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time = 10.5, 11.0, 14.0
    assert (metrics.queue_seconds, metrics.time_to_first_token, metrics.total_seconds) == (0.5, 1.0, 4.0)
