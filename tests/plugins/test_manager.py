"""What is selected, what is loaded, and how each failure is reported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer_core.errors import ConfigError, PluginError
from deepinfer_core.hookspecs import hookimpl
from deepinfer_core.plugins import PluginManager, PluginRow

Install = Callable[..., Path]

THING = "class Thing:\n    label = {label!r}\n"
MODEL = THING + "    def translate_config(self, hf_config): ...\n    def build(self, config, context): ...\n"
BACKEND = (
    THING
    + "    name = kernels = device = 'x'\n"
    + "    def configure(self, num_threads): ...\n    def memory_info(self): return 1, 1\n"
)


def manager(*plugins: object, env: str | None = None, **options: Any) -> PluginManager:
    environ = {} if env is None else {"DEEPINFER_PLUGINS": env}
    return PluginManager(plugins, environ=environ, **options)


def row(found: PluginManager, component: str) -> PluginRow:
    (result,) = [r for r in found.table() if r.component == component]
    return result


@pytest.fixture
def grammar(install: Install) -> Callable[..., Path]:
    """Install a plugin that fills the exclusive seam ``grammar`` and says its name."""
    return lambda name, **options: install(name, "grammar", THING.format(label=name), **options)


# -- selection


def test_installed_is_not_active(grammar: Install) -> None:
    grammar("idle")
    found = manager()
    assert row(found, "idle").state == "available"
    with pytest.raises(PluginError, match=r"no component of seam 'grammar' is active.*idle \(plugin idle\)"):
        found.component("grammar")
    assert "plugin_idle" not in sys.modules


@pytest.mark.parametrize(("arguments", "env"), [(("chosen",), None), ((), "chosen"), ((), " chosen ,, ")])
def test_a_plugin_is_selected_by_argument_or_environment(grammar: Install, arguments: Any, env: str | None) -> None:
    grammar("chosen")
    found = manager(*arguments, env=env)
    assert found.component("grammar").label == "chosen"
    assert found.component("grammar", "chosen") is found.component("grammar")
    assert row(found, "chosen").state == "active"


def test_arguments_win_over_the_environment_and_the_loser_is_not_imported(grammar: Install) -> None:
    grammar("first")
    grammar("second")
    found = manager("first", env="second")
    assert found.component("grammar").label == "first"
    assert row(found, "second").state == "available"
    assert row(found, "second").reason == "overridden by 'first' (dist-first 1.0)"
    assert "plugin_second" not in sys.modules


def test_a_selected_plugin_replaces_the_built_in_default(install: Install) -> None:
    install("sampling", "sampler", "class Thing:\n    def sample(self, logits, rows): ...\n")
    found = manager("sampling")
    assert row(found, "sampling").state == "active"
    assert row(found, "default").reason == "overridden by 'sampling' (dist-sampling 1.0)"


def test_two_for_an_exclusive_seam_fail_naming_both(grammar: Install) -> None:
    grammar("first")
    grammar("second")
    with pytest.raises(PluginError, match=r"'first' \(dist-first 1.0\) and 'second' \(dist-second 1.0\)"):
        manager("first", "second")


def test_two_components_of_one_name_fail_naming_both(install: Install) -> None:
    install("first", "kv_connector", component="same")
    install("second", "kv_connector", component="same")
    with pytest.raises(PluginError, match=r"'same' \(dist-first 1.0\) and 'same' \(dist-second 1.0\)"):
        manager("first", "second")


def test_an_unknown_name_fails_with_the_nearest(grammar: Install) -> None:
    grammar("my-grammar")
    for options in ({"env": "my-gramar"}, {}):
        with pytest.raises(PluginError, match=r"unknown plugin 'my-gramar'; did you mean 'my-grammar'"):
            manager(*() if options else ("my-gramar",), **options)


def test_a_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(PluginError, match=re.escape("plugins must be a list, got 'cpu'")):
        PluginManager("cpu")


def test_a_plugin_named_twice_counts_once(grammar: Install) -> None:
    grammar("once")
    assert manager("once", "once", env="once").component("grammar").label == "once"


# -- order


def test_a_chain_is_ordered_by_before_and_after_then_by_distribution(install: Install) -> None:
    code = THING + "    attach = find = load = save = finished = close = None\n"
    install("a", "kv_connector", code.format(label="a"), distribution="z-last")
    install("b", "kv_connector", code.format(label="b"), distribution="a-first", extra='after = ["c"]')
    install("c", "kv_connector", code.format(label="c"), distribution="m-middle")
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")):
        assert [p.label for p in manager(*names).chain("kv_connector")] == ["c", "b", "a"]


def test_contradicting_orders_name_their_owners(install: Install) -> None:
    install("a", "kv_connector", extra='before = ["b"]')
    install("b", "kv_connector", extra='before = ["a"]')
    with pytest.raises(PluginError, match=r"contradict each other: 'a' \(dist-a 1.0\), 'b' \(dist-b 1.0\)"):
        manager("a", "b")


# -- failures


@pytest.mark.parametrize(
    ("code", "phase", "cause"),
    [
        ("import no_such_package_at_all", "import", "ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("raise SystemExit(3)", "import", "SystemExit: 3"),
        ("", "import", "AttributeError: module 'plugin_ill' has no attribute 'Thing'"),
        ("class Thing:\n    def __init__(self):\n        1 / 0", "configure", "ZeroDivisionError: division by zero"),
        (
            "class Thing:\n    pass",
            "bind",
            "'ill' lacks add_arguments, run of deepinfer_core.interfaces.command:Command",
        ),
    ],
)
def test_each_phase_fails_with_one_kind_of_message(install: Install, code: str, phase: str, cause: str) -> None:
    install("ill", "command", code)
    with pytest.raises(PluginError) as caught:
        manager("ill").component("command", "ill")
    message = str(caught.value)
    assert f"plugin 'ill' (dist-ill 1.0, entry point ill = plugin_ill) failed in phase {phase!r}: {cause}" in message
    assert "To go on without it: leave 'ill' out of plugins" in message


def test_a_broken_plugin_fails_only_when_selected(write: Install) -> None:
    write("sick", "nonsense")
    assert [r.state for r in manager().table() if r.name == "sick"] == ["broken"]
    with pytest.raises(PluginError, match=r"phase 'discover'.*\n.*deepinfer plugins disable sick"):
        manager(env="sick")


def test_a_shared_name_fails_when_selected(install: Install) -> None:
    install("twin", distribution="first")
    install("twin", distribution="second", package="plugin_twin_two")
    with pytest.raises(PluginError, match=r"claimed by first 1.0 and second 1.0"):
        manager("twin")


def test_resolving_refuses_misspelt_environment_variables() -> None:
    found = PluginManager(environ={"DEEPINFER_PLUGIN": "x"})
    with pytest.raises(ConfigError, match="DEEPINFER_PLUGIN; did you mean 'DEEPINFER_PLUGINS'"):
        found.resolve()


# -- the model seam


def model(install: Install, name: str, architecture: str, **options: str) -> None:
    extra = f'capabilities = {{ architectures = ["{architecture}"] }}'
    install(name, "model", MODEL.format(label=name), extra=extra, **options)


def test_the_checkpoint_selects_the_model_plugin(install: Install) -> None:
    model(install, "llama", "LlamaForCausalLM")
    found = manager()
    assert row(found, "llama").reason == "used for LlamaForCausalLM"
    assert found.model_for("LlamaForCausalLM").label == "llama"
    assert row(found, "llama").reason == "serves LlamaForCausalLM"
    assert found.model_for("LlamaForCausalLM") is found.model_for("LlamaForCausalLM")


def test_a_named_model_plugin_wins_over_an_installed_one(install: Install) -> None:
    model(install, "old", "LlamaForCausalLM")
    model(install, "new", "LlamaForCausalLM")
    assert manager("new").model_for("LlamaForCausalLM").label == "new"
    with pytest.raises(PluginError, match=r"'new' of dist-new 1.0 and 'old' of dist-old 1.0; name one"):
        manager().model_for("LlamaForCausalLM")
    with pytest.raises(PluginError, match=r"'new' \(dist-new 1.0\) and 'old' \(dist-old 1.0\); leave out"):
        manager("old", "new").model_for("LlamaForCausalLM")


def test_what_the_model_plugin_ships_comes_before_the_built_in_defaults(write: Install) -> None:
    components = (
        '[[component]]\nseam = "model"\nname = "m"\nobject = "plugin_full:Model"\n'
        'capabilities = { architectures = ["Full"] }\n'
        '[[component]]\nseam = "sampler"\nname = "s"\nobject = "plugin_full:Sampler"\n'
    )
    code = MODEL.format(label="full").replace("Thing", "Model") + "class Sampler:\n    def sample(self): ...\n"
    write("full", f'name = "full"\napi = ">=1.0,<2"\n{components}', code)
    found = manager()
    assert row(found, "default").state == "active"
    assert found.model_for("Full").label == "full"
    assert type(found.component("sampler")).__module__ == "plugin_full"
    assert row(found, "default").reason == "overridden by 's' (dist-full 1.0)"


def test_an_unknown_architecture_names_the_known_ones(write: Install) -> None:
    write("sick", "nonsense")
    with pytest.raises(PluginError) as caught:
        manager().model_for("DeepseekV4ForCausalLM")
    message = str(caught.value)
    assert "'DeepseekV4ForCausalLM'; did you mean 'DeepseekV41ForCausalLM'?" in message
    assert "; not usable: sick (" in message


# -- the backend seam


@pytest.fixture
def device(install: Install, site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a backend whose probe's body is given, and a sampler so that resolving loads nothing of ours."""
    install("sampling", "sampler", "class Thing:\n    def sample(self, logits, rows): ...\n")

    def run(name: str, probe: str) -> None:
        folder = install(name, "backend", BACKEND.format(label=name), extra=f'probe = "plugin_{name}.check:probe"')
        (folder / "check.py").write_text(f"def probe():\n    {probe}\n")

    return run


