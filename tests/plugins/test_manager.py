"""The seams that choose for themselves, Python objects, and commands."""

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

THING = "class Thing:\n    label = {label!r}\n    kinds = ()\n    def compile(self, spec, vocabulary): ...\n"
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


def test_resolving_refuses_misspelt_environment_variables() -> None:
    found = PluginManager(environ={"DEEPINFER_PLUGIN": "x"})
    with pytest.raises(ConfigError, match="DEEPINFER_PLUGIN; did you mean 'DEEPINFER_PLUGINS'"):
        found.resolve()


# -- the model seam


def model(install: Install, name: str, architecture: str, **options: str) -> None:
    extra = f'capabilities = {{ architectures = ["{architecture}"] }}'
    install(name, "model", MODEL.format(label=name), extra=extra, **options)


def test_the_checkpoint_selects_the_model_plugin(install: Install) -> None:
    model(install, "other", "OtherForCausalLM")
    found = manager()
    assert row(found, "other").reason == "used for OtherForCausalLM"
    assert found.model_for("OtherForCausalLM").label == "other"
    assert row(found, "other").reason == "serves OtherForCausalLM"
    assert found.model_for("OtherForCausalLM") is found.model_for("OtherForCausalLM")


def test_a_named_model_plugin_wins_over_an_installed_one(install: Install) -> None:
    model(install, "old", "OtherForCausalLM")
    model(install, "new", "OtherForCausalLM")
    assert manager("new").model_for("OtherForCausalLM").label == "new"
    with pytest.raises(PluginError, match=r"'new' of dist-new 1.0 and 'old' of dist-old 1.0; name one"):
        manager().model_for("OtherForCausalLM")
    with pytest.raises(PluginError, match=r"'new' \(dist-new 1.0\) and 'old' \(dist-old 1.0\); leave out"):
        manager("old", "new").model_for("OtherForCausalLM")


def test_what_the_model_plugin_ships_comes_before_the_built_in_defaults(write: Install) -> None:
    components = (
        '[[component]]\nseam = "model"\nname = "m"\nobject = "plugin_full:Model"\n'
        'capabilities = { architectures = ["Full"] }\n'
        '[[component]]\nseam = "sampler"\nname = "s"\nobject = "plugin_full:Sampler"\n'
    )
    code = MODEL.format(label="full").replace("Thing", "Model") + "class Sampler:\n    def sample(self): ...\n"
    write("full", f'name = "full"\napi = ">=1.0,<3"\n{components}', code)
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
    install("sampling", "sampler", "class Thing:\n    def sample(self, logits, batch): ...\n")

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
    assert chosen() == ("gpu", "the only backend besides the default one whose probe succeeds")


def test_two_working_backends_are_ambiguous_so_the_cpu_is_used(device: Any) -> None:
    device("gpu", "return None")
    device("npu", "return None")
    assert chosen() == ("cpu", "several other backends could run (gpu, npu); choose one by backend=")
    assert chosen(backend="npu") == ("npu", "named as backend")
    assert chosen("gpu") == ("gpu", "named in plugins")


def test_without_a_default_backend_one_has_to_be_named(device: Any) -> None:
    device("gpu", "return 'no device'")
    found = manager("sampling")
    found.records = [record for record in found.records if record.name != "cpu"]
    with pytest.raises(PluginError, match=r"no installed backend would be the default.*installed: gpu\); name one by"):
        found.resolve()


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
    kinds = ()

    def compile(self, spec: object, vocabulary: object) -> None: ...


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
