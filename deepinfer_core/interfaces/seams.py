"""The seams: every place where a plugin can change what DeepInfer does. Pure data, imports nothing heavy."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

from attrs import frozen

#: What the core and native code of plugins agree on beyond Python: the attribute ``DEEPINFER_ABI`` of an extension.
#: It moves when structures or pointers that cross between them change their meaning.
NATIVE_ABI: Final = "deepinfer-1"

SeamKind = Literal["exclusive", "chained", "collected", "registry", "modality"]
Role = Literal["driver", "worker"]


@frozen
class Seam:
    """One extension point.

    kind: ``exclusive`` one component fills it; ``chained`` all, each fed by the one before it;
    ``collected`` all, independent of each other; ``registry`` and ``modality`` looked up by an entry of
    the capability ``key``.
    version: (major, minor); a plugin's manifest states the range it was written for.
    varies: what components do, with every member of the protocol, in backticks, where it belongs.
    protocol: ``"module:Protocol"`` a component must satisfy; None for hooks, which ``deepinfer_core.hookspecs``
        specifies, and for a seam that is not specified yet.
    runs_on: the processes that call its components: the driver (requests, scheduling, sampling) or each rank's worker.
    is_called: whether the engine asks the seam's components. One that it would leave unasked is refused at start-up.
    """

    name: str
    kind: SeamKind
    version: tuple[int, int]
    protocol: str | None
    varies: str
    key: str | None = None
    is_called: bool = True
    runs_on: tuple[Role, ...] = ("driver",)

    @property
    def is_eager(self) -> bool:
        """Whether components load at start-up; those that are looked up load when they are first asked for."""
        return self.key is None and self.name != "command"


_TABLE: Final = (
    Seam("backend", "exclusive", (1, 1), "deepinfer_core.interfaces.backend:Backend",
         "the device (`name`, `device`, `configure`), its memory (`memory_info`), its ops (`kernels`)",
         runs_on=("worker",)),
    Seam("model", "registry", (2, 0), "deepinfer_core.interfaces.model:Architecture",
         "how a config is read (`translate_config`), and the model made of it (`build`)",
         key="architectures", runs_on=("driver", "worker")),
    Seam("checkpoint", "registry", (1, 0), "deepinfer_core.interfaces.checkpoint:Checkpoint",
         "where the files of a named model are (`locate`)",
         key="models"),
    Seam("attention", "exclusive", (1, 0), "deepinfer_core.interfaces.attention:Attention",
         "ops of attention, compressor and indexer (`override`)",
         runs_on=("worker",)),
    Seam("moe", "exclusive", (1, 0), "deepinfer_core.interfaces.moe:Moe",
         "ops of router, activation and experts (`override`)",
         runs_on=("worker",)),
    Seam("speculator", "exclusive", (2, 0), "deepinfer_core.interfaces.speculator:Speculator",
         "how many tokens are drafted ahead (`num_drafts`), and by what (`build`)",
         runs_on=("worker",)),
    Seam("sampler", "exclusive", (2, 0), "deepinfer_core.interfaces.sampler:Sampler",
         "how logits become tokens (`sample`)"),
    Seam("logits_processor", "chained", (1, 0), "deepinfer_core.interfaces.logits_processor:LogitsProcessor",
         "edits of a row's logits (`process`), and who asks for them (`check_parameters`)"),
    Seam("grammar", "exclusive", (1, 0), "deepinfer_core.interfaces.grammar:GrammarEngine",
         "structured outputs: which forms (`kinds`), and grammars that follow them (`compile`)"),
    Seam("scheduler_policy", "exclusive", (1, 0), "deepinfer_core.interfaces.scheduler_policy:SchedulerPolicy",
         "admission, order of prefill, who gives way, prompt rows of a step (`decide`)",
         is_called=False),
    Seam("eplb_policy", "exclusive", (1, 0), "deepinfer_core.interfaces.eplb_policy:EplbPolicy",
         "which rank holds which experts (`place`)",
         is_called=False),
    Seam("kv_connector", "chained", (1, 0), "deepinfer_core.interfaces.kv_connector:KvConnector",
         "KV kept elsewhere: `attach`, `find`, `load`, `save`, `finished`, `close`",
         is_called=False, runs_on=("worker",)),
    Seam("multimodal", "modality", (1, 0), "deepinfer_core.interfaces.multimodal:Multimodal",
         "how media are read (`prepare`), and embedded (`build`)",
         key="modalities", is_called=False, runs_on=("driver", "worker")),
    Seam("hooks", "collected", (1, 0), None, "the lifecycle hooks of deepinfer_core.hookspecs"),
    Seam("command", "collected", (1, 0), "deepinfer_core.interfaces.command:Command",
         "further deepinfer subcommands (`add_arguments`, `run`)"),
)  # fmt: skip

SEAMS: Final = MappingProxyType({seam.name: seam for seam in _TABLE})
