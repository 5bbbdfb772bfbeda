"""The layer plan: which layer keeps what, and whose results it uses. Pure data, derived and validated once.

Everything that depends on a layer's number is decided here; the model and the cache engine only read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.interfaces.cache import PAGE_TOKENS

if TYPE_CHECKING:
    from .config.sections import IndexerConfig, ScheduleConfig

Mode = Literal["window", "full", "reuse", "reindex"]
RopeKind = Literal["window", "compressed"]


@attrs.frozen
class LayerSpec:
    """One layer.

    ``window`` layers see only their sliding window. The others also read compressed entries: ``full`` layers
    make them and index them, ``reindex`` layers choose anew among another layer's, ``reuse`` layers take
    another layer's choice.
    """

    index: int
    ratio: int
    """Tokens per compressed entry; 0 for window-only layers."""
    mode: Mode
    kv_source: int | None
    """Layer whose compressed KV and index keys this one reads."""
    index_source: int | None
    """Layer whose top-k this one uses."""
    candidate_source: int | None
    """Layer whose candidate blocks bound this layer's own top-k."""
    selects_candidates: bool
    """Whether later layers choose within this layer's candidate blocks."""
    engram: bool
    """Whether hashed n-gram memory edits the streams before this layer."""

    @property
    def owns_kv(self) -> bool:
        """Whether the layer writes compressed KV and index keys."""
        return self.mode == "full"

    @property
    def has_indexer(self) -> bool:
        """Whether the layer computes its own top-k."""
        return self.mode in ("full", "reindex")

    @property
    def rope(self) -> RopeKind:
        """Which rotary table its queries, window keys and compressed keys use."""
        return "compressed" if self.ratio else "window"


