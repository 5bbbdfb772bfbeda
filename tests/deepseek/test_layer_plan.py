"""The layer plan: the published schedule gives the published table, and every broken schedule is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_core.errors import ConfigError
from deepinfer_plugin_deepseek.config import IndexerConfig, ScheduleConfig
from deepinfer_plugin_deepseek.layer_plan import LayerPlan


def build(ratios, kv=(), index=(), candidate=None, *, topk=32, blocks=10, size=4, engram=(), stages=0, indexer=True):
    """A plan of ``len(ratios) - stages`` layers."""
    schedule = ScheduleConfig(
        compress_ratios=tuple(ratios), kv_sources=tuple(kv), index_sources=tuple(index), candidate_source=candidate
    )
    heads = IndexerConfig(
        num_heads=4, head_dim=32, topk=topk, candidate_topk_blocks=blocks, candidate_block_size=size
    )  # fmt: skip
    return LayerPlan.build(
        len(ratios) - stages, schedule, heads if indexer else None, engram_layers=tuple(engram), drafter_stages=stages
    )


def refused(*args, words, **kwargs):
    with pytest.raises(ConfigError) as caught:
        build(*args, **kwargs)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def published():
    """DeepSeek-V4.1-Flash: 40 layers and a drafter of three stages."""
    return build(
        [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        [2, 8, 14, 20],
        [2, 8, 14, 20, 24, 28, 32, 36],
        20,
        topk=512,
        blocks=2048,
        size=8,
        engram=[1, 14],
        stages=3,
    )


def test_published_schedule():
    """The table of the model's description, layer by layer: (mode, ratio, KV source, top-k source)."""
    expected = {0: ("window", 0, None, None), 1: ("window", 0, None, None)}
    for source in (2, 8, 14):
        expected[source] = ("full", 2, source, source)
        expected |= dict.fromkeys(range(source + 1, source + 6), ("reuse", 2, source, source))
    expected[20] = ("full", 1, 20, 20)
    expected |= dict.fromkeys((21, 22, 23), ("reuse", 1, 20, 20))
    for source in (24, 28, 32, 36):
        expected[source] = ("reindex", 1, 20, source)
        expected |= dict.fromkeys(range(source + 1, source + 4), ("reuse", 1, 20, source))

    plan = published()
    assert len(plan) == 40
    got = {layer.index: (layer.mode, layer.ratio, layer.kv_source, layer.index_source) for layer in plan.layers}
    assert got == expected
    assert [layer.index for layer in plan.kv_owners] == [2, 8, 14, 20]
    assert [layer.index for layer in plan.layers if layer.has_indexer] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [layer.index for layer in plan.layers if layer.selects_candidates] == [20]
    assert {layer.index: layer.candidate_source for layer in plan.layers if layer.candidate_source} == {
        24: 20, 28: 20, 32: 20, 36: 20,
    }  # fmt: skip
    assert [layer.index for layer in plan.layers if layer.engram] == [1, 14]
    assert [layer.rope for layer in plan.layers] == ["window"] * 2 + ["compressed"] * 38


def test_table_says_what_the_plan_says():
    headers, rows = published().table()
    assert headers == ("layer", "mode", "ratio", "rope", "KV source", "top-k source", "candidates", "engram")
    assert len(rows) == 40 and all(len(row) == len(headers) for row in rows)
    assert rows[0] == ("0", "window", "0", "window", "-", "-", "-", "-")
    assert rows[14] == ("14", "full", "2", "compressed", "self", "self", "-", "yes")
    assert rows[20] == ("20", "full", "1", "compressed", "self", "self", "selects", "-")
    assert rows[24] == ("24", "reindex", "1", "compressed", "20", "self", "20", "-")
    assert rows[27] == ("27", "reuse", "1", "compressed", "20", "24", "-", "-")


def test_reindexing_without_candidates_is_unrestricted():
    plan = build([1, 1, 1], [0], [0, 2], blocks=0, size=0)
    assert plan[2].mode == "reindex" and plan[2].candidate_source is None


def test_candidates_may_come_from_a_reindexing_layer():
    plan = build([1, 1, 1, 1], [0], [0, 1, 3], 1)
    assert (plan[1].selects_candidates, plan[1].candidate_source, plan[3].candidate_source) == (True, None, 1)


def test_a_window_layer_between_consumers_changes_nothing():
    plan = build([2, 0, 2], [0], [0])
    assert [layer.mode for layer in plan.layers] == ["full", "window", "reuse"] and plan[2].kv_source == 0


