"""Rule 4, one failure policy: each phase stops start-up with one kind of message; observers alone may be tolerated."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams, hookimpl
from deepinfer_core.errors import PluginError
from deepinfer_core.plugins.hooks import bind_hooks

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
HEAD = "plugin 'ill' (dist-ill 1.0, entry point ill = plugin_ill) failed in phase"


@pytest.mark.parametrize(
    ("code", "phase", "cause"),
    [
        ("import no_such_package_at_all", "import", "ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("raise SystemExit(3)", "import", "SystemExit: 3"),
        ("", "import", "AttributeError: module 'plugin_ill' has no attribute 'Thing'"),
        ("1 +", "import", "SyntaxError: invalid syntax"),
        ("class Thing:\n    def __init__(self):\n        1 / 0", "configure", "ZeroDivisionError: division by zero"),
        ("class Thing:\n    def __init__(self):\n        exit(2)", "configure", "SystemExit: 2"),
        ("class Thing:\n    def __init__(self, x): ...", "configure", "TypeError: Thing.__init__() missing 1 required"),
        ("class Thing: ...", "bind", "'ill' lacks add_arguments, run of deepinfer_core.interfaces.command:Command"),
        ("Thing = 7", "bind", "'ill' lacks add_arguments, run of"),
    ],
)
def test_each_phase_fails_with_one_kind_of_message(
    install: Any, manager: Any, code: str, phase: str, cause: str
) -> None:
    install("ill", "command", code)
    with pytest.raises(PluginError) as caught:
        manager("ill").component("command", "ill")
    assert f"{HEAD} {phase!r}: {cause}" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sources", "remedy"),
    [
        (("ill",), {}, "leave 'ill' out of plugins=[...], --plugins and --backend"),
        ((), {"env": "ill"}, "deepinfer plugins disable ill"),
        ((), {"file": 'plugins = ["ill"]'}, "deepinfer plugins disable ill"),
    ],
)
def test_the_remedy_fits_the_source(install: Any, manager: Any, arguments: Any, sources: Any, remedy: str) -> None:
    install("ill", "command", "1 / 0")
    with pytest.raises(PluginError) as caught:
        manager(*arguments, **sources).component("command", "ill")
    assert str(caught.value).endswith(f"\nTo go on without it: {remedy}")


def test_a_broken_plugin_fails_only_when_selected(write: Any, manager: Any) -> None:
    write("ill", "nonsense")
    assert [r.state for r in manager().table() if r.name == "ill"] == ["broken"]
    with pytest.raises(PluginError, match=re.escape(f"{HEAD} 'discover': ")):
        manager("ill")


def test_a_shared_name_fails_when_selected(install: Any, manager: Any) -> None:
    install("twin", distribution="first")
    install("twin", distribution="second", package="plugin_twin_two")
    with pytest.raises(PluginError, match=r"claimed by first 1.0 and second 1.0"):
        manager("twin")


def test_a_backend_that_is_chosen_and_then_fails_is_not_replaced_by_another(
    install: Any, manager: Any, thing: Any
) -> None:
    """Its probe succeeds, importing it does not: falling back to the CPU would hide it."""
    install("sampling", "sampler", thing("sampler"))
    folder = install("ill", "backend", "", extra='probe = "plugin_ill.check:probe"')
    (folder / "check.py").write_text("def probe(): ...\n")
    with pytest.raises(PluginError, match=r"phase 'import'.*\n.*deepinfer plugins disable ill"):
        manager("sampling").resolve()


# -- observers


class Failing:
    """Fails in a hook, each time."""

    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def post_schedule(self, plan: Any) -> None:
        self.calls += 1
        raise OSError("no space")


WARN = {"Failing": {"on_error": "warn"}}


@pytest.fixture
def tolerant(install: Any, manager: Any, thing: Any) -> Callable[..., Any]:
    """A manager with the observer ``ill``, of the given code, set to warn."""
    install("sampling", "sampler", thing("sampler"))

    def make(code: str, **options: Any) -> Any:
        install("ill", "hooks", code)
        return manager("sampling", "ill", plugin_config={"ill": {"on_error": "warn"}}, **options)

    return make


@pytest.mark.parametrize(
    "code", ["1 / 0", "class Thing:\n    def __init__(self): 1 / 0", "class Thing:\n    def finalize_seq(self): ..."]
)
def test_a_tolerated_observer_that_cannot_start_is_left_out_with_a_warning(
    tolerant: Any, row: Any, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    found = tolerant(code).resolve()
    assert found.hooks.implemented() == ()
    assert row(found, "ill").state == "broken" and "failed in phase" in row(found, "ill").reason
    assert ["goes on without a plugin" in record.message for record in caplog.records] == [True]


def test_only_observers_may_be_tolerated(install: Any, manager: Any, thing: Any) -> None:
    install("sampling", "sampler", thing("sampler"))
    with pytest.raises(PluginError, match="only observe; 'sampling' also fills 'sampler'"):
        manager("sampling", plugin_config={"sampling": {"on_error": "warn"}})
    install("ill", "hooks", "")
    with pytest.raises(PluginError, match=r"ill\.on_error must be 'stop' or 'warn', got 'ignore'"):
        manager("ill", plugin_config={"ill": {"on_error": "ignore"}})


def test_a_tolerated_hook_is_logged_a_few_times_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Failing(), Failing()
    hooks = bind_hooks([("a", first), ("b", second)], tolerated=["a", "b"])
    assert hooks.post_schedule is not None
    for _ in range(30):
        assert hooks.post_schedule("plan") == []
    assert (first.calls, second.calls) == (30, 30)
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 20 and messages[-1].endswith("further ones are not logged")


def test_a_tolerated_wrapper_is_refused() -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def post_schedule(self, plan: Any):  # type: ignore[no-untyped-def]
            return (yield)

    with pytest.raises(PluginError, match="'a' wraps 'post_schedule' and cannot be set to warn"):
        bind_hooks([("a", Wrapper())], tolerated=["a"])


# -- at run time


SAMPLER = """
class Thing:
    def sample(self, logits, rows):
        return self.draw(logits)

    def draw(self, logits):
        raise OSError("no noise")
"""
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def test_a_failure_at_run_time_names_the_plugin_and_ends_the_requests_of_the_step(install: Any) -> None:
    install("ill", "sampler", SAMPLER)
    plugins = ["ill", failing := Failing()]
    with LLM(MODEL, plugins=plugins, plugin_config=WARN, num_pages=8, disable_log_stats=True) as llm:
        (output,) = llm.generate(["Hello"], PARAMS, use_tqdm=False)
        llm.engine.scheduler.audit()
    assert output.error == "the step it was in failed: OSError: no noise, in plugin 'ill' of dist-ill 1.0"
    assert failing.calls >= 1  # and its own failures stopped nothing
