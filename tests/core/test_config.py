"""Configuration objects refuse bad values by name, and resolve what was left open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    parse_size,
)
from deepinfer_core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 << 30), ("4G", 4 << 30), ("4 gib", 4 << 30), ("1.5GiB", 3 << 29), ("2GB", 2 * 10**9),
        ("512M", 512 << 20), ("1KB", 1000), ("1k", 1024), ("1TiB", 1 << 40), ("123", 123), ("7B", 7), (99, 99),
    ],
)  # fmt: skip
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-4G", "4X", "4GiBs", "4e9", "0x10", True, None, 1.5])
def test_bad_sizes(text):
    with pytest.raises(ConfigError, match="must look like 4GiB") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "GiB", "TB"]))
def test_sizes_scale(number, unit):
    assert parse_size(f"{number}{unit}") == number * parse_size(f"1{unit}")


CLASSES = {
    ModelConfig: {"max_model_len": 1, "seed": 0},
    CacheConfig: {"num_pages": 1, "kv_cache_memory": 1},
    SchedulerConfig: {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_chunk_tokens": 1},
    ParallelConfig: {"num_threads": 1},
}
FIELDS = [(cls, name, low) for cls, fields in CLASSES.items() for name, low in fields.items()]


@pytest.mark.parametrize(("cls", "name", "low"), FIELDS, ids=lambda value: str(getattr(value, "__name__", value)))
def test_integers_are_checked(cls, name, low):
    required = {"model": "x"} if cls is ModelConfig else {}
    assert getattr(cls(**required, **{name: low}), name) == low
    for bad in (low - 1, True, 1.0, float("nan"), "x"):
        with pytest.raises(ConfigError) as caught:
            cls(**required, **{name: bad})
        assert name in str(caught.value) or "memory size" in str(caught.value)
        assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("name", ["max_num_seqs", "seed"])
def test_upper_bounds(name):
    with pytest.raises(ConfigError, match=f"{name} must be an integer from"):
        (SchedulerConfig if name == "max_num_seqs" else _model)(**{name: 2**64})


def _model(**values) -> ModelConfig:
    return ModelConfig(model="x", **values)


@pytest.mark.parametrize("value", [0, -1, float("nan"), "10", True, None])
def test_seconds(value):
    with pytest.raises(ConfigError, match="load_watchdog_seconds must be a number of seconds above 0"):
        _model(load_watchdog_seconds=value)


@pytest.mark.parametrize("value", ["", None, 3])
def test_paths(value):
    with pytest.raises(ConfigError, match="a model must be the path of a folder or a name"):
        ModelConfig(model=value)
    if value is not None:
        with pytest.raises(ConfigError, match="a tokenizer must be the path of a folder"):
            _model(tokenizer=value)


def test_a_model_is_kept_as_it_was_named():
    assert (_model().model, _model().tokenizer) == ("x", None)
    assert ModelConfig(model=Path("x")).model == Path("x") and _model(tokenizer="y").tokenizer == Path("y")


def test_configs_are_frozen():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        _model().seed = 3


def test_chunks_fit_a_step():
    assert SchedulerConfig(max_num_batched_tokens=64).max_chunk_tokens == 64
    with pytest.raises(ConfigError, match=r"max_chunk_tokens must be at most max_num_batched_tokens \(64\), got 65"):
        SchedulerConfig(max_num_batched_tokens=64, max_chunk_tokens=65)


def test_the_cache_is_sized_once():
    with pytest.raises(ConfigError, match="both size the cache; give one"):
        CacheConfig(num_pages=3, kv_cache_memory="1GiB")


@given(model_max=st.integers(1, 10**6), cache=st.integers(1, 10**6), wanted=st.none() | st.integers(1, 10**6))
def test_max_model_len(model_max, cache, wanted):
    config = _model(max_model_len=wanted)
    if wanted is None:
        assert config.resolve_max_model_len(model_max, cache) == min(model_max, cache)
    elif wanted <= min(model_max, cache):
        assert config.resolve_max_model_len(model_max, cache) == wanted
    else:
        with pytest.raises(ConfigError) as caught:
            config.resolve_max_model_len(model_max, cache)
        assert str(wanted) in str(caught.value)
        assert str(model_max if wanted > model_max else cache) in str(caught.value)


@given(page=st.integers(1, 10**6), useful=st.integers(1, 10**4), free=st.integers(0, 10**10))
def test_pages_are_useful_and_fit(page, useful, free):
    config = CacheConfig()
    if free // 2 < page:
        with pytest.raises(ConfigError, match=f"takes {page} bytes but only {free // 2} are available"):
            config.resolve_num_pages(page_bytes=page, useful_pages=useful, free_bytes=free)
    else:
        pages = config.resolve_num_pages(page_bytes=page, useful_pages=useful, free_bytes=free)
        assert 1 <= pages <= useful and pages * page <= free / 2
        assert pages == useful or (pages + 1) * page > free // 2, "memory is used as far as it is useful"


def test_pages_as_asked_for():
    sizes = {"page_bytes": 1000, "useful_pages": 50, "free_bytes": 20_000}
    assert CacheConfig(num_pages=7).resolve_num_pages(**sizes) == 7
    assert CacheConfig(kv_cache_memory=20_999).resolve_num_pages(**sizes) == 20
    with pytest.raises(ConfigError, match="raise kv_cache_memory"):
        CacheConfig(kv_cache_memory=999).resolve_num_pages(**sizes)
    with pytest.raises(ConfigError, match="num_pages 21 takes 21000 bytes but only 20000 are free"):
        CacheConfig(num_pages=21).resolve_num_pages(**sizes)
    with pytest.raises(ConfigError, match="only 20000 bytes are free; lower kv_cache_memory"):
        CacheConfig(kv_cache_memory=21_000).resolve_num_pages(**sizes)
    assert CacheConfig(kv_cache_memory=10**9).resolve_num_pages(**{**sizes, "free_bytes": 50_000}) == 50


def test_a_model_without_pages():
    assert CacheConfig().resolve_num_pages(page_bytes=0, useful_pages=5, free_bytes=0) == 5


@pytest.mark.parametrize("name", ["disable_log_stats", "use_tqdm"])
def test_switches_are_booleans(name):
    parts = {"cache": CacheConfig(), "scheduler": SchedulerConfig(), "parallel": ParallelConfig()}
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got 1"):
        EngineConfig(model=_model(), **parts, **{name: 1})


def test_configuration_needs_no_torch():
    code = "import sys, deepinfer_core.arg_utils, deepinfer_core.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
