"""What drafting depends on and what not, what it leaves behind, and which checkpoints it accepts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deepinfer_core.errors import CheckpointError, ConfigError
from deepinfer_core.interfaces.model import LayerFeatures, Model, ModelContext
from deepinfer_core.interfaces.speculator import DraftBatch, Drafter, Speculator
from deepinfer_core.model_loader import CheckpointIndex, load_weights
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.worker.cache_engine import CacheEngine
from deepinfer_kernels import cpu, ops
from deepinfer_plugin_dflash.speculator import DFlash

NAME = "v41-tiny-fp8fp4"


@pytest.fixture(scope="module")
def drafter(load_drafter):
    return load_drafter(NAME)


def empty_caches(drafter, num_slots: int = 6) -> dict[str, torch.Tensor]:
    return CacheEngine(drafter.cache_layout(), 1, num_slots, torch.device("cpu")).tensors


def features_of(drafter, length: int, seed: int) -> torch.Tensor:
    """What the model would leave for each position of one sequence, ``[length, layers, d]``."""
    shape = (length, len(drafter.feature_layers), drafter.config.hidden_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def drafts(*rows: tuple[int, int, int]) -> DraftBatch:
    """``(token, position, slot)`` per sequence."""
    token_ids, positions, slots = torch.tensor(rows).T.contiguous()
    return DraftBatch(token_ids, positions, slots.int())


def identical(one, other) -> None:
    for field in ("token_ids", "logits", "confidences"):
        assert torch.equal(getattr(one, field), getattr(other, field)), field


def take(proposal, index: int):
    """One sequence's part, as a batch of one."""
    values = (proposal.token_ids, proposal.logits, proposal.confidences)
    return type(proposal)(*(value[index : index + 1] for value in values))


sequences = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2**20), st.integers(0, 511)), min_size=1, max_size=4)


