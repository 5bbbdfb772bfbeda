"""What LLM and AsyncLLM have in common: an engine on a thread of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from deepinfer_core.plugins import PluginRow
    from deepinfer_core.tokenizer import Tokenizer


class EngineFront:
    """A model ready to generate.

    model: folder of a checkpoint in the published format, name of an installed one, or ``org/name`` on the
        Hugging Face hub.
    plugins: names of installed plugins, objects or classes; or a table of names with their configuration.
    engine_args: any field of :class:`deepinfer_core.arg_utils.EngineArgs`; an unknown one is refused.

    Raises ConfigError, CheckpointError or PluginError when it cannot start.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        plugins: Iterable[object] | Mapping[str, Any] = (),
        **engine_args: Any,
    ) -> None:
        from deepinfer_core.engine.engine_thread import EngineThread
        from deepinfer_core.engine.llm_engine import LLMEngine

        args = EngineArgs.from_dict({"model": model, "plugins": plugins, **engine_args})
        self.engine = LLMEngine(args.create_engine_config())
        self._thread = EngineThread(self.engine)
        self._ids = itertools.count()

    def abort(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests (None: all) early; their outputs so far come with finish reason ``abort``."""
        self.engine.abort_request(request_ids)

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer. Raises RequestError if it has none."""
        return self.engine.require_tokenizer()

    def get_metrics(self) -> dict[str, Any]:
        """Statistics of the engine so far."""
        return self.engine.get_metrics()

    @property
    def plugins(self) -> tuple[PluginRow, ...]:
        """Installed and given plugins, each with its state and the reason."""
        return self.engine.manager.table()
