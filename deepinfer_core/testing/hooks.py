"""Conformance of ``hooks`` components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.hookspecs import HOOK_NAMES
from deepinfer_core.outputs import RequestOutput
from deepinfer_core.plugins.hooks import Hooks, bind_hooks, hook_names
from deepinfer_core.testing.checkpoints import write_toy_checkpoint
from deepinfer_core.testing.suite import Suite, default_backend
from deepinfer_core.testing.toy import ToyArchitecture

PROMPTS: list[Any] = [[5, 9, 11], [7] * 150, [10**6], [3] * 40, [1, 2, 3, 4]]


class HooksSuite(Suite):
    """The hooks exist, survive a busy engine, and change nothing of what it says."""

    seam = "hooks"

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        """A checkpoint of a model that every engine can run."""
        return write_toy_checkpoint(tmp_path / "checkpoint")

    def run(self, checkpoint: Path, *plugins: object) -> list[RequestOutput]:
        """A run with much in it: several lengths, preemption, a refused prompt, a stream that is dropped."""
        params = SamplingParams(temperature=0.8, seed=11, max_tokens=12, ignore_eos=True, logprobs=1)
        with LLM(
            checkpoint, plugins=[ToyArchitecture(), *plugins], backend=default_backend()[0],
            num_pages=3, max_num_seqs=3, log_stats_interval=0.001, max_num_batched_tokens=32,
        ) as llm:  # fmt: skip
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            stream = llm.stream([4, 4, 4], params)
            next(stream)
            del stream
            again = llm.generate(PROMPTS[:1], params, use_tqdm=False)
        return outputs + again

    def test_every_hook_exists_and_takes_the_right_arguments(self, component: Any) -> None:
        """Names and parameters, checked as the engine does it; at least one hook."""
        bind_hooks([("component", component)])
        assert hook_names(component), f"mark a function with @hookimpl; hooks are {', '.join(HOOK_NAMES)}"

    def test_an_engine_says_the_same_with_and_without_it(self, component: Any, checkpoint: Path) -> None:
        """Texts, tokens, reasons and log-probabilities of every request; nothing is raised."""
        plain = self.run(checkpoint)
        found = self.run(checkpoint, self.plugin or component)
        for one, other in zip(found, plain, strict=True):
            assert one.outputs == other.outputs and one.error == other.error, f"request {other.request_id}"

    def test_metrics_are_names_and_plain_values(self, component: Any) -> None:
        """What ``build_extra_metrics_log`` adds to a line."""
        hooks: Hooks = bind_hooks([("component", component)])
        if hooks.build_extra_metrics_log is None:
            pytest.skip("the component does not implement build_extra_metrics_log")
        for name, value in hooks.build_extra_metrics_log({"steps": 1}).items():
            assert isinstance(name, str) and isinstance(value, int | float | str), f"{name!r}: {value!r}"

    def test_state_copies_are_wanted_or_not(self, component: Any) -> None:
        """What ``should_copy_state`` answers."""
        hooks: Hooks = bind_hooks([("component", component)])
        if hooks.should_copy_state is None:
            pytest.skip("the component does not implement should_copy_state")
        assert hooks.should_copy_state("request") in (True, False, None)
