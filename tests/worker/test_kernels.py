"""Attention and moe components: their ops reach the model, all others stay the backend's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import PluginError
from deepinfer_core.plugins import PluginManager
from deepinfer_core.worker.kernels import OP_FAMILIES, model_kernels
from deepinfer_kernels import interface

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
BACKEND: Any = SimpleNamespace(kernels=SimpleNamespace(linear="theirs", swiglu="theirs"), device="cpu")


def overriding(seam: str, found: Any) -> PluginManager:
    """A manager with a component of ``seam`` that returns ``found``, or raises it."""

    class Component:
        def override(self, kernels: Any, device: Any) -> Any:
            assert kernels is BACKEND.kernels and device == BACKEND.device
            if isinstance(found, Exception):
                raise found
            return found

    component = Component()
    component.seam, component.name = seam, "mine"  # type: ignore[attr-defined]
    return PluginManager([component], environ={})


class Counting:
    """Replaces ops by the backend's own, and counts the calls."""

    def __init__(self, seam: str, *ops: str) -> None:
        self.seam, self.ops, self.calls = seam, ops, dict.fromkeys(ops, 0)

    def override(self, kernels: Any, device: Any) -> dict[str, Any]:
        return {op: self._counted(op, getattr(kernels, op)) for op in self.ops}

    def _counted(self, op: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            self.calls[op] += 1
            return function(*args)

        return call


def generate(*plugins: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(MODEL, plugins=list(plugins), disable_log_stats=True) as llm:
        outputs = llm.generate(["Hello", [5] * 30], params, use_tqdm=False)
    assert [output.error for output in outputs] == [None, None]
    return [output.outputs[0].token_ids for output in outputs]


def test_the_families_are_the_kernels_own() -> None:
    """Names that the core knows without importing the kernels."""
    for seam, ops in OP_FAMILIES.items():
        theirs = {op for op in interface.__all__ if getattr(interface, op).__module__.endswith(f".{seam}")}
        assert theirs <= set(ops) <= set(interface.__all__) | {"paged_attention"}


def test_selected_components_compute_and_the_outputs_stay() -> None:
    attention = Counting("attention", "sparse_attention", "index_topk")
    moe = Counting("moe", "moe_experts", "route_experts")
    plain = generate()
    assert generate(attention, moe) == plain
    assert all(attention.calls.values()) and all(moe.calls.values())


def test_a_replacement_that_computes_something_else_changes_the_outputs() -> None:
    class Blind:
        seam = "attention"

        def override(self, kernels: Any, device: Any) -> dict[str, Any]:
            return {"sparse_attention": lambda *args: kernels.sparse_attention(*args) * 0}

    assert generate(Blind()) != generate()


def test_without_components_the_model_gets_the_backends_own_namespace() -> None:
    assert model_kernels(PluginManager(environ={}), BACKEND) is BACKEND.kernels


def test_other_ops_stay_the_backends() -> None:
    kernels = model_kernels(overriding("moe", {"swiglu": min}), BACKEND)
    assert kernels.swiglu is min and kernels.linear == "theirs"
    with pytest.raises(AttributeError):
        kernels.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"moe_expert": min}, r"moe component 'mine' may replace .*'moe_expert'; did you mean 'moe_experts'\?"),
        ({"linear": min}, "may replace route_experts, moe_experts, swiglu, got 'linear'"),
        ({"swiglu": 3}, "the replacement of 'swiglu' must be callable, got 3"),
        (None, "override must return a mapping from ops to functions, got NoneType"),
        (RuntimeError("no such device"), "moe component 'mine' failed: RuntimeError: no such device"),
    ],
)
def test_what_may_not_be_replaced_stops_start_up(found: Any, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        model_kernels(overriding("moe", found), BACKEND)


def test_a_seam_that_nobody_calls_is_refused() -> None:
    class Policy:
        seam = "scheduler_policy"

        def decide(self, view: Any) -> None:
            """Never called."""

    with pytest.raises(PluginError, match=r"'Policy' .*specifies but does not call; leave 'Policy' out"):
        LLM(MODEL, plugins=[Policy()], disable_log_stats=True)
