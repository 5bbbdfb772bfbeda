"""Rule 9, declared compatibility: what is not supported together refuses to start and says why."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import PluginError
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.manifest import ManifestError, parse_term


@pytest.fixture
def two(install: Any, manager: Any, thing: Any) -> Any:
    """``two(extra_of_the_sampler)``: a resolved manager with a sampler, a processor and a backend with capabilities."""
    install("processor", "logits_processor", thing("logits_processor"), extra="capabilities = { history = true }")
    backend = thing("backend").replace("Thing:", "Thing:\n    device = None")
    install("metal", "backend", backend, extra='capabilities = { graphs = true, dtypes = ["bf16", "f32"], level = 3 }')

    def make(extra: str, *others: str) -> Any:
        install("picky", "sampler", thing("sampler"), extra=extra)
        return manager("picky", "metal", *others).resolve()

    return make


@pytest.mark.parametrize("term", ["logits_processor", "logits_processor:processor", "logits_processor.history=true"])
def test_a_conflict_names_both_and_the_declaration(two: Any, term: str) -> None:
    extra = f'conflicts = ["{term}"]'
    with pytest.raises(PluginError) as caught:
        two(extra, "processor")
    assert str(caught.value) == (
        "the sampler 'picky' (dist-picky 1.0) cannot run together with the logits_processor 'processor' "
        f"(dist-processor 1.0): it declares conflicts = [{term!r}]; leave out one of them"
    )


@pytest.mark.parametrize("term", ["logits_processor", "logits_processor:other", "backend:cpu", "backend.graphs=false"])
def test_what_is_not_active_does_not_conflict(two: Any, term: str) -> None:
    assert two(f'conflicts = ["{term}"]').component("sampler")


@pytest.mark.parametrize(
    "term",
    ["backend", "backend:metal", "backend.graphs", "backend.graphs=true", "backend.dtypes=f32", "backend.level=3"],
)
def test_a_requirement_that_holds(two: Any, term: str) -> None:
    assert two(f'requires = ["{term}"]').component("sampler")


@pytest.mark.parametrize(
    "term", ["speculator", "backend:cpu", "backend.streams", "backend.dtypes=fp8", "backend.level=4"]
)
def test_a_requirement_that_does_not_hold_refuses_to_start(two: Any, term: str) -> None:
    with pytest.raises(PluginError, match=re.escape(f"'picky' (dist-picky 1.0) needs {term!r}, which no active")):
        two(f'requires = ["{term}"]')


def test_a_default_of_the_core_is_no_conflict_unless_it_is_named(manager: Any, install: Any, thing: Any) -> None:
    install("any", "logits_processor", thing("logits_processor"), extra='conflicts = ["sampler"]')
    install("own", "logits_processor", thing("logits_processor"), extra='conflicts = ["sampler:default"]')
    install("metal", "backend", thing("backend"))
    manager("any", "metal").resolve()
    with pytest.raises(PluginError, match="cannot run together with the sampler 'default'"):
        manager("own", "metal").resolve()


def test_an_object_declares_it_too(manager: Any, install: Any, thing: Any) -> None:
    install("metal", "backend", thing("backend"))

    class Mine:
        seam, name, conflicts = "logits_processor", "mine", ("backend:metal",)

        def check_parameters(self, parameters: Any) -> None: ...

        def process(self, logits: Any, rows: Any) -> Any:
            return logits

    with pytest.raises(PluginError, match=r"the logits_processor 'mine' \(Python object\) cannot run together with"):
        manager(Mine(), "metal").resolve()


@given(st.lists(st.sampled_from(list(SEAMS)), min_size=1, max_size=4, unique=True), st.data())
def test_a_term_means_one_seam_only(seams: list[str], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(seams)) + data.draw(st.sampled_from(["", ":a", ".x", ".x=1"]))
    term = parse_term("requires", text)
    components = [
        (seam, name, {"x": value}) for seam, name, value in itertools.product(seams, "ab", [1, "1", 2, [2, 1]])
    ]
    for seam, name, capabilities in components:
        expected = seam == term.seam and {
            "": True, ":a": name == "a", ".x": True, ".x=1": capabilities["x"] in (1, "1", [2, 1]),
        }[text.removeprefix(term.seam)]  # fmt: skip
        assert term.matches(seam, name, capabilities) is expected


@pytest.mark.parametrize(
    ("term", "message"),
    [("specultor", "unknown seam 'specultor'; did you mean 'speculator'?"), ("", "must be 'seam'"), ("a b", "must be")],
)
def test_a_misspelt_term_is_a_manifest_error(term: str, message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        parse_term("conflicts", term)
