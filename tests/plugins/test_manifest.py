"""A manifest is checked whole before anything is imported; each rule names the key, the value and itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.manifest import ManifestError, parse_manifest, read_manifest

GOOD = {
    "name": "x",
    "api": ">=1.0,<3",
    "component": [{"seam": "sampler", "name": "mine", "object": "pkg.mod:Thing"}],
}


def with_component(**changes: object) -> dict[str, object]:
    return {**GOOD, "component": [{**GOOD["component"][0], **changes}]}  # type: ignore[dict-item]


def test_a_full_manifest_is_read() -> None:
    extra = {"roles": ["driver"], "before": ["a"], "after": ["b"], "capabilities": {"graphs": True, "dtypes": ["x"]}}
    (component,) = parse_manifest(with_component(**extra)).components
    assert (component.seam, component.name, component.object) == ("sampler", "mine", "pkg.mod:Thing")
    assert (component.roles, component.before, component.after) == (("driver",), ("a",), ("b",))
    assert component.capabilities == {"graphs": True, "dtypes": ["x"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**GOOD, "nmae": "x"}, "unknown key 'nmae'; did you mean 'name'?"),
        ({k: v for k, v in GOOD.items() if k != "api"}, "missing key 'api'"),
        ({**GOOD, "name": 3}, "name must be a string, got 3"),
        ({**GOOD, "name": "a b"}, "name must be letters, digits"),
        ({**GOOD, "api": "1"}, "api must be a range such as '>=1.0,<2', got '1'"),
        ({**GOOD, "component": []}, "component must be at least one"),
        ({**GOOD, "component": {"seam": "sampler"}}, r"write [[component]]"),
        ({**GOOD, "components": []}, r"write [[component]]"),
        ({**GOOD, "component": GOOD["component"] * 2}, "component must be unique within the seam 'sampler'"),  # type: ignore[operator]
        (with_component(seam="sampel"), "component 1: unknown seam 'sampel'; did you mean 'sampler'?"),
        (with_component(objct="a:b"), "component 1: unknown key 'objct'; did you mean 'object'?"),
        (with_component(object="pkg.mod"), "object must be 'package.module:Object', got 'pkg.mod'"),
        (with_component(roles=["boss"]), "roles must be a non-empty part of ['driver', 'worker'], got ['boss']"),
        (with_component(roles="driver"), "roles must be a list of strings, got 'driver'"),
        (with_component(probe="a:b"), "probe must be absent: only the backend seam is probed, got 'a:b'"),
        (with_component(seam="backend", probe="a"), "probe must be 'package.module:function', got 'a'"),
        (with_component(default=1), "default must be true or false, got 1"),
        (with_component(seam="command", default=True), "default must be absent: only an exclusive seam has a default"),
        (with_component(capabilities=["x"]), "capabilities must be a table"),
        (with_component(capabilities={"x": {"y": 1}}), "capabilities.x must be a plain value"),
        (with_component(seam="model"), "capabilities.architectures must be a non-empty list of strings, got None"),
        (with_component(seam="model", capabilities={"architectures": "X"}), "capabilities.architectures must be"),
        (with_component(seam="multimodal", capabilities={"modalities": []}), "capabilities.modalities must be"),
    ],
)
def test_each_rule_is_refused_with_its_key_and_value(data: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        parse_manifest(data)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"name = 1\n"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "deepinfer_plugin.toml"
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=re.escape(str(path))):
        read_manifest(path)


@given(st.integers(0, 3), st.integers(0, 12), st.sampled_from([">=", "<=", ">", "<", "=="]))
def test_api_ranges_compare_versions_as_numbers(major: int, minor: int, operator: str) -> None:
    manifest = parse_manifest({**GOOD, "api": f"{operator}{major}.{minor}"})
    have, bound = SEAMS["sampler"].version, (major, minor)
    holds = {
        ">=": have >= bound, "<=": have <= bound, ">": have > bound, "<": have < bound, "==": have == bound,
    }[operator]  # fmt: skip
    assert (manifest.incompatibility() is None) == holds


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["seam", "name", "object", "roles", "capabilities", "probe", "before", "after"]


@given(st.dictionaries(st.sampled_from(["name", "api", "summary", "component"]), json_values), st.data())
def test_nonsense_is_a_manifest_error_and_nothing_else(top: dict[str, object], data: st.DataObject) -> None:
    table = {**GOOD["component"][0], data.draw(st.sampled_from(KEYS)): data.draw(json_values)}  # type: ignore[dict-item]
    for candidate in ({**GOOD, **top}, {**GOOD, "component": [table]}):
        try:
            parse_manifest(candidate)
        except ManifestError as error:
            assert str(error)
