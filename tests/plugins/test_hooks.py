"""Hooks are bound once, in order, with plain calls; what is misspelt or undocumented fails."""

from __future__ import annotations

import inspect
import re
import types
from typing import Any

import attrs
import pluggy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import PluginError
from deepinfer_core.hookspecs import HOOK_NAMES, AcceptedRequest, HookSpecs, hookimpl
from deepinfer_core.outputs import CompletionOutput, RequestOutput
from deepinfer_core.plugins.hooks import Hooks, bind_hooks
from deepinfer_core.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0.5)
OUTPUT = RequestOutput("r", "p", [1], [CompletionOutput(0, "t", [2])], finished=True)
#: What the engine passes as each argument, and what plugins are shown of it where that is not equal to it.
VALUES: dict[str, Any] = {
    "engine": object(),
    "plan": object(),
    "error": OSError(),
    "request_id": "r",
    "request": types.SimpleNamespace(request_id="r", prompt=None, prompt_token_ids=[1, 2], params=PARAMS, handle=7),
    "output": OUTPUT,
    "outputs": [OUTPUT, OUTPUT],
    "scheduled": ["r"],
    "finished": ["r", "s"],
    "states": {"r": {}},
    "metrics": {"x": 1},
}
SHOWN: dict[str, Any] = {
    "request": AcceptedRequest(request_id="r", prompt=None, prompt_token_ids=(1, 2), params=PARAMS),
    "outputs": (OUTPUT, OUTPUT),
    "scheduled": ("r",),
    "finished": ("r", "s"),
}


def parameters(name: str) -> list[str]:
    return list(inspect.signature(getattr(HookSpecs, name)).parameters)[1:]


def test_the_bound_hooks_are_the_specified_ones() -> None:
    assert sorted(a.name for a in attrs.fields(Hooks)) == sorted(HOOK_NAMES)
    assert bind_hooks([]) == Hooks()
    assert bind_hooks([]).implemented() == ()


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_every_hook_is_documented(name: str) -> None:
    doc = inspect.getdoc(getattr(HookSpecs, name)) or ""
    assert re.search(r"^When: ", doc, re.M)
    assert re.search(r"\bArguments: ", doc)
    assert re.search(r"\bFor: ", doc)
    for parameter in parameters(name):
        assert f"``{parameter}``" in doc or "as ``save_kvcache``" in doc or "ids of the requests" in doc


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_every_hook_passes_its_arguments_in_order(name: str) -> None:
    seen: list[tuple[object, ...]] = []
    names = parameters(name)
    namespace: dict[str, object] = {"seen": seen}
    exec(f"def {name}({', '.join(names)}): seen.append(({''.join(n + ', ' for n in names)})) or {{}}", namespace)
    module = types.ModuleType("observer")
    setattr(module, name, hookimpl(namespace[name]))
    hook = getattr(bind_hooks([("observer", module)]), name)
    hook(*[VALUES[argument] for argument in names])
    assert [list(values) for values in seen] == [[SHOWN.get(name, VALUES[name]) for name in names]]


def collector(result: object) -> object:
    class Collector:
        @hookimpl
        def finalize_seq(self) -> object:
            return result

        @hookimpl
        def should_copy_state(self) -> object:
            return result

    return Collector()


@given(st.lists(st.none() | st.booleans(), max_size=5))
def test_results_are_those_of_pluggy_in_the_order_given(results: list[bool | None]) -> None:
    plugins = [(str(i), collector(result)) for i, result in enumerate(results)]
    hooks = bind_hooks(plugins)
    reference = pluggy.PluginManager("deepinfer")
    reference.add_hookspecs(HookSpecs)
    for label, plugin in reversed(plugins):
        reference.register(plugin, label)
    if not results:
        assert hooks == Hooks()
        return
    assert hooks.finalize_seq is not None
    assert hooks.should_copy_state is not None
    assert hooks.finalize_seq("r") == reference.hook.finalize_seq(request_id="r")
    assert hooks.should_copy_state("r") == reference.hook.should_copy_state(request_id="r")


def test_a_wrapper_sees_the_results_of_the_others() -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def finalize_seq(self, request_id: str):  # type: ignore[no-untyped-def]
            results = yield
            return [*results, "wrapped"]

    hooks = bind_hooks([("a", collector(1)), ("w", Wrapper())])
    assert hooks.finalize_seq is not None
    assert hooks.finalize_seq("r") == [1, "wrapped"]


def test_metrics_of_all_plugins_become_one_mapping() -> None:
    class Metrics:
        def __init__(self, **metrics: int) -> None:
            self.metrics = metrics

        @hookimpl
        def build_extra_metrics_log(self, metrics: dict[str, int]) -> dict[str, int]:
            return {name: value + metrics["base"] for name, value in self.metrics.items()}

    hooks = bind_hooks([("a", Metrics(x=1, y=2)), ("b", Metrics(y=3))])
    assert hooks.build_extra_metrics_log is not None
    assert hooks.build_extra_metrics_log({"base": 10}) == {"x": 11, "y": 13}


def test_an_exception_carries_the_plugins_name() -> None:
    class Failing:
        @hookimpl
        def finalize_seq(self, request_id: str) -> None:
            raise OSError("gone")

    hooks = bind_hooks([("store.mirror", Failing())])
    assert hooks.finalize_seq is not None
    with pytest.raises(OSError, match="gone") as caught:
        hooks.finalize_seq("r")
    assert caught.value.__notes__ == ["in hook 'finalize_seq' of plugin 'store.mirror'"]


@pytest.mark.parametrize(
    ("hook", "argument", "result", "message"),
    [
        ("build_extra_metrics_log", {}, [1], "must return a mapping of names to numbers or text, got list"),
        (
            "build_extra_metrics_log",
            {},
            {"x": None},
            "must return a mapping of names to numbers or text, got 'x': None",
        ),
        ("build_extra_metrics_log", {}, {1: 2.0}, "must return a mapping of names to numbers or text, got 1: 2.0"),
        ("should_copy_state", "r", "yes", "must return True, False or None, got 'yes'"),
    ],
)
def test_garbage_is_refused_and_names_the_plugin(hook: str, argument: Any, result: Any, message: str) -> None:
    plugin = types.ModuleType("garbage")
    namespace: dict[str, Any] = {"result": result}
    exec(f"def {hook}(): return result", namespace)
    setattr(plugin, hook, hookimpl(namespace[hook]))
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        getattr(bind_hooks([("store", plugin)]), hook)(argument)
    assert caught.value.__notes__ == [f"in hook {hook!r} of plugin 'store'"]
    tolerant = getattr(bind_hooks([("store", plugin)], ["store"]), hook)
    assert not tolerant(argument)


def test_a_hook_without_its_mark_or_with_unknown_arguments_is_refused() -> None:
    class Unmarked:
        @hookimpl
        def finalize_seq(self, request_id: str) -> None: ...

        def on_request_added(self, request: object) -> None: ...

    class Arguments:
        @hookimpl
        def finalize_seq(self, sequence: object) -> None: ...

    with pytest.raises(PluginError, match="'on_request_added' is named like a hook but not marked"):
        bind_hooks([("a", Unmarked())])
    with pytest.raises(PluginError, match="sequence"):
        bind_hooks([("a", Arguments())])