def test_the_drafters_ratios_may_be_left_out():
    assert len(LayerPlan.build(2, ScheduleConfig(compress_ratios=(0, 0)), None, drafter_stages=3)) == 2


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_one_ratio_per_layer(count):
    with pytest.raises(ConfigError, match=f"compress_ratios must have 2 entries.*or 5.*got {count}"):
        LayerPlan.build(2, ScheduleConfig(compress_ratios=(0,) * count), None, drafter_stages=3)


def test_the_drafter_compresses_nothing():
    refused([0, 0, 1], stages=1, words=["compress_ratios", "drafter", "[1]"])


@pytest.mark.parametrize("ratio", [-1, 3, 129, 256])
def test_ratios_divide_a_page(ratio):
    refused([ratio], [0], [0], words=["compress_ratios[0]", "128", str(ratio)])


@pytest.mark.parametrize("name", ["kv_source_layer_ids", "index_source_layer_ids"])
@pytest.mark.parametrize(
    ("ids", "words"),
    [([1, 0], "increasing"), ([0, 0], "increasing"), ([-1, 0], "increasing"), ([0, 3], "num_hidden_layers (3)")],
)
def test_source_ids(name, ids, words):
    kv, index = (ids, [0]) if name.startswith("kv") else ([0], ids)
    refused([1, 1, 1], kv, index, words=[name, words])


@pytest.mark.parametrize(("kv", "index"), [([0, 1], [0, 1]), ([0], [0, 1])])
def test_a_window_layer_is_no_source(kv, index):
    refused([1, 0], kv, index, words=["_source_layer_ids names layer 1", "window only"])


def test_kv_sources_are_index_sources():
    refused([1, 1, 1], [0, 1], [0, 2], words=["kv_source_layer_ids", "index_source_layer_ids", "[1]"])


def test_a_compressed_layer_before_every_source():
    refused([2, 2], [1], [1], words=["layer 0", "compress_ratios 2", "kv_source_layer_ids"])


def test_a_consumer_shares_its_sources_ratio():
    refused([2, 1], [0], [0], words=["layer 1", "1", "layer 0", "2"])


def test_an_indexer_is_needed_for_compressed_layers():
    refused([1], [0], [0], indexer=False, words=["index_n_heads", "index_topk"])


def test_the_candidate_source_is_an_index_source():
    refused([1, 1], [0], [0], 1, words=["candidate_source_layer_id", "index_source_layer_ids [0]", "1"])


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (10, 0)])
def test_candidates_need_blocks(blocks, size):
    refused([1], [0], [0], 0, blocks=blocks, size=size, words=["candidate_topk_blocks", f"{blocks} and {size}"])


def test_the_candidates_belong_to_the_kv_that_is_searched():
    refused([1, 1], [0, 1], [0, 1], 0, words=["layer 1", "candidate_source_layer_id 0", "layer 0"])


@pytest.mark.parametrize("ids", [[1, 0], [2], [0, 0]])
def test_engram_layers(ids):
    refused([0, 0], engram=ids, words=["engram_layer_ids"])


@given(blocks=st.integers(1, 50), size=st.integers(1, 16), topk=st.integers(1, 300))
def test_candidates_always_fill_the_topk(blocks, size, topk):
    """Accepted exactly when the worst case, a newest block with one entry, still leaves ``topk`` entries."""
    enough = (blocks - 1) * size + 1 >= topk
    try:
        build([1, 1], [0], [0, 1], 0, blocks=blocks, size=size, topk=topk)
    except ConfigError as error:
        assert not enough and f"at least index_topk ({topk})" in str(error)
    else:
        assert enough


@st.composite
def schedules(draw):
    """Valid schedules: segments that start with a full layer and share its ratio, with gaps and reindexing."""
    ratios, kv, index = [0] * draw(st.integers(0, 2)), [], []
    for _ in range(draw(st.integers(1, 4))):
        ratio = draw(st.sampled_from([1, 2, 4]))
        kv.append(len(ratios))
        index.append(len(ratios))
        ratios.append(ratio)
        for kind in draw(st.lists(st.sampled_from(["reuse", "reindex", "window"]), max_size=5)):
            if kind == "reindex":
                index.append(len(ratios))
            ratios.append(0 if kind == "window" else ratio)
    return ratios, kv, index


@given(schedules())
def test_every_consumer_uses_the_closest_source(schedule):
    ratios, kv, index = schedule
    plan = build(*schedule)
    for layer in plan.layers:
        assert layer.owns_kv is (layer.index in kv) and layer.has_indexer is (layer.index in index)
        assert (layer.mode == "window") is (ratios[layer.index] == 0)
        if layer.ratio:
            assert layer.kv_source == max(source for source in kv if source <= layer.index)
            assert layer.index_source == max(source for source in index if source <= layer.index)
            assert layer.kv_source <= layer.index_source <= layer.index
            assert ratios[layer.kv_source] == ratios[layer.index_source] == layer.ratio