@settings(max_examples=10)
@given(sequences=sequences, sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_batches_and_chunks_change_nothing(drafter, batch_of, pick_greedily, sequences, sizes):
    """Together and in pieces of any size, or each alone and at once: the same proposals, bit for bit."""
    together, turn = empty_caches(drafter), 0
    features = [features_of(drafter, length, seed) for length, seed, _ in sequences]
    done = [0] * len(sequences)
    while any(d < len(f) for d, f in zip(done, features, strict=True)):
        chunks, values = [], []
        for i, f in enumerate(features):
            count = min(sizes[turn % len(sizes)], len(f) - done[i])
            turn += 1
            if count:
                chunks.append((i + 1, done[i], count))
                values.append(f[done[i] : done[i] + count])
                done[i] += count
        drafter.observe(batch_of(drafter, *chunks), LayerFeatures(drafter.feature_layers, torch.cat(values)), together)
    rows = [(token, length, i + 1) for i, (length, _, token) in enumerate(sequences)]
    joint = drafter.propose(drafts(*rows), together, pick_greedily)
    for i, (length, _, token) in enumerate(sequences):
        alone = empty_caches(drafter)
        drafter.observe(batch_of(drafter, (5, 0, length)), LayerFeatures(drafter.feature_layers, features[i]), alone)
        identical(take(joint, i), drafter.propose(drafts((token, length, 5)), alone, pick_greedily))


@settings(max_examples=10)
@given(length=st.integers(1, 60), rejected=st.integers(1, 4), taken=st.integers(0, 3), seed=st.integers(0, 2**20))
def test_rejected_rows_leave_no_trace(drafter, batch_of, pick_greedily, length, rejected, taken, seed):
    """Rows that were observed in vain are overwritten by what comes in their place, or never looked at."""
    layers, right, wrong = drafter.feature_layers, features_of(drafter, 64, seed), features_of(drafter, 64, seed + 1)
    total = length + min(taken, rejected)
    caches, clean = empty_caches(drafter), empty_caches(drafter)
    drafter.observe(batch_of(drafter, (1, 0, length)), LayerFeatures(layers, right[:length]), caches)
    step = torch.cat([right[length:total], wrong[total : length + rejected]])
    drafter.observe(batch_of(drafter, (1, length, rejected)), LayerFeatures(layers, step), caches)
    drafter.observe(batch_of(drafter, (1, 0, total)), LayerFeatures(layers, right[:total]), clean)
    identical(*(drafter.propose(drafts((9, total, 1)), held, pick_greedily) for held in (caches, clean)))


def test_threads_change_nothing(drafter, batch_of, pick_greedily):
    layers, features, results = drafter.feature_layers, features_of(drafter, 40, 1), []
    threads = cpu.get_num_threads()
    for count in (1, 2):
        cpu.set_num_threads(count)
        caches = empty_caches(drafter)
        drafter.observe(batch_of(drafter, (1, 0, 40)), LayerFeatures(layers, features), caches)
        results.append(drafter.propose(drafts((3, 40, 1)), caches, pick_greedily))
    cpu.set_num_threads(threads)
    identical(*results)


@pytest.mark.parametrize("chunk", [1, 7])
def test_the_models_chunks_change_nothing(drafting, golden_case, chunk):
    """Through the model itself: two prompts in one step, or in steps of a few tokens beside each other."""
    prompts = [golden_case(NAME).values[f"{name}/input_ids"].tolist() for name in ("p17", "p60")]
    proposals = []
    for size in (4096, chunk):
        runner = drafting(NAME, chunk=size)
        handles = [runner.add(tokens) for tokens in prompts]
        found = {}
        while len(found) < len(handles):
            found = {**runner.step(dict.fromkeys(handles, 77))[1], **found}
        proposals.append([found[handle] for handle in handles])
    for whole, chunked in zip(*proposals, strict=True):
        identical(whole, chunked)


def test_features_are_the_stream_means_and_cost_the_model_nothing(golden, golden_case, batch_of):
    model = golden_case(NAME).model
    tokens = golden_case(NAME).values["p60/input_ids"]
    padded = torch.cat([torch.full((model.token_lookback,), -1), tokens])
    batch = attrs.evolve(
        batch_of(model, (1, 0, len(tokens))),
        token_ids=tokens,
        context_ids=padded.unfold(0, 1 + model.token_lookback, 1).flip(1).contiguous(),
    )

    def run(**more):
        caches = CacheEngine(model.cache_layout(), 2, 2, torch.device("cpu")).tensors
        return model.forward(batch, caches, **more)

    seen = {}
    features = LayerFeatures((1, 4), torch.empty(len(tokens), 2, model.config.hidden_size, dtype=torch.bfloat16))
    hidden = run(tap=lambda name, value: seen.__setitem__(name, value.clone()), features=features)
    for layer in features.layers:
        expected = seen[f"layers.{layer}.streams_in"].double().mean(1).bfloat16()
        assert torch.equal(features.at(layer), expected), layer
    assert torch.equal(hidden, run())


def test_drafting_reads_the_caches_only(drafter, batch_of, pick_greedily):
    caches = empty_caches(drafter)
    drafter.observe(
        batch_of(drafter, (2, 0, 30)), LayerFeatures(drafter.feature_layers, features_of(drafter, 30, 5)), caches
    )
    before = {name: value.clone() for name, value in caches.items()}
    first = drafter.propose(drafts((8, 30, 2)), caches, pick_greedily)
    assert all(torch.equal(value, before[name]) for name, value in caches.items())
    identical(first, drafter.propose(drafts((8, 30, 2)), caches, pick_greedily))


def test_a_draft_follows_the_one_picked_before_it(drafter, pick_greedily):
    """Picks are asked for from left to right; a pick changes later drafts of its own sequence only."""
    caches, batch, depths = empty_caches(drafter), drafts((8, 0, 1), (8, 0, 2)), []

    def pick(depth, logits):
        depths.append(depth)
        chosen = pick_greedily(depth, logits)
        return torch.tensor([int(chosen[0]), 100 + depth])

    free, steered = drafter.propose(batch, caches, pick_greedily), drafter.propose(batch, caches, pick)
    assert depths == list(range(drafter.num_drafts)) == [0, 1, 2, 3]
    identical(take(free, 0), take(steered, 0))
    assert steered.token_ids[1].tolist() == [100, 101, 102, 103]
    assert torch.equal(free.logits[1, 0], steered.logits[1, 0])
    assert not torch.equal(free.logits[1, 1], steered.logits[1, 1])
    assert free.confidences[1, 1] != steered.confidences[1, 1]


def test_nothing_to_draft_for(drafter, pick_greedily):
    none = DraftBatch(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0).int())
    proposal = drafter.propose(none, empty_caches(drafter), pick_greedily)
    assert proposal.token_ids.shape == (0, 4) and proposal.logits.shape == (0, 4, 512)


