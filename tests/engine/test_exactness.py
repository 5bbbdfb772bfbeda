"""Logits do not depend on chunking, batching, preemption, threads or instruction set, bit for bit.

A run gives the logits of every position of every sequence; runs of the same tokens must be equal with ``==``.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deepinfer_kernels import _cpu

CASES = ["v41-tiny-bf16", "v41-tiny-fp8fp4", "qwen2"]
VOCAB = 512


def few(examples):
    """Few examples, and no shrinking: each runs a model many times."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    return settings(max_examples=examples, phases=phases, suppress_health_check=[HealthCheck.function_scoped_fixture])


tokens = st.integers(0, VOCAB - 1)
prompts = st.lists(st.lists(tokens, min_size=1, max_size=70), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def qwen2(llama_checkpoints, tmp_path_factory):
    """A dense model with keys and values in pages and no state beside them; later layers see a window."""
    maker = llama_checkpoints.Checkpoints(tmp_path_factory.mktemp("qwen2"))
    return llama_checkpoints.load(maker.make("qwen2", use_sliding_window=True, sliding_window=70))


@pytest.fixture(params=CASES)
def model(request, golden_case):
    return request.getfixturevalue("qwen2") if request.param == "qwen2" else golden_case(request.param).model


def run(golden, model, sequences, *, outputs=4, observe=None, **limits):
    """Greedy outputs and logits by sequence: ``[(tokens, {position: logits [vocab]})]``, and the runner."""
    runner = golden.Sequences(model, **limits)
    logits = {runner.add(str(place), sequence, max_tokens=outputs): {} for place, sequence in enumerate(sequences)}
    order, final = list(logits), {}
    while runner.scheduler.has_unfinished():
        plan, rows = runner.step()
        for handle, start in zip(plan.handles.tolist(), plan.starts.tolist(), strict=True):
            for offset, row in enumerate(rows[handle]):
                seen = logits[handle].setdefault(start + offset, row)
                assert torch.equal(seen, row), f"position {start + offset} computed anew after preemption"
        if observe is not None:
            observe(runner)
        for handle, _ in runner.scheduler.take_finished():
            final[handle] = runner.scheduler.tokens(handle).tolist()
        runner.scheduler.audit()
    return [(final[handle], logits[handle]) for handle in order], runner


def alone(golden, model, sequences, outputs=4):
    """Each sequence by itself, its prompt in one piece."""
    return [run(golden, model, [sequence], outputs=outputs)[0][0] for sequence in sequences]


def assert_same(results, expected):
    for (ids, logits), (expected_ids, expected_logits) in zip(results, expected, strict=True):
        assert ids == expected_ids
        assert logits.keys() == expected_logits.keys()
        for position, row in logits.items():
            assert torch.equal(row, expected_logits[position]), f"logits at position {position}"


@contextmanager
def native(threads=None, isa=None):
    """Kernels with a number of threads and an instruction set, for a while."""
    before = _cpu.get_num_threads(), _cpu.get_isa()
    try:
        if threads is not None:
            _cpu.set_num_threads(threads)
        if isa is not None:
            _cpu.set_isa(isa)
        yield
    finally:
        _cpu.set_num_threads(before[0])
        _cpu.set_isa(before[1])


@few(12)
@given(sequence=st.lists(tokens, min_size=2, max_size=150), chunk=st.integers(1, 40))
def test_chunks_of_any_size_equal_one_prefill(golden, model, sequence, chunk):
    whole = alone(golden, model, [sequence])
    assert_same(run(golden, model, [sequence], chunk=chunk)[0], whole)


@few(3)
@given(sequence=st.lists(tokens, min_size=2, max_size=90))
def test_token_by_token_equals_one_prefill(golden, model, sequence):
    assert_same(run(golden, model, [sequence], chunk=1)[0], alone(golden, model, [sequence]))


@few(12)
@given(sequences=prompts, chunk=st.integers(1, 64), budget=st.integers(6, 128), seed=st.integers(0, 5))
def test_any_batch_equals_each_alone(golden, model, sequences, chunk, budget, seed):
    order = np.random.default_rng(seed).permutation(len(sequences))
    results, _ = run(golden, model, [sequences[i] for i in order], chunk=chunk, budget=budget)
    assert_same([results[list(order).index(i)] for i in range(len(sequences))], alone(golden, model, sequences))


@few(4)
@given(sequences=st.lists(st.lists(tokens, min_size=100, max_size=120), min_size=3, max_size=4))
def test_preemption_changes_nothing(golden, model, sequences):
    # Each starts on one page and needs two; there are three, and at least two sequences start together.
    expected = alone(golden, model, sequences, outputs=40)
    results, runner = run(golden, model, sequences, outputs=40, num_pages=4)
    assert runner.scheduler.num_preemptions > 0
    assert_same(results, expected)


@pytest.mark.parametrize("name", CASES)
def test_forked_samples_have_the_logits_of_the_first(golden, request, name):
    """All tokens are chosen alike, so each sample computes the first one's sequence, from a copy of its state."""
    is_golden = name != "qwen2"
    model = golden.load_model(golden.DATA / name, rollback=1) if is_golden else request.getfixturevalue(name)
    for length in (2, 3, 7, 31, 32, 33, 127, 128, 129, 130, 200):
        runner = golden.Sequences(model)
        first = runner.add("samples", [(5 * place) % VOCAB for place in range(length)], 5, num_completions=3)
        logits = {handle: {} for handle in range(first, first + 3)}
        forks = 0
        while runner.scheduler.has_unfinished():
            plan, rows = runner.step()
            forks += len(plan.slot_copies)
            for handle, start in zip(plan.handles.tolist(), plan.starts.tolist(), strict=True):
                logits[handle] |= {start + offset: row for offset, row in enumerate(rows[handle])}
        assert forks == 2
        for handle in (first + 1, first + 2):
            assert min(logits[handle]) == length - 1 and max(logits[handle]) == length + 3
            for position, row in logits[handle].items():
                assert torch.equal(row, logits[first][position]), f"position {position} of {length}"


@few(4)
@given(sequences=prompts)
def test_threads_and_instruction_sets_change_nothing(golden, model, sequences):
    with native(threads=1):
        expected, _ = run(golden, model, sequences)
    available = ["plain", *({"avx2", "avx512"} & {_cpu.get_isa()}), *(["avx2"] if _cpu.get_isa() == "avx512" else [])]
    for threads, isa in [(2, None), (3, None), *((2, isa) for isa in available)]:
        with native(threads=threads, isa=isa):
            assert_same(run(golden, model, sequences)[0], expected)


PERIODIC = {
    "constant": [9] * 300,
    "period 4": [5, 9, 5, 11] * 75,
    "period 7": [3, 1, 4, 1, 5, 9, 2] * 43,
}


def test_tied_index_scores_choose_the_lowest_entry_however_they_are_computed(golden, golden_case):
    """Fault 29: greedy answers must not change with the load."""
    model = golden_case("v41-long-fp8fp4").model
    expected = alone(golden, model, list(PERIODIC.values()), outputs=8)
    crowd = [sequence[: 40 + 7 * place] for place, sequence in enumerate(list(PERIODIC.values()) * 4)]
    batch = [*PERIODIC.values(), *crowd]
    for limits in ({"chunk": 4096}, {"chunk": 33, "budget": 100}):
        for threads in (1, 2):
            with native(threads=threads):
                results, _ = run(golden, model, batch, outputs=8, **limits)
            assert_same(results[: len(PERIODIC)], expected)


def test_the_indexer_takes_the_lowest_of_equal_entries(golden, golden_case):
    """With one token all over, keys differ by rotation only; where scores tie, lower entries win."""
    from deepinfer_kernels import ops

    keys = torch.zeros(1, 64, 32, dtype=torch.bfloat16)
    keys[:, :, :8] = 1.0
    records = ops.cpu.pack_kv(keys[0], "fp4_e8m0_32")[None]
    for family in (ops.cpu, ops.reference):
        indices, blocks = family.index_topk(
            torch.ones(2, 4, 32, dtype=torch.bfloat16),
            torch.ones(2, 4, dtype=torch.bfloat16),
            records.contiguous(),
            torch.zeros(1, 1, dtype=torch.int32),
            torch.zeros(2, dtype=torch.int32),
            torch.tensor([64, 50], dtype=torch.int32),
            16,
            None,
            4,
            3,
        )
        assert indices.tolist() == [list(range(16))] * 2
        assert blocks.tolist() == [[0, 1, 15], [0, 1, 12]]
