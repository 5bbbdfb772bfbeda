"""EngineArgs: one field per command-line flag, and its way into the config objects. Torch-free."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.config import (
    DEFAULT_MODEL,
    CacheConfig,
    EngineConfig,
    GrammarConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculationConfig,
    parse_size,
    parse_speculate,
)
from deepinfer_core.errors import ConfigError, nearest
from deepinfer_core.plugins.settings import check_config
from deepinfer_core.plugins.typed_config import parse_assignments


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _plugins(value: Any) -> tuple[Any, ...] | Mapping[str, Any]:
    """Plugins as a tuple; a single text is a list of names, as on the command line. A table stays one for now."""
    return value if isinstance(value, Mapping) else tuple(_names(value) if isinstance(value, str) else value)


def _plugin_config(value: Any) -> dict[str, Any]:
    """Tables by plugin; on the command line they come as a list of ``name.key=value``."""
    return parse_assignments(value) if isinstance(value, list) else check_config(value or {})


def _flag(
    help: str,
    metavar: str | None = None,
    *,
    read: Callable[[str], Any] | None = None,
    none: str = "",
    repeated: bool = False,
) -> dict[str, Any]:
    """What the command line needs to know about a field. ``none`` says what a default of None does."""
    return {"help": help, "metavar": metavar, "read": read, "none": none, "repeated": repeated}


@attrs.define(kw_only=True)
class EngineArgs:
    """What a user may set about an engine; the same names in Python and, with dashes, on the command line."""

    model: str | Path = attrs.field(
        default=DEFAULT_MODEL,
        metadata=_flag(
            "folder of a checkpoint (config.json, *.safetensors, tokenizer), name of an installed one (see deepinfer "
            "models list), or org/name on the Hugging Face hub",
            "MODEL",
        ),
    )
    tokenizer: str | Path | None = attrs.field(
        default=None, metadata=_flag("folder of the tokenizer", "PATH", none="the model's folder")
    )
    max_model_len: int | None = attrs.field(
        default=None,
        metadata=_flag(
            "longest prompt plus output, in tokens", "N", read=int, none="the model's maximum, or what the cache holds"
        ),
    )
    seed: int = attrs.field(
        default=0, metadata=_flag("seed of the generator for requests without their own seed", "N", read=int)
    )
    max_num_seqs: int = attrs.field(default=256, metadata=_flag("sequences that run at once", "N", read=int))
    max_num_batched_tokens: int = attrs.field(
        default=2048, metadata=_flag("rows of one step, decode and prefill together", "N", read=int)
    )
    max_chunk_tokens: int | None = attrs.field(
        default=None,
        metadata=_flag("rows of one step that one prompt may take", "N", read=int, none="max-num-batched-tokens"),
    )
    overlap: str = attrs.field(
        default="auto",
        metadata=_flag(
            "plan a step while the one before is computed: on, off, or auto: on devices that compute by themselves",
            "auto|on|off",
        ),
    )
    trace: str | Path | None = attrs.field(
        default=None,
        metadata=_flag("write what host and device do, and when, as a Chrome trace", "FILE", none="no trace"),
    )
    num_pages: int | None = attrs.field(
        default=None,
        metadata=_flag("cache pages of 128 tokens", "N", read=int, none="as many as kv-cache-memory holds"),
    )
    kv_cache_memory: int | str | None = attrs.field(
        default=None,
        metadata=_flag(
            "memory for cache pages, such as 4GiB", "SIZE", read=parse_size,
            none="what is useful, up to half of the free memory",
        ),
    )  # fmt: skip
    speculate: int | str = attrs.field(
        default="auto",
        metadata=_flag(
            "tokens drafted ahead of each step: off, a number, or auto: as many as pay, where there is a drafter",
            "off|N|auto", read=parse_speculate,
        ),
    )  # fmt: skip
    verifier: str = attrs.field(
        default="coupled",
        metadata=_flag(
            "how drafts are verified: coupled (tokens as without drafts), greedy (the same, for greedy requests "
            "only) or rejection (equal in distribution)",
            "NAME",
        ),
    )
    backend: str = attrs.field(default="auto", metadata=_flag("backend plugin to run on", "NAME"))
    plugins: tuple[Any, ...] = attrs.field(
        default=(), converter=_plugins, metadata=_flag("plugins to activate, separated by commas", "NAMES", read=_names)
    )
    plugin_config: Mapping[str, Any] = attrs.field(
        default=None,
        converter=_plugin_config,
        metadata=_flag("a key of a plugin's configuration; repeatable", "NAME.KEY=VALUE", none="none", repeated=True),
    )
    config: str | Path | None = attrs.field(
        default=None,
        metadata=_flag(
            "TOML file that selects and configures plugins", "FILE",
            none="the user's own, if it exists; see deepinfer plugins enable",
        ),
    )  # fmt: skip
    banner: bool = attrs.field(
        default=True, metadata=_flag("log the active plugins at start, or show them on a terminal")
    )
    num_threads: int | None = attrs.field(
        default=None, metadata=_flag("threads for computing on the CPU", "N", read=int, none="the backend decides")
    )
    grammar_timeout: float = attrs.field(
        default=20.0, metadata=_flag("longest time that a request's grammar may be compiled", "SECONDS", read=float)
    )
    grammar_max_size: int | str = attrs.field(
        default=1 << 20, metadata=_flag("longest grammar or schema of a request, such as 1MiB", "SIZE", read=parse_size)
    )
    grammar_cache_size: int = attrs.field(default=128, metadata=_flag("compiled grammars that are kept", "N", read=int))
    load_watchdog_seconds: float = attrs.field(
        default=1800.0, metadata=_flag("give up loading weights after this time", "SECONDS", read=float)
    )
    use_tqdm: bool = attrs.field(default=True, metadata=_flag("show progress bars on a terminal"))
    disable_log_stats: bool = attrs.field(default=False, metadata=_flag("do not log statistics"))
    log_stats_interval: float = attrs.field(
        default=10.0, metadata=_flag("time between statistics lines", "SECONDS", read=float)
    )

    def __attrs_post_init__(self) -> None:
        if isinstance(self.plugins, Mapping):
            tables = check_config(self.plugins)
            both = sorted(tables.keys() & self.plugin_config.keys())
            if both:
                raise ConfigError(f"{both[0]!r} is configured by plugins and by plugin_config; keep one")
            self.plugin_config = {**self.plugin_config, **tables}
            self.plugins = tuple(tables)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineArgs:
        """From keyword arguments. Raises ConfigError for an unknown name, with the nearest known one."""
        known = attrs.fields_dict(cls)
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown engine argument {name!r}{nearest(name, known)} (known: {', '.join(known)})")
        return cls(**values)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add one option per field to ``parser``."""
        group = parser.add_argument_group("engine")
        for field in attrs.fields(cls):
            group.add_argument(f"--{field.name.replace('_', '-')}", **_option(field))

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> EngineArgs:
        """From parsed options; other attributes of ``namespace`` are ignored."""
        fields = (field.name for field in attrs.fields(cls))
        return cls(**{name: getattr(namespace, name) for name in fields if hasattr(namespace, name)})

    def create_engine_config(self) -> EngineConfig:
        """The validated config objects. Raises ConfigError naming the field, its value and the rule."""
        scheduler = {"max_chunk_tokens": self.max_chunk_tokens} if self.max_chunk_tokens is not None else {}
        return EngineConfig(
            model=ModelConfig(
                model=self.model,
                tokenizer=self.tokenizer,
                max_model_len=self.max_model_len,
                seed=self.seed,
                load_watchdog_seconds=self.load_watchdog_seconds,
            ),
            cache=CacheConfig(num_pages=self.num_pages, kv_cache_memory=self.kv_cache_memory),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                overlap=self.overlap,
                **scheduler,
            ),
            parallel=ParallelConfig(num_threads=self.num_threads),
            grammar=GrammarConfig(
                timeout_seconds=self.grammar_timeout,
                max_size=self.grammar_max_size,
                cache_size=self.grammar_cache_size,
            ),
            speculation=SpeculationConfig(speculate=self.speculate, verifier=self.verifier),
            backend=self.backend,
            plugins=self.plugins,
            plugin_config=self.plugin_config,
            config_file=self.config,
            banner=self.banner,
            use_tqdm=self.use_tqdm,
            disable_log_stats=self.disable_log_stats,
            log_stats_interval=self.log_stats_interval,
            trace=self.trace,
        )


def _option(field: attrs.Attribute[Any]) -> dict[str, Any]:
    """Keyword arguments of ``add_argument`` for one field."""
    text = field.metadata["help"]
    if isinstance(field.default, bool):
        action = argparse.BooleanOptionalAction if field.default else "store_true"
        return {"action": action, "default": field.default, "help": f"{text} (default: {field.default})"}
    default = {None: field.metadata["none"], (): "none"}.get(field.default, field.default)
    option = {"default": field.default, "help": f"{text} (default: {default})", "metavar": field.metadata["metavar"]}
    if field.metadata["repeated"]:
        option["action"] = "append"
    if field.metadata["read"] is not None:
        option["type"] = _reader(field.metadata["read"])
    return option


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """``read`` with its own error message kept by argparse."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = read.__name__
    return convert
