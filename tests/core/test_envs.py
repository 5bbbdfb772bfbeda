"""Environment variables: one strict parser, and misspelt names are not ignored (known fault 37)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core import envs
from deepinfer_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("0", False), ("true", True), ("False", False), ("yes", True), ("off", False), (" 1 ", True)],
)
def test_booleans_mean_what_they_say(text: str, value: bool) -> None:
    assert envs.read("DEEPINFER_DEBUG", {"DEEPINFER_DEBUG": text}) is value


@pytest.mark.parametrize("text", ["", "enabled", "2", "-1", "tru", "10"])
def test_nonsense_is_refused_with_the_name_and_the_value(text: str) -> None:
    with pytest.raises(ConfigError, match=f"DEEPINFER_DEBUG must be one of 1, true.*got '{text}'"):
        envs.check({"DEEPINFER_DEBUG": text})


@given(st.sampled_from(["1", "true", "yes", "on", "0", "false", "no", "off"]), st.data())
def test_case_and_blanks_do_not_matter(word: str, data: st.DataObject) -> None:
    mixed = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in word)
    padded = data.draw(st.text(" \t", max_size=3)) + mixed + data.draw(st.text(" \t", max_size=3))
    assert envs.parse_bool(padded) == (word in ("1", "true", "yes", "on"))


def test_every_variable_has_its_default_when_unset() -> None:
    assert {name: envs.read(name, {}) for name in envs.VARIABLES} == {
        "DEEPINFER_PLUGINS": (),
        "DEEPINFER_PLUGIN_CONFIG": {},
        "DEEPINFER_CONFIG": "",
        "DEEPINFER_LOG_LEVEL": "warning",
        "DEEPINFER_DEBUG": False,
    }


def test_names_and_levels() -> None:
    assert envs.read("DEEPINFER_PLUGINS", {"DEEPINFER_PLUGINS": " a, b ,,"}) == ("a", "b")
    assert envs.read("DEEPINFER_LOG_LEVEL", {"DEEPINFER_LOG_LEVEL": " INFO"}) == "info"
    with pytest.raises(ConfigError, match="must be one of debug, info, warning, error, got 'loud'"):
        envs.read("DEEPINFER_LOG_LEVEL", {"DEEPINFER_LOG_LEVEL": "loud"})


def test_a_misspelt_name_is_refused_and_a_foreign_one_warned_of() -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_DEBG; did you mean 'DEEPINFER_DEBUG'"):
        envs.check({"DEEPINFER_DEBG": "1"})
    with pytest.warns(UserWarning, match="DEEPINFER_XYZZY is no environment variable of DeepInfer"):
        envs.check({"DEEPINFER_XYZZY": "1"})
    assert envs.unknown({"DEEPINFER_XYZZY": "1", "PATH": "x", "DEEPINFER_DEBUG": "1"}) == {"DEEPINFER_XYZZY": ""}
