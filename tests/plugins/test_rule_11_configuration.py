"""Rule 11, typed configuration: one attrs class per component; the same keys from anywhere mean the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.cli.main import main
from deepinfer_core.cli.parser import Parser
from deepinfer_core.errors import ConfigError, PluginError
from deepinfer_core.plugins.settings import read_file
from deepinfer_core.plugins.typed_config import build_config, describe_config, parse_assignments

CODE = """
import attrs

def positive(instance, attribute, value):
    if value <= 0:
        raise ValueError(f"{attribute.name} must be above 0, got {value}")

@attrs.frozen
class Config:
    sigma: float = attrs.field(default=1.0, validator=positive, metadata={"help": "width"})
    label: str = "x"
    loud: bool = False
    ids: tuple[int, ...] = ()

class Thing:
    def __init__(self, config):
        self.config = config

    def add_arguments(self, parser): ...
    def run(self, args): return 0
"""
DECLARED = 'config = "plugin_knobs:Config"'
VALUES: dict[str, Any] = {"sigma": 2.5, "label": "7", "loud": True, "ids": (1, 2)}
FLAGS = ["knobs.sigma=2.5", "knobs.label=7", "knobs.loud=yes", "knobs.ids=[1, 2]"]
FILE = 'plugins = ["knobs"]\n[plugin_config.knobs]\nsigma = 2.5\nlabel = "7"\nloud = true\nids = [1, 2]\n'

MODEL = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"

Manager = Callable[..., Any]


@pytest.fixture
def knobs(install: Any) -> None:
    install("knobs", "command", CODE, extra=DECLARED)


def config_of(found: Any) -> dict[str, Any]:
    return attrs.asdict(found.component("command", "knobs").config)


# -- the same keys from anywhere


def from_flags(*flags: str) -> Mapping[str, Any]:
    parser = Parser(prog="x")
    EngineArgs.add_cli_args(parser)
    options = [word for flag in flags for word in ("--plugin-config", flag)]
    return EngineArgs.from_cli_args(parser.parse_args(options)).plugin_config


def test_python_flags_file_and_environment_give_the_same_result(knobs: None, manager: Manager) -> None:
    tables = {"knobs": VALUES}
    sources = {
        "python": manager("knobs", plugin_config=tables),
        "flags": manager("knobs", plugin_config=from_flags(*FLAGS)),
        "file": manager(file=FILE),
        "environment": manager(env="knobs", environ={"DEEPINFER_PLUGIN_CONFIG": json.dumps(tables)}),
        "object": manager("knobs", plugin_config={"knobs": _made()}),
    }
    assert {name: config_of(found) for name, found in sources.items()} == dict.fromkeys(sources, VALUES)


def _made() -> Any:
    import plugin_knobs  # type: ignore[import-not-found]

    return plugin_knobs.Config(**VALUES)


def test_precedence_is_by_key(knobs: None, manager: Manager) -> None:
    found = manager(
        "knobs",
        plugin_config={"knobs": {"sigma": 3.0}},
        file='[plugin_config.knobs]\nsigma = 4.0\nlabel = "file"\n',
        environ={"DEEPINFER_PLUGIN_CONFIG": '{"knobs": {"sigma": 5.0, "label": "env", "loud": true}}'},
    )
    assert config_of(found) == {"sigma": 3.0, "label": "file", "loud": True, "ids": ()}


def test_without_any_key_the_class_decides(knobs: None, manager: Manager) -> None:
    assert config_of(manager("knobs")) == {"sigma": 1.0, "label": "x", "loud": False, "ids": ()}


def test_one_component_of_several_is_addressed_by_plugin_and_component(write: Any, manager: Manager) -> None:
    component = '[[component]]\nseam = "command"\nname = "{0}"\nobject = "plugin_knobs:Thing{0}"\n' + DECLARED + "\n"
    text = 'name = "knobs"\napi = ">=1.0,<2"\n' + component.format("a") + component.format("b")
    write("knobs", text, CODE + "\nclass Thinga(Thing): ...\nclass Thingb(Thing): ...\n")
    found = manager("knobs", plugin_config={"knobs": {"label": "both"}, "knobs/b": {"sigma": 9}})
    configs = [found.component("command", name).config for name in "ab"]
    assert [(config.label, config.sigma) for config in configs] == [("both", 1.0), ("both", 9.0)]


def test_a_class_given_in_python_names_its_config_class(manager: Manager) -> None:
    @attrs.frozen
    class Config:
        depth: int = 1

    class Mine:
        seam = "command"
        config_class = Config

        def __init__(self, config: Config) -> None:
            self.config = config

        def add_arguments(self, parser: Any) -> None: ...

        def run(self, args: Any) -> int:
            return 0

    found = manager(Mine, plugin_config={"Mine": {"depth": 3}})
    assert found.component("command", "Mine").config == Config(3)


def test_a_table_of_plugins_is_names_with_their_configuration(knobs: None) -> None:
    args = EngineArgs(plugins={"knobs": {"sigma": 2}, "other": {}}, plugin_config={"third": {"x": 1}})
    assert args.plugins == ("knobs", "other")
    assert args.plugin_config == {"third": {"x": 1}, "knobs": {"sigma": 2}, "other": {}}
    with pytest.raises(ConfigError, match="'knobs' is configured by plugins and by plugin_config; keep one"):
        EngineArgs(plugins={"knobs": {}}, plugin_config={"knobs": {}})
    with pytest.raises(ConfigError, match=re.escape("plugin_config['knobs'] must be a table of keys, got 3")):
        EngineArgs(plugins={"knobs": 3})


# -- what is refused


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        (["--plugin-config", "knbos.sigma=1"], {}, "plugin_config names 'knbos' (arguments), which is not installed; "
         "did you mean 'knobs'?"),
        (["--plugin-config", "knobs"], {}, "plugin configuration must look like name.key=value, got 'knobs'"),
        (["--plugin-confg", "knobs.sigma=1"], {}, "unrecognized arguments: --plugin-confg; did you mean "
         "'--plugin-config'?"),
        (["--plugins", "knbos"], {}, "unknown plugin 'knbos'; did you mean 'knobs'?"),
        ([], {"DEEPINFER_PLUGIN_CONFG": "{}"}, "unknown environment variable DEEPINFER_PLUGIN_CONFG; did you mean "
         "'DEEPINFER_PLUGIN_CONFIG'?"),
        (["--config", "/no/such.toml"], {}, "configuration file /no/such.toml: No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_misspelt_ends_the_command_with_2_before_a_model_is_loaded(
    knobs: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    environ: dict[str, str],
    message: str,
) -> None:
    """Known fault 37."""
    monkeypatch.setattr("deepinfer_core.engine.llm_engine.LLMEngine.__init__", lambda *args: pytest.fail("it started"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["generate", "--model", str(MODEL), *options, "Hello"]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_key_ends_the_command_with_2_before_weights_are_read(
    install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("knobs", "sampler", CODE + "\n    def sample(self, logits, rows): ...\n", extra=DECLARED)
    monkeypatch.setattr("deepinfer_core.worker.worker.load_weights", lambda *args, **named: pytest.fail("it loads"))
    options = ["--plugins", "knobs", "--plugin-config", "knobs.sgima=1"]
    assert main(["generate", "--model", str(MODEL), *options, "Hello"]) == 2
    assert "failed in phase 'configure': unknown key 'sgima'; did you mean 'sigma'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sgima": 1}, "unknown key 'sgima'; did you mean 'sigma'? (known: sigma, label, loud, ids)"),
        ({"sigma": "wide"}, "sigma must be float, got 'wide'"),
        ({"sigma": True}, "sigma must be float, got True"),
        ({"loud": 1}, "loud must be bool, got 1"),
        ({"label": 7}, "label must be str, got 7"),
        ({"ids": [1, "2"]}, "ids[1] must be int, got '2'"),
        ({"sigma": -1}, "ValueError: sigma must be above 0, got -1"),
    ],
)
def test_a_wrong_key_or_value_stops_start_up(knobs: None, manager: Manager, table: Any, message: str) -> None:
    with pytest.raises(PluginError, match=re.escape(message)) as caught:
        manager("knobs", plugin_config={"knobs": table}).component("command", "knobs")
    assert "failed in phase 'configure'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plugin_config": {"knbos": {}}}, "plugin_config names 'knbos' (arguments), which is not installed; did you"),
        ({"file": "[plugin_config.knbos]\n"}, "config.toml), which is not installed; did you mean 'knobs'?"),
        ({"plugin_config": {"knobs/other": {}}}, "did you mean 'knobs/knobs'?"),
        ({"plugin_config": {"knobs": 3}}, "plugin_config['knobs'] must be a table of keys, got 3"),
        ({"file": 'plugin = ["knobs"]\n'}, "unknown key 'plugin'; did you mean 'plugins'?"),
        ({"file": 'plugins = "knobs"\n'}, "plugins must be a list of plugin names, got 'knobs'"),
        ({"file": "plugins = ["}, "is not UTF-8 TOML"),
        ({"file": 'disabled = ["core"]\n'}, "'core' cannot be disabled"),
        ({"config_file": "/no/such/file"}, "configuration file /no/such/file: No such file or directory"),
        ({"environ": {"DEEPINFER_PLUGIN_CONFIG": "knobs"}}, "DEEPINFER_PLUGIN_CONFIG must be JSON like"),
        ({"environ": {"DEEPINFER_PLUGIN_CONFIG": "[]"}}, "DEEPINFER_PLUGIN_CONFIG must be JSON like"),
    ],
)
def test_misspelt_names_and_shapes_are_refused(knobs: None, manager: Manager, options: Any, message: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=re.escape(message)):
        manager(**options)


def test_configuration_without_effect_is_refused(knobs: None, install: Any, manager: Manager, thing: Any) -> None:
    install("plain", "sampler", thing("sampler"))
    with pytest.raises(PluginError, match="'knobs', which is not active; name it in plugins"):
        manager("plain", plugin_config={"knobs": {"sigma": 2}}).resolve()
    with pytest.raises(PluginError, match="'plain' takes no configuration, got depth"):
        manager("plain", plugin_config={"plain": {"depth": 2}}).resolve()
    manager("plain", file="[plugin_config.knobs]\nsigma = 2\n").resolve()  # it waits there until it is active


@pytest.mark.parametrize("text", ["knobs", "knobs.sigma", "sigma=1", ".sigma=1", "knobs.=1", "knobs.a b=1", "=1"])
def test_a_flag_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"must look like name.key=value, got {text!r}")):
        parse_assignments([text])


def test_a_flag_given_twice_is_refused_and_names_may_have_dots() -> None:
    assert parse_assignments(["a.b.key=x=y", "a.other="]) == {"a.b": {"key": "x=y"}, "a": {"other": ""}}
    with pytest.raises(ConfigError, match=r"a.b.key is given twice"):
        parse_assignments(["a.b.key=1", "a.b.key=2"])


# -- types


@attrs.frozen
class Inner:
    depth: int = 0


@attrs.frozen
class Types:
    flag: bool = False
    count: int = 0
    ratio: float = 0.0
    name: str = ""
    path: Path | None = None
    mode: Literal["fast", "exact", 3] = "fast"
    either: int | str = 0
    many: list[float] = attrs.field(factory=list)
    pair: tuple[int, str] = (0, "")
    table: Mapping[str, int] = attrs.field(factory=dict)
    inner: Inner = Inner()
    anything: Any = None


plain = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.booleans(),
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "name": st.text(alphabet=st.characters(exclude_categories=["C"])),
        "mode": st.sampled_from(["fast", "exact", 3]),
        "either": st.integers() | st.sampled_from(["a", "b c"]),
        "many": st.lists(st.integers(-9, 9).map(float), max_size=3),
        "pair": st.tuples(st.integers(), st.just("t")),
        "inner": st.builds(Inner, st.integers()),
    },
)


@given(plain)
def test_a_flag_says_what_its_text_says_in_the_type_of_its_key(values: dict[str, Any]) -> None:
    """``repr`` of numbers, lists and booleans is TOML, up to the case of booleans; text is taken as it is."""
    texts = [f"x.{key}={_typed(value)}" for key, value in values.items()]
    assert build_config(Types, [parse_assignments(texts).get("x", {})]) == Types(**values)


def _typed(value: Any) -> str:
    if isinstance(value, Inner):
        return f"{{ depth = {value.depth} }}"
    return json.dumps(list(value)) if isinstance(value, tuple) else str(value)


@given(plain)
def test_a_table_says_the_same(values: dict[str, Any]) -> None:
    table = {
        k: {"depth": v.depth} if isinstance(v, Inner) else list(v) if k == "pair" else v for k, v in values.items()
    }
    assert build_config(Types, [table, {"count": 5}]) == Types(**{"count": 5, **values})


@pytest.mark.parametrize("word", ["1", "0", "true", "False", "yes", "off", " 1 ", "", "enabled", "2"])
def test_booleans_of_a_plugin_are_read_as_those_of_the_environment(word: str) -> None:
    """Known fault 37: "true" must not mean off, "0" not on, and nonsense nothing."""
    table = parse_assignments([f"x.flag={word}"])["x"]
    if word in ("", "enabled", "2"):
        with pytest.raises(ConfigError, match=re.escape(f"flag must be bool, got {word!r}")):
            build_config(Types, [table])
    else:
        assert build_config(Types, [table]).flag is (word.strip().lower() in ("1", "true", "yes"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"inner": {"dept": 1}}, "unknown key 'inner.dept'; did you mean 'depth'"),
        ({"pair": [1]}, "pair must be tuple[int, str], got [1]"),
        ({"mode": "quick"}, "mode must be one of 'fast', 'exact', 3, got 'quick'"),
        ({"table": {"a": "b"}}, "table.a must be int, got 'b'"),
        ({"path": 3}, "path must be Path or None, got 3"),
        ({"either": 1.5}, "either must be int or str, got 1.5"),
        ({"inner": 3}, "inner must be Inner, got 3"),
    ],
)
def test_nested_mistakes_are_named_where_they_are(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_config(Types, [table])


def test_a_class_describes_its_keys() -> None:
    @attrs.frozen
    class Config:
        depth: int = attrs.field(metadata={"help": "how deep"})
        _hidden: str | None = None
        later: list[int] = attrs.field(factory=list)

    assert [list(entry.values()) for entry in describe_config(Config)] == [
        ["depth", "int", "required", "how deep"],
        ["hidden", "str or None", "None", ""],
        ["later", "list[int]", "[]", ""],
    ]
    with pytest.raises(ConfigError, match="the key 'depth' is missing: it has no default"):
        build_config(Config, [{}])
    assert build_config(Config, [{"depth": 1, "hidden": "h"}]) == Config(1, "h")


def test_the_file_in_the_documentation_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugin-settings.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.toml").write_text(block)
    layer = read_file(tmp_path / "config.toml")
    assert (layer.plugins, layer.disabled) == (("request-logger",), ("sm100",))
    assert layer.config["request-logger"] == {"path": "requests.jsonl", "on_error": "warn"}
