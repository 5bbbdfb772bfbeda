"""Log-probabilities of prompts: what the model says, whatever runs beside, in whatever pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_core import SamplingParams
from deepinfer_core.errors import RequestError
from deepinfer_core.sampling import scorer

FEW = settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
prompts = st.lists(st.lists(st.integers(0, 511), min_size=1, max_size=90), min_size=1, max_size=5)


def params(count=3, **fields):
    return SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=count, **fields)


def scored(llm, batch, each=None):
    return [output.prompt_logprobs for output in llm.generate(batch, each or params())]


def test_they_are_the_models(llm, golden, golden_case):
    tokens = np.random.default_rng(0).integers(0, 512, 200).tolist()
    sequences = golden.Sequences(golden_case("v41-tiny-bf16").model)
    sequences.add("x", tokens, max_tokens=1)
    _, rows = sequences.step()
    (logits,) = rows.values()
    expected = torch.log_softmax(logits.double(), -1)
    (entries,) = scored(llm, [tokens])
    assert entries[0] is None and len(entries) == len(tokens)
    for position, entry in enumerate(entries[1:], start=1):
        row, token = expected[position - 1], tokens[position]
        order = torch.argsort(logits[position - 1], descending=True, stable=True).tolist()
        assert list(entry)[:3] == order[:3]
        assert list(entry)[3:] == [token] * (token not in order[:3])
        assert entry[token].rank == order.index(token) + 1
        assert [e.logprob for e in entry.values()] == pytest.approx([float(row[t]) for t in entry], abs=1e-5)
        assert entry[token].decoded_token == llm.get_tokenizer().token_text(token)


def test_none_where_not_asked_for_and_nothing_but_the_token_for_zero(llm):
    silent = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    none, zero, two, single = scored(llm, [[5, 6, 7]] * 3 + [[5]], [silent, params(0), params(2), params(4)])
    assert none is None
    assert [list(entry) for entry in zero[1:]] == [[6], [7]]
    assert [entry[token] for entry, token in zip(zero[1:], [6, 7], strict=True)] == [two[1][6], two[2][7]]
    assert single == [None]


def test_they_change_no_output_token(llm):
    plain = SamplingParams(temperature=0.8, seed=1, max_tokens=6, ignore_eos=True, logprobs=1)
    asked = SamplingParams(temperature=0.8, seed=1, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=5)
    first, second = llm.generate(["but they know"] * 2, [plain, asked])
    assert first.outputs[0] == second.outputs[0]


@FEW
@given(batch=prompts, chunk=st.sampled_from([3, 7, 32]))
def test_chunks_and_neighbours_change_nothing(make_llm, llm, batch, chunk):
    alone = [scored(llm, [prompt])[0] for prompt in batch]
    assert scored(llm, batch) == alone
    chunked = make_llm(max_chunk_tokens=chunk, max_num_batched_tokens=40, max_num_seqs=4)
    assert scored(chunked, batch) == alone


def test_preemption_neither_repeats_nor_changes_an_entry(make_llm, llm, monkeypatch):
    """The second prompt loses its pages half-way; only rows that somebody asked for are computed, and once."""
    rng = np.random.default_rng(3)
    batch = [rng.integers(0, 512, length).tolist() for length in (250, 200)]
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, prompt_logprobs=1) for n in (140, 1)]
    expected = [scored(llm, [prompt], one)[0] for prompt, one in zip(batch, each, strict=True)]
    small = make_llm(num_pages=5, max_num_seqs=2, max_num_batched_tokens=2, speculate="off")
    model, rows = small.engine.worker.runner.model, []
    compute = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or compute(hidden))
    outputs = small.generate(batch, each)
    assert [output.metrics.num_preemptions for output in outputs] == [0, 1]
    assert [output.prompt_logprobs for output in outputs] == expected
    assert sum(rows) == (249 + 199) + (140 + 1)
    small.engine.scheduler.audit()


def test_slices_bound_the_memory_and_change_nothing(llm, monkeypatch):
    batch = [[3, 1, 4, 1, 5, 9, 2, 6] * 5, [2, 7, 1, 8]]
    expected = scored(llm, batch)
    model, largest = llm.engine.worker.runner.model, []
    compute = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: largest.append(len(hidden)) or compute(hidden))
    monkeypatch.setattr(scorer, "_SLICE_BYTES", 4 * 512 * 5)
    assert scored(llm, batch) == expected
    assert max(largest) == 5


def test_a_prompt_without_an_answer_fails_alone(llm, monkeypatch):
    model = llm.engine.worker.runner.model
    compute, calls = model.logits, []

    def broken(hidden):
        logits = compute(hidden).clone()
        calls.append(len(logits))
        if len(calls) == 2:  # the first call is the sampled rows', the second the prompts'
            logits[1, 5] = float("nan")
        return logits

    batch = [[5, 6, 7, 8], [9, 10, 11]]
    expected = scored(llm, batch)
    with monkeypatch.context() as patch:
        patch.setattr(model, "logits", broken)
        first, second = llm.generate(batch, params())
    assert first.outputs[0].finish_reason == "error"
    assert "prompt token 2 has no log-probability" in first.error
    assert first.prompt_logprobs == expected[0][:2]
    assert (second.error, second.prompt_logprobs) == (None, expected[1])
    llm.engine.scheduler.audit()


def test_an_aborted_prompt_keeps_what_it_has(make_llm, make_engine):
    limits = {"max_chunk_tokens": 7, "max_num_batched_tokens": 40, "max_num_seqs": 4}
    chunked, engine = make_llm(**limits), make_engine(**limits)
    engine.add_request("x", [5] * 50, params())
    engine.step()
    engine.abort_request("x")
    (output,) = [output for _ in range(2) for output in engine.step()]
    assert output.outputs[0].finish_reason == "abort"
    assert len(output.prompt_logprobs) == 8
    assert scored(chunked, [[5] * 50])[0][:8] == output.prompt_logprobs


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_bad_counts_are_refused(count):
    with pytest.raises(RequestError, match="prompt_logprobs must be None or an integer >= 0"):
        SamplingParams(prompt_logprobs=count)


def test_more_than_the_vocabulary_is_refused(llm):
    (output,) = llm.generate(["x"], SamplingParams(prompt_logprobs=513))
    assert "prompt_logprobs must be at most the vocabulary's size 512, got 513" in output.error
    (all_of_them,) = llm.generate([[4, 5]], params(512))
    assert len(all_of_them.prompt_logprobs[1]) == 512