def test_rings_hold_the_window_and_what_may_come_again(golden_case, drafter):
    layout = drafter.cache_layout()
    assert not layout.pages
    assert [buffer.shape[0] for buffer in layout.slots] == [16 + 4] * 3
    assert not {buffer.name for buffer in layout.slots} & {b.name for b in golden_case(NAME).model.cache_layout().slots}


# -- the seam, and checkpoints -------------------------------------------------------------------------------


def test_it_is_what_the_seam_asks_for(golden_case, drafter):
    assert isinstance(DFlash(), Speculator)
    assert isinstance(drafter, Drafter)
    assert isinstance(golden_case(NAME).model, Model)
    assert DFlash().num_drafts(golden_case(NAME).model.config) == drafter.num_drafts == 4


def test_named_it_is_active_and_otherwise_only_installed():
    assert isinstance(PluginManager(["dflash"], environ={}).resolve().component("speculator"), DFlash)
    rows = PluginManager(environ={}).resolve().table()
    assert [row.state for row in rows if row.seam == "speculator"] == ["available"]


def test_the_component_imports_no_torch():
    script = "import sys; sys.modules['torch'] = None; import deepinfer_plugin_dflash.speculator"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_a_config_without_a_drafter_is_refused(golden_case):
    model = golden_case(NAME).model
    config = attrs.evolve(model.config, dspark=None)
    assert DFlash().num_drafts(config) == 0
    with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
        DFlash().build(config, model, ModelContext(kernels=ops.cpu))


@pytest.fixture
def edited(golden, golden_case, tmp_path):
    """``edited(change)``: a drafter built for a copy of the checkpoint whose tensors ``change`` edits, and the copy."""

    def make(change):
        folder = tmp_path / "model"
        shutil.copytree(golden.DATA / NAME, folder, ignore=shutil.ignore_patterns("golden*"))
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        names = dict.fromkeys(tensors, "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        model = golden_case(NAME).model
        drafter = DFlash().build(model.config, model, ModelContext(kernels=ops.cpu))

        def load():
            index = CheckpointIndex.open(folder)
            load_weights(drafter.module, index, drafter.weight_specs(), ignore=drafter.unused_tensor, use_tqdm=False)

        return load

    return make


def test_missing_and_unknown_parts_are_named(edited):
    def change(tensors):
        del tensors["mtp.1.attn.wkv.weight"]
        tensors["mtp.2.ffn.experts.4.w1.weight"] = torch.zeros(96, 64, dtype=torch.int8)

    with pytest.raises(CheckpointError) as error:
        edited(change)()
    assert "missing: mtp.1.attn.wkv.weight [64, 128] F8_E4M3" in str(error.value)
    assert "unexpected: mtp.2.ffn.experts.4.w1.weight" in str(error.value)
    assert "(2 problems)" in str(error.value)


def test_copies_of_shared_parts_and_image_biases_are_left_out(edited):
    def change(tensors):
        tensors["mtp.0.embed.weight"] = torch.zeros(512, 128, dtype=torch.bfloat16)
        tensors["mtp.2.head.weight"] = torch.zeros(512, 128, dtype=torch.bfloat16)
        tensors["mtp.1.ffn.gate.bias_vl"] = torch.zeros(4)

    edited(change)()