def chosen(*plugins: str, **options: Any) -> tuple[str, str]:
    found = manager("sampling", *plugins, **options).resolve()
    (active,) = [r for r in found.table() if r.seam == "backend" and r.state == "active"]
    return active.name, active.reason


def test_without_other_backends_the_cpu_is_used(device: Any) -> None:
    assert chosen() == ("cpu", "default backend")


@pytest.mark.parametrize(
    "probe", ["return 'no device'", "1 / 0", "import os; os._exit(3)", "return True", "print('{}')\n    return 'no'"]
)
def test_a_backend_whose_probe_fails_is_passed_over(device: Any, probe: str) -> None:
    device("gpu", probe)
    assert chosen() == ("cpu", "default backend")
    assert "plugin_gpu" not in sys.modules


def test_the_only_backend_whose_probe_succeeds_is_used(device: Any) -> None:
    device("gpu", "print('noise')")
    device("npu", "return 'no device'")
    assert chosen() == ("gpu", "the only backend besides the CPU's whose probe succeeds")


def test_two_working_backends_are_ambiguous_so_the_cpu_is_used(device: Any) -> None:
    device("gpu", "return None")
    device("npu", "return None")
    assert chosen() == ("cpu", "several other backends could run (gpu, npu); choose one by backend=")
    assert chosen(backend="npu") == ("npu", "named as backend")
    assert chosen("gpu") == ("gpu", "named in plugins")


