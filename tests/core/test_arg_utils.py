"""Every engine argument is a flag, documented with its default, and reaches its config object."""

from __future__ import annotations

import argparse
from pathlib import Path

import attrs
import pytest

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.errors import ConfigError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepinfer")
    EngineArgs.add_cli_args(parser)
    return parser


def parse(parser: argparse.ArgumentParser, line: str) -> EngineArgs:
    return EngineArgs.from_cli_args(parser.parse_args(line.split()))


@pytest.mark.parametrize("field", attrs.fields(EngineArgs), ids=lambda field: field.name)
def test_every_flag_shows_its_default(parser, field):
    text = " ".join(parser.format_help().replace("-\n", "-").split())
    described = field.metadata["none"] if field.default is None else "none" if field.default == () else field.default
    flag = f"--{field.name.replace('_', '-')}"
    assert flag in text
    assert "".join(f"{field.metadata['help']} (default: {described})".split()) in text.replace(" ", "")


def test_defaults_are_the_same_everywhere(parser):
    assert parse(parser, "--model x") == EngineArgs(model="x") == EngineArgs.from_dict({"model": "x"})


def test_flags_reach_the_configs(parser):
    config = parse(
        parser,
        "--model m --tokenizer t --max-model-len 9 --seed 3 --max-num-seqs 4 --max-num-batched-tokens 5 "
        "--max-chunk-tokens 2 --kv-cache-memory 4GiB --backend cpu --plugins a,b --num-threads 2 "
        "--load-watchdog-seconds 7 --no-use-tqdm --disable-log-stats --log-stats-interval 1.5",
    ).create_engine_config()
    assert (config.model.model, config.model.tokenizer) == ("m", Path("t"))
    assert (config.model.max_model_len, config.model.seed, config.model.load_watchdog_seconds) == (9, 3, 7.0)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (4, 5)
    assert config.scheduler.max_chunk_tokens == 2
    assert (config.cache.kv_cache_memory, config.cache.num_pages) == (4 << 30, None)
    assert (config.backend, config.plugins, config.parallel.num_threads) == ("cpu", ("a", "b"), 2)
    assert (config.use_tqdm, config.disable_log_stats, config.log_stats_interval) == (False, True, 1.5)
    for text, value in (("off", "off"), ("auto", "auto"), ("3", 3)):
        assert parse(parser, f"--speculate {text}").create_engine_config().speculation.speculate == value
    assert parse(parser, "--verifier rejection").create_engine_config().speculation.verifier == "rejection"
    assert parse(parser, "--model m --num-pages 6").create_engine_config().cache.num_pages == 6


def test_defaults_of_the_configs():
    config = EngineArgs(model="m").create_engine_config()
    assert config.model.tokenizer is None and config.scheduler.max_chunk_tokens == 2048
    assert config.cache.num_pages is config.cache.kv_cache_memory is config.parallel.num_threads is None


def test_unknown_arguments_are_named_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown engine argument 'max_num_seq'; did you mean 'max_num_seqs'"):
        EngineArgs.from_dict({"model": "x", "max_num_seq": 3})


def test_no_model_means_the_default_one(parser):
    assert EngineArgs.from_dict({}) == parse(parser, "") == EngineArgs(model="tiny")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--kv-cache-memory 4X", "must look like 4GiB"),
        ("--max-num-seqs many", "invalid int value: 'many'"),
    ],
)
def test_bad_flags_exit_with_2(parser, capsys, line, words):
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(line.split())
    assert caught.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(("given", "expected"), [("a, b", ("a", "b")), (["a"], ("a",)), ((), ()), ("", ())])
def test_plugins_are_names_or_objects(given, expected):
    assert EngineArgs(model="x", plugins=given).plugins == expected


def test_plugin_objects_are_kept():
    thing = object()
    assert EngineArgs(model="x", plugins=[thing]).create_engine_config().plugins == (thing,)


def test_bad_values_are_refused_when_the_configs_are_made():
    with pytest.raises(ConfigError, match="max_num_seqs must be an integer from 1 to 65536, got 0"):
        EngineArgs(model="x", max_num_seqs=0).create_engine_config()