@attrs.frozen
class LayerPlan:
    """All layers of the trunk, in order."""

    layers: tuple[LayerSpec, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> LayerSpec:
        return self.layers[index]

    @property
    def kv_owners(self) -> tuple[LayerSpec, ...]:
        """Layers that need pages."""
        return tuple(layer for layer in self.layers if layer.owns_kv)

    @property
    def ratios(self) -> tuple[int, ...]:
        """Compression ratios there are, ascending."""
        return tuple(sorted({layer.ratio for layer in self.kv_owners}))

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """``(headers, rows)`` for printing: one row per layer, ``-`` where a column does not apply."""
        headers = ("layer", "mode", "ratio", "rope", "KV source", "top-k source", "candidates", "engram")
        return headers, [_row(layer) for layer in self.layers]

    @classmethod
    def build(
        cls,
        num_layers: int,
        schedule: ScheduleConfig,
        indexer: IndexerConfig | None,
        *,
        engram_layers: tuple[int, ...] = (),
        drafter_stages: int = 0,
    ) -> LayerPlan:
        """Derive and validate the plan. Raises ConfigError naming the key, the value and the rule."""
        ratios = _trunk_ratios(num_layers, schedule.compress_ratios, drafter_stages)
        _check_sources(ratios, schedule)
        _check_layer_ids("engram_layer_ids", engram_layers, num_layers)
        if any(ratios):
            _check_indexer(schedule, indexer)
        specs = (_spec(index, ratios, schedule, index in engram_layers) for index in range(num_layers))
        return cls(tuple(specs))


def _trunk_ratios(num_layers: int, ratios: tuple[int, ...], drafter_stages: int) -> tuple[int, ...]:
    if len(ratios) not in (num_layers, num_layers + drafter_stages):
        raise ConfigError(
            f"compress_ratios must have {num_layers} entries (num_hidden_layers), or "
            f"{num_layers + drafter_stages} with the drafter's {drafter_stages}, got {len(ratios)}"
        )
    if any(ratios[num_layers:]):
        raise ConfigError(
            f"compress_ratios of the drafter's stages must be 0 (window only), got {list(ratios[num_layers:])}"
        )
    for index, ratio in enumerate(ratios):
        if ratio < 0 or (ratio and PAGE_TOKENS % ratio):
            raise ConfigError(f"compress_ratios[{index}] must be 0 or divide {PAGE_TOKENS} (a page), got {ratio}")
    return ratios[:num_layers]


def _check_sources(ratios: tuple[int, ...], schedule: ScheduleConfig) -> None:
    """Ids in range and compressed; nesting: top-k segments lie within KV segments."""
    for name, ids in (
        ("kv_source_layer_ids", schedule.kv_sources),
        ("index_source_layer_ids", schedule.index_sources),
    ):
        _check_layer_ids(name, ids, len(ratios))
        for source in ids:
            if not ratios[source]:
                raise ConfigError(f"{name} names layer {source}, whose compress_ratios entry is 0 (window only)")
    strays = [source for source in schedule.kv_sources if source not in schedule.index_sources]
    if strays:
        raise ConfigError(
            f"kv_source_layer_ids must also be in index_source_layer_ids, or a top-k would outlive the entries "
            f"it points to; missing there: {strays}"
        )


def increasing(name: str, ids: tuple[int, ...]) -> None:
    """Refuse layer ids that are negative, repeated, or out of order."""
    if any(b <= a for a, b in zip((-1, *ids), ids, strict=False)):
        raise ConfigError(f"{name} must be increasing layer numbers from 0, got {list(ids)}")


def _check_layer_ids(name: str, ids: tuple[int, ...], num_layers: int) -> None:
    increasing(name, ids)
    if ids and ids[-1] >= num_layers:
        raise ConfigError(f"{name} must be below num_hidden_layers ({num_layers}), got {ids[-1]}")


def _check_indexer(schedule: ScheduleConfig, indexer: IndexerConfig | None) -> None:
    if indexer is None:
        raise ConfigError("index_n_heads, index_head_dim and index_topk are required when compress_ratios is not all 0")
    source = schedule.candidate_source
    if source is None:
        return
    if source not in schedule.index_sources:
        raise ConfigError(
            f"candidate_source_layer_id must be one of index_source_layer_ids {list(schedule.index_sources)}, "
            f"got {source}"
        )
    blocks, size = indexer.candidate_topk_blocks, indexer.candidate_block_size
    if blocks < 1 or size < 1:
        raise ConfigError(
            f"candidate_topk_blocks and candidate_block_size must be at least 1 when there is a "
            f"candidate_source_layer_id, got {blocks} and {size}"
        )
    # The newest block is always kept and may hold a single entry, so the others must fill the top-k.
    if (blocks - 1) * size + 1 < indexer.topk:
        raise ConfigError(
            f"(candidate_topk_blocks - 1) x candidate_block_size + 1 must be at least index_topk "
            f"({indexer.topk}), got ({blocks} - 1) x {size} + 1 = {(blocks - 1) * size + 1}"
        )


def _closest(sources: tuple[int, ...], index: int) -> int | None:
    return max((source for source in sources if source <= index), default=None)


def _spec(index: int, ratios: tuple[int, ...], schedule: ScheduleConfig, engram: bool) -> LayerSpec:
    ratio = ratios[index]
    if not ratio:
        return LayerSpec(index, 0, "window", None, None, None, False, engram)
    kv_source, index_source = _closest(schedule.kv_sources, index), _closest(schedule.index_sources, index)
    if kv_source is None:
        raise ConfigError(
            f"layer {index} has compress_ratios {ratio} but no layer at or before it is in kv_source_layer_ids"
        )
    if ratios[kv_source] != ratio:
        raise ConfigError(
            f"layer {index} has compress_ratios {ratio} but reads the entries of layer {kv_source}, "
            f"which has {ratios[kv_source]}; a consumer shares its source's ratio"
        )
    mode: Mode = "full" if kv_source == index else "reindex" if index_source == index else "reuse"
    return LayerSpec(
        index=index,
        ratio=ratio,
        mode=mode,
        kv_source=kv_source,
        index_source=index_source,
        candidate_source=_candidate_source(index, mode, kv_source, schedule),
        selects_candidates=index == schedule.candidate_source,
        engram=engram,
    )


def _candidate_source(index: int, mode: Mode, kv_source: int, schedule: ScheduleConfig) -> int | None:
    """The candidate source binds every top-k computed after it."""
    source = schedule.candidate_source
    if source is None or index <= source or mode == "reuse":
        return None
    if _closest(schedule.kv_sources, source) != kv_source:
        raise ConfigError(
            f"layer {index} computes a top-k over the KV of layer {kv_source}, but candidate_source_layer_id "
            f"{source} selects among entries of layer {_closest(schedule.kv_sources, source)}"
        )
    return source


def _row(layer: LayerSpec) -> tuple[str, ...]:
    def show(value: int | None) -> str:
        return "-" if value is None else "self" if value == layer.index else str(value)

    candidates = "selects" if layer.selects_candidates else show(layer.candidate_source)
    return (
        str(layer.index), layer.mode, str(layer.ratio), layer.rope, show(layer.kv_source),
        show(layer.index_source), candidates, "yes" if layer.engram else "-",
    )  # fmt: skip
