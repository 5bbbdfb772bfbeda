"""Rule 2, installed is not active: arguments, then the file, then the environment, then defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins import PluginManager

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
SEAM = "moe"  # an exclusive one without a default


@pytest.fixture
def filler(install: Any, thing: Any) -> Callable[..., Path]:
    """``filler(name)``: a plugin for SEAM that says its name."""
    return lambda name, **options: install(name, SEAM, thing(SEAM, name), **options)


def test_installed_is_not_active(filler: Any, manager: Any, row: Any) -> None:
    filler("idle")
    found = manager()
    assert row(found, "idle").state == "available"
    with pytest.raises(PluginError, match=r"no component of seam 'moe' is active.*idle \(plugin idle\)"):
        found.component(SEAM)
    assert "plugin_idle" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "sources"),
    [
        (("chosen",), {}),
        ((), {"env": "chosen"}),
        ((), {"env": " chosen ,, "}),
        ((), {"file": 'plugins = ["chosen"]'}),
        (("chosen", "chosen"), {"env": "chosen", "file": 'plugins = ["chosen"]'}),
    ],
)
def test_a_plugin_is_selected_by_any_source(filler: Any, manager: Any, row: Any, arguments: Any, sources: Any) -> None:
    filler("chosen")
    found = manager(*arguments, **sources)
    assert found.component(SEAM).label == "chosen"
    assert found.component(SEAM, "chosen") is found.component(SEAM)
    assert row(found, "chosen").state == "active"


def test_the_first_source_that_fills_a_seam_wins_and_the_others_are_not_imported(
    filler: Any, manager: Any, row: Any
) -> None:
    for name in ("argument", "file", "environment"):
        filler(name)
    sources = {"env": "environment", "file": 'plugins = ["file"]'}
    for arguments, winner in ((("argument",), "argument"), ((), "file")):
        found = manager(*arguments, **sources)
        assert found.component(SEAM).label == winner
        assert row(found, "environment").reason == f"overridden by '{winner}' (dist-{winner} 1.0)"
    assert row(found, "file").reason.startswith("named in ") and row(found, "file").reason.endswith("config.toml")
    assert "plugin_environment" not in sys.modules
    assert manager(env="environment").component(SEAM).label == "environment"


def test_a_selected_plugin_replaces_the_built_in_default(install: Any, manager: Any, row: Any, thing: Any) -> None:
    install("sampling", "sampler", thing("sampler"))
    found = manager("sampling")
    assert row(found, "sampling").state == "active"
    assert row(found, "default").reason == "overridden by 'sampling' (dist-sampling 1.0)"


@pytest.mark.parametrize(("arguments", "sources"), [(("fast-mo",), {}), ((), {"env": "fast-mo"}), ((), {"file": 1})])
def test_an_unknown_name_fails_with_the_nearest(filler: Any, manager: Any, arguments: Any, sources: Any) -> None:
    filler("fast-moe")
    sources = {"file": 'plugins = ["fast-mo"]'} if "file" in sources else sources
    with pytest.raises(PluginError, match=r"unknown plugin 'fast-mo'; did you mean 'fast-moe'"):
        manager(*arguments, **sources)


def test_a_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(PluginError, match=re.escape("plugins must be a list, got 'cpu'")):
        PluginManager("cpu")


# -- defaults


def test_a_default_is_taken_where_the_seam_is_needed_and_nothing_selected_fills_it(
    install: Any, manager: Any, row: Any, thing: Any
) -> None:
    install("usual", "moe", thing("moe", "usual"), extra="default = true")
    install("other", "moe", thing("moe", "other"))
    found = manager()
    assert (row(found, "usual").state, row(found, "usual").reason) == ("available", "used where none is selected")
    assert found.chain("moe") == ()  # whoever can do without one gets none
    assert found.component("moe").label == "usual"
    assert (row(found, "usual").state, row(found, "usual").reason) == ("active", "the default of seam moe")
    assert manager("other").component("moe").label == "other"
    disabled = manager(file='disabled = ["usual"]')
    with pytest.raises(
        PluginError, match=r"no component of seam 'moe' is active \(installed: other \(plugin other\)\)"
    ):
        disabled.component("moe")


def test_two_defaults_of_a_seam_are_refused_naming_both(install: Any, manager: Any, thing: Any) -> None:
    install("one", "moe", thing("moe", "one"), extra="default = true")
    install("two", "moe", thing("moe", "two"), extra="default = true")
    with pytest.raises(PluginError, match=r"the default of seam 'moe' is claimed by 'one' of .* and 'two' of .*; name"):
        manager().component("moe")
    assert manager("two").component("moe").label == "two"


# -- disabled ones


def test_a_disabled_plugin_is_out_of_everything_that_chooses_by_itself(
    install: Any, manager: Any, row: Any, thing: Any
) -> None:
    models = 'capabilities = { architectures = ["Some"] }'
    install("model-a", "model", thing("model"), extra=models)
    install("model-b", "model", thing("model"), extra=models)
    install("tool", "command", thing("command"))
    found = manager(file='disabled = ["model-b", "tool", "gone"]')
    assert (row(found, "model-b").state, row(found, "tool").state) == ("disabled", "disabled")
    assert re.fullmatch(r"disabled in .*config\.toml", row(found, "tool").reason)
    found.model_for("Some")
    assert row(found, "model-a").state == "active" and "plugin_model_b" not in sys.modules
    assert "tool" not in found.commands()


def test_the_file_disables_what_the_environment_names_but_not_what_an_argument_names(
    filler: Any, manager: Any, row: Any
) -> None:
    filler("chosen")
    file = 'disabled = ["chosen"]'
    assert row(manager(env="chosen", file=file), "chosen").state == "disabled"
    assert row(manager("chosen", file=file), "chosen").state == "active"


def test_a_disabled_plugin_that_is_broken_says_both(write: Any, manager: Any) -> None:
    write("sick", "nonsense")
    (found,) = [row for row in manager(file='disabled = ["sick"]').table() if row.name == "sick"]
    assert found.state == "disabled" and "(and broken: " in found.reason
    with pytest.raises(PluginError, match="failed in phase 'discover'"):
        manager("sick", file='disabled = ["sick"]')


# -- output


HOSTILE = """
import os
os._exit(3)
"""


def test_hostile_installed_plugins_change_no_output(install: Any, write: Any) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=4, ignore_eos=True)

    def generated() -> list[Any]:
        with LLM(MODEL, num_pages=8, max_num_seqs=2, disable_log_stats=True) as llm:
            return [output.outputs[0] for output in llm.generate(["Hello", [7, 8, 9]], params, use_tqdm=False)]

    before = generated()
    keys = {"model": "Other", "checkpoint": "other", "multimodal": "smell"}
    for name, seam in SEAMS.items():
        extra = f'capabilities = {{ {seam.key} = ["{keys[name]}"] }}' if seam.key else ""
        extra += '\nprobe = "plugin_evil_backend:probe"' if name == "backend" else ""
        install(f"evil-{name}", name, HOSTILE, extra=extra, package=f"plugin_evil_{name}")
    write("evil-sick", "nonsense", HOSTILE)
    assert generated() == before
    assert not [name for name in sys.modules if name.startswith("plugin_evil")]