def test_a_named_backend_that_cannot_run_stops_start_up(device: Any) -> None:
    device("gpu", "return 'no device node'")
    for choice in ({"backend": "gpu"}, {"env": "gpu"}):
        with pytest.raises(PluginError, match="phase 'probe': no device node"):
            chosen(**choice)
    with pytest.raises(PluginError, match=r"unknown backend 'gup'; did you mean 'gpu'"):
        chosen(backend="gup")


def test_a_hanging_probe_is_given_up(device: Any) -> None:
    from deepinfer_core.plugins.probe import run_probes

    device("gpu", "import time; time.sleep(60)")
    answers = run_probes(["plugin_gpu.check:probe"], timeout=1.0)
    assert answers == {"plugin_gpu.check:probe": "the probe did not answer within 1 s"}


# -- objects


class Grammar:
    seam = "grammar"


class Counting:
    def __init__(self) -> None:
        self.plans: list[object] = []

    @hookimpl
    def post_schedule(self, plan: object) -> None:
        self.plans.append(plan)


def test_objects_and_classes_fill_seams() -> None:
    instance = Grammar()
    assert manager(instance).component("grammar") is instance
    assert isinstance(manager(Grammar).component("grammar"), Grammar)
    assert row(manager(instance), "Grammar") == PluginRow(
        "Grammar", "grammar", "Grammar", "Python object", "", "active", "given in plugins=[...]"
    )


