"""The configuration objects the engine is built from. Torch-free; every value is checked.

:class:`~deepinfer_core.arg_utils.EngineArgs` is what a user sets; it becomes these, in one :class:`EngineConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.cache import PAGE_TOKENS

#: The model where none is named; ``deepinfer-model-NAME`` ships it. The only name of a plugin in the core.
DEFAULT_MODEL = "tiny"

#: Share of the free memory that caches may take when neither pages nor bytes were asked for.
DEFAULT_MEMORY_SHARE = 0.5

#: Largest count that the native scheduler holds.
_MAX_COUNT = 2**31 - 1

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def parse_size(value: int | str) -> int:
    """Bytes from an integer or from text such as ``4GiB``, ``512M`` or ``1.5GB``.

    ``KiB``, ``K`` and so on are powers of 1024, ``KB`` powers of 1000. Raises ConfigError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"a memory size must look like 4GiB, 512MiB or 1000000 (bytes), got {value!r}")
    return int(float(match[1]) * unit)


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _integer(low: int, high: int | None = None, *, none_means: str | None = None) -> Validator:
    """A validator: an int within bounds; None is allowed when ``none_means`` says what it does."""
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is None and none_means is not None:
            return
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
            also = f", or None ({none_means})" if none_means is not None else ""
            raise ConfigError(f"{attribute.name} must be {bounds}{also}, got {value!r}")

    return validate


def _positive_seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{attribute.name} must be a number of seconds above 0, got {value!r}")


def _a_bool(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name} must be True or False, got {value!r}")


def _a_path_or_name(value: object) -> str | Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(f"a model must be the path of a folder or a name, got {value!r}")
    return value


def _a_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(f"a tokenizer must be the path of a folder, got {value!r}")
    return Path(value)


@attrs.frozen(kw_only=True)
class ModelConfig:
    """What to load and how long its sequences may get."""

    model: str | Path = attrs.field(default=DEFAULT_MODEL, converter=_a_path_or_name)
    """A folder with ``config.json``, safetensors and, usually, the tokenizer; or a name for one."""
    tokenizer: Path | None = attrs.field(default=None, converter=attrs.converters.optional(_a_path))
    """Folder of the tokenizer; None: the model's."""
    max_model_len: int | None = attrs.field(
        default=None, validator=_integer(1, none_means="the model's maximum, or what fits the cache")
    )
    """Longest prompt plus output, in tokens."""
    seed: int = attrs.field(default=0, validator=_integer(0, 2**64 - 1))
    """Seed of the generator that gives requests without a seed theirs."""
    load_watchdog_seconds: float = attrs.field(default=1800.0, validator=_positive_seconds)

    def resolve_max_model_len(self, model_max: int, cache_tokens: int) -> int:
        """The limit in force, given the model's longest position and the tokens the cache can hold.

        Raises ConfigError when more was asked for than either allows.
        """
        wanted = self.max_model_len
        if wanted is None:
            return min(model_max, cache_tokens)
        if wanted > model_max:
            raise ConfigError(f"max_model_len must be at most the model's maximum of {model_max}, got {wanted}")
        if wanted > cache_tokens:
            raise ConfigError(
                f"max_model_len is {wanted} but the cache holds {cache_tokens} tokens; lower max_model_len, or "
                "raise num_pages or kv_cache_memory"
            )
        return wanted