def test_an_objects_hook_is_called(device: Any) -> None:
    first, second = Counting(), Counting()
    found = manager("sampling", first, second).resolve()
    assert found.hooks.implemented() == ("post_schedule",)
    assert found.hooks.post_schedule is not None
    found.hooks.post_schedule("plan")
    assert (first.plans, second.plans) == (["plan"], ["plan"])
    assert [r.component for r in found.table() if r.seam == "hooks"] == ["Counting", "Counting-2"]


def test_a_hooks_plugin_is_bound_and_ordered_before_objects(device: Any, install: Install) -> None:
    code = (
        "from deepinfer_core.hookspecs import hookimpl\nclass Thing:\n"
        "    @hookimpl\n    def post_schedule(self, plan):\n        plan.append({name!r})\n"
    )
    install("late", code=code.format(name="late"), extra='after = ["early"]', distribution="a")
    install("early", code=code.format(name="early"), distribution="b")
    found = manager(Counting, "late", "early", "sampling").resolve()
    plan: list[str] = []
    assert found.hooks.post_schedule is not None
    found.hooks.post_schedule(plan)
    assert plan == ["early", "late"]


def failing_class() -> type:
    class Failing:
        def __init__(self) -> None:
            raise OSError("no disk")

    return Failing


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (object(), "provides nothing: mark hooks with"),
        (None, "provides nothing"),
        (SimpleNamespace(seam="grammer"), "unknown seam 'grammer'; did you mean 'grammar'?"),
        (SimpleNamespace(seam=7), "unknown seam 7"),
        (SimpleNamespace(seam="model"), "seam 'model' needs the attribute 'architectures'"),
        (failing_class(), "failed in phase 'configure': OSError: no disk"),
    ],
)
def test_an_object_that_provides_nothing_usable_is_refused(item: object, message: str) -> None:
    with pytest.raises(PluginError, match=re.escape(message)):
        manager(item)


def test_a_misspelt_hook_of_an_object_stops_start_up(device: Any) -> None:
    class Misspelt:
        @hookimpl
        def post_shedule(self, plan: object) -> None: ...

    with pytest.raises(PluginError, match=r"phase 'bind'.*unknown hook 'post_shedule'; did you mean 'post_schedule'"):
        manager(Misspelt(), "sampling").resolve()


# -- commands and unknown seams


def test_a_command_is_imported_when_it_is_called(install: Install) -> None:
    code = "class Thing:\n    def add_arguments(self, parser): ...\n    def run(self, args): return 0\n"
    install("tool", "command", code, extra='capabilities = { help = "does things" }')
    found = manager()
    assert found.commands() == {"tool": "does things"}
    assert "plugin_tool" not in sys.modules
    assert found.command("tool").run(None) == 0
    with pytest.raises(PluginError, match="no plugin provides the command 'tol'"):
        found.command("tol")


def test_an_unknown_seam_fails_with_the_nearest() -> None:
    with pytest.raises(PluginError, match=r"unknown seam 'samplr'; did you mean 'sampler'"):
        manager().chain("samplr")