@attrs.frozen(kw_only=True)
class CacheConfig:
    """Memory for keys and values, in pages of :data:`~deepinfer_core.interfaces.cache.PAGE_TOKENS` tokens."""

    num_pages: int | None = attrs.field(
        default=None, validator=_integer(1, _MAX_COUNT - 1, none_means="from the memory")
    )
    """Pages that sequences can use (the null page is not one of them)."""
    kv_cache_memory: int | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(parse_size),
        validator=_integer(1, none_means="from the free memory"),
    )
    """Bytes for pages."""

    def __attrs_post_init__(self) -> None:
        if self.num_pages is not None and self.kv_cache_memory is not None:
            raise ConfigError(
                f"num_pages ({self.num_pages}) and kv_cache_memory ({self.kv_cache_memory} bytes) both size the "
                "cache; give one"
            )

    def resolve_num_pages(self, *, page_bytes: int, useful_pages: int, free_bytes: int) -> int:
        """Usable pages to allocate.

        ``page_bytes`` may be 0 (no layer keeps pages). ``useful_pages`` is what all sequences at their longest
        could fill; ``free_bytes`` is memory left after weights and slots. Raises ConfigError when not even one
        page fits, or not what was asked for.
        """
        if self.num_pages is not None:
            if self.num_pages * page_bytes > free_bytes:
                raise ConfigError(
                    f"num_pages {self.num_pages} takes {self.num_pages * page_bytes} bytes but only {free_bytes} are "
                    f"free; num_pages must be at most {max(free_bytes, 0) // page_bytes} here"
                )
            return self.num_pages
        budget = self.kv_cache_memory
        if budget is None:
            budget = int(free_bytes * DEFAULT_MEMORY_SHARE)
        pages = min(useful_pages, budget // page_bytes) if page_bytes else useful_pages
        if pages < 1:
            raise ConfigError(
                f"one cache page of {PAGE_TOKENS} tokens takes {page_bytes} bytes but only {budget} are available for "
                "the cache; raise kv_cache_memory or free memory"
            )
        if pages * page_bytes > free_bytes:
            raise ConfigError(
                f"kv_cache_memory {budget} gives {pages} useful pages of {page_bytes} bytes but only {free_bytes} "
                "bytes are free; lower kv_cache_memory"
            )
        return pages


def _an_overlap(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("auto", "on", "off"):
        raise ConfigError(f"{attribute.name} must be 'auto', 'on' or 'off', got {value!r}")


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """Limits of one step."""

    max_num_seqs: int = attrs.field(default=256, validator=_integer(1, 65536))
    """Sequences that run at once; each holds a state slot."""
    max_num_batched_tokens: int = attrs.field(default=2048, validator=_integer(1, _MAX_COUNT))
    """Rows of one step, decode and prefill together."""
    max_chunk_tokens: int = attrs.field(
        default=attrs.Factory(lambda self: self.max_num_batched_tokens, takes_self=True), validator=_integer(1)
    )
    """Rows of one step that one sequence's prefill may take."""
    overlap: str = attrs.field(default="auto", validator=_an_overlap)
    """Whether a step is planned while the one before is computed: ``on``, ``off``, or ``auto``: on devices that compute
    by themselves. Outputs are the same either way."""

    def __attrs_post_init__(self) -> None:
        if self.max_chunk_tokens > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_chunk_tokens must be at most max_num_batched_tokens ({self.max_num_batched_tokens}), "
                f"got {self.max_chunk_tokens}"
            )


@attrs.frozen(kw_only=True)
class ParallelConfig:
    """How the work is spread. One process for now; its threads are what there is to choose."""

    num_threads: int | None = attrs.field(default=None, validator=_integer(1, 4096, none_means="the backend decides"))


#: How drafts are verified, see deepinfer_core.speculation.verifier.
VERIFIERS = ("coupled", "greedy", "rejection")


def parse_speculate(value: int | str) -> int | str:
    """``off``, ``auto``, or a number of drafts of at least 1; numbers may come as text. Raises ConfigError."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not is_count and value not in ("off", "auto"):
        raise ConfigError(f"speculate must be 'off', 'auto' or a number of drafts of at least 1, got {value!r}")
    return value


def _a_verifier(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in VERIFIERS:
        raise ConfigError(f"{attribute.name} must be one of {', '.join(VERIFIERS)}, got {value!r}")


@attrs.frozen(kw_only=True)
class SpeculationConfig:
    """Whether and how tokens are drafted ahead of the model."""

    speculate: int | str = attrs.field(default="auto", converter=parse_speculate)
    """``off``; the number of drafts verified in each step; or ``auto``: as many as pay, if there is a drafter."""
    verifier: str = attrs.field(default="coupled", validator=_a_verifier)

    def resolve_max_drafts(self, available: int) -> int:
        """Drafts that one step may verify, given how many the drafter proposes (0: there is none).

        Raises ConfigError when more were asked for.
        """
        if self.speculate == "off":
            return 0
        if self.speculate == "auto":
            return available
        wanted = int(self.speculate)
        if not available:
            raise ConfigError(
                f"speculate={wanted} needs a drafter: this checkpoint brings none that an installed plugin runs; name "
                "a speculator plugin in plugins=[...], or leave speculate out"
            )
        if wanted > available:
            raise ConfigError(f"speculate must be at most {available}, the drafts that are proposed, got {wanted}")
        return wanted


@attrs.frozen(kw_only=True)
class GrammarConfig:
    """Limits of structured outputs."""

    timeout_seconds: float = attrs.field(default=20.0, validator=_positive_seconds)
    """Longest time that a grammar may be compiled."""
    max_size: int = attrs.field(default=1 << 20, converter=parse_size, validator=_integer(1))
    """Longest grammar, in bytes of its text."""
    cache_size: int = attrs.field(default=128, validator=_integer(0, _MAX_COUNT))
    """Compiled grammars that are kept for requests to come."""


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Everything an engine needs: the parts, the plugin selection, and logging."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    grammar: GrammarConfig = attrs.field(factory=GrammarConfig)
    speculation: SpeculationConfig = attrs.field(factory=SpeculationConfig)
    backend: str = "auto"
    """Name of a backend plugin component, or ``auto``."""
    plugins: tuple[Any, ...] = ()
    """Names, objects or classes given by the user."""
    plugin_config: Mapping[str, Any] = attrs.field(factory=dict)
    """Their configuration, by ``plugin`` or ``plugin/component``, then by key."""
    config_file: str | Path | None = None
    """TOML file that selects and configures plugins; None: the user's own, if it exists."""
    banner: bool = attrs.field(default=True, validator=_a_bool)
    """Log the active plugins at start, once per process."""
    use_tqdm: bool = attrs.field(default=True, validator=_a_bool)
    """Progress bars while loading; they show only on a terminal."""
    disable_log_stats: bool = attrs.field(default=False, validator=_a_bool)
    log_stats_interval: float = attrs.field(default=10.0, validator=_positive_seconds)
    """Seconds between statistics lines."""
    trace: str | Path | None = None
    """Where to write a Chrome trace of host and device; None: nowhere."""
