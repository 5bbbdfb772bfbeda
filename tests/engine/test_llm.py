"""LLM: prompts in, outputs out, in order, whatever happens to each."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import CheckpointError, ConfigError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def result(output):
    """What two runs of one request must agree on."""
    completion = output.outputs[0]
    return completion.token_ids, completion.text, completion.finish_reason, completion.stop_reason


def test_outputs_come_in_order_one_per_prompt(llm):
    prompts = ["but they know", [0, 72, 338], {"prompt": "The lamp is lit."}, {"prompt_token_ids": [5]}]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == ["but they know", None, "The lamp is lit.", None]
    assert outputs[0].prompt_token_ids == [0, 72, 338, 345, 423]
    assert all(output.finished and len(output.outputs[0].token_ids) == 8 for output in outputs)
    assert [result(output) for output in outputs] == [result(llm.generate(p, GREEDY)[0]) for p in prompts]


def test_greedy_tokens_are_the_published_ones(llm):
    output = llm.generate("but they know", SamplingParams(temperature=0, max_tokens=25, ignore_eos=True))[0]
    golden = [476, 129, 476, 202, 31, 476, 348, 31, 31, 191, 65, 123, 66, 129, 299, 31, 291, 82, 129, 101]
    assert output.outputs[0].token_ids[:20] == golden


def test_a_single_prompt_may_stand_alone(llm):
    for prompt in ("but they know", [0, 72, 338], np.array([0, 72, 338]), {"prompt": "x"}):
        assert len(llm.generate(prompt, GREEDY)) == 1


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([]) == []


def test_parameters_per_prompt(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    outputs = llm.generate(["x", "y", "z"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)


def test_200_prompts_through_a_cache_too_small_for_a_quarter_of_them(make_llm, llm):
    rng = np.random.default_rng(7)
    prompts = [rng.integers(3, 512, rng.integers(1, 260)).tolist() for _ in range(200)]
    params = [
        SamplingParams(
            temperature=float(i % 3) / 2,
            seed=i,
            max_tokens=280 if i < 10 else int(rng.integers(1, 24)),
            ignore_eos=True,
        )
        for i in range(200)
    ]
    # 20 pages of 128 tokens; even the shortest quarter of the prompts needs more than twice as many.
    quarter = sorted(-(-len(prompt) // 128) for prompt in prompts)[:50]
    small = make_llm(num_pages=20, max_num_seqs=64, max_num_batched_tokens=300)
    assert sum(quarter) > 2 * 20
    crowded = small.generate(prompts, params)
    small.engine.scheduler.audit()
    assert small.get_metrics()["num_preemptions"] > 0
    for prompt, each, output in zip(prompts, params, crowded, strict=True):
        assert result(output) == result(llm.generate([prompt], each)[0])


def test_one_bad_prompt_harms_nobody(llm):
    """Fault 15."""
    bad = ["ok", "", [], [10**9], [-1], "y" * 10**6, "ok"]
    outputs = llm.generate(bad, GREEDY)
    assert len(outputs) == 7
    assert outputs[0].outputs[0].token_ids == outputs[6].outputs[0].token_ids
    assert [output.outputs[0].finish_reason for output in outputs[1:6]] == ["error"] * 5
    for output, word in zip(outputs[1:6], ["empty", "empty", "1000000000", "-1", "max_model_len"], strict=True):
        assert word in output.error
    with pytest.raises(RequestError, match=r"one per prompt \(7\), got a list of 2"):
        llm.generate(bad, [GREEDY] * 2)
    assert len(llm.generate(["ok"])) == 1
    assert not llm.engine.has_unfinished_requests()
    llm.engine.scheduler.audit()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"promt": "x"}, "did you mean 'prompt'"),
        ({}, "needs 'prompt'"),
        ({"prompt": 3}, "must be text"),
        ({"prompt_token_ids": "abc"}, "list of integers"),
        ([1.5], "integers"),
        ([True], "integers"),
        ([None], "integers"),
        ("\ud800", "surrogate"),
    ],
)
def test_malformed_prompts_are_refused_with_the_reason(llm, prompt, words):
    refused, fine = llm.generate([prompt, "ok"], GREEDY)
    assert words in refused.error
    assert refused.finished
    assert fine.error is None


def test_a_prompt_that_can_never_fit_the_cache_is_refused(make_llm):
    small = make_llm(num_pages=2, max_num_seqs=4)
    fits, too_long = small.generate([[7] * 200, [7] * 256], GREEDY)
    assert fits.error is None
    assert "256" in too_long.error


def test_output_ends_at_the_length_limit(make_llm):
    short = make_llm(max_model_len=20, max_num_seqs=4)
    output = short.generate([[9] * 12], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 8
    assert output.outputs[0].finish_reason == "length"


def test_stop_token_ids_end_the_output(llm):
    free = llm.generate("but they know", GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop_token_ids=[free[3]])
    stopped = llm.generate("but they know", params)[0].outputs[0]
    assert stopped.token_ids == free[: free.index(free[3]) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", free[3])


def test_min_tokens_defer_stop_tokens_and_are_never_sampled_before(llm):
    free = llm.generate("but they know", GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[free[0]], min_tokens=6)
    output = llm.generate("but they know", params)[0].outputs[0]
    assert len(output.token_ids) >= 6
    assert free[0] not in output.token_ids[:6]


def test_stop_strings_cut_the_text(llm):
    free = llm.generate("but they know", GREEDY)[0].outputs[0].text
    stop = free[3:5]
    output = llm.generate("but they know", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=stop))
    completion = output[0].outputs[0]
    assert completion.text == free[: free.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_a_stop_string_that_never_occurs_takes_nothing_away(llm):
    """Fault 3: only what may still become a stop string is withheld."""
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, stop=["§" * 50])
    assert result(llm.generate("but they know", params)[0]) == result(
        llm.generate("but they know", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))[0]
    )
    pieces = list(llm.stream("but they know", params))
    assert pieces[0].finish_reason is None
    assert pieces[0].text


def test_a_stream_never_repeats_the_prompt(llm):
    """Fault 1: prompts that end inside a character."""
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Salt, 塩, sel 🌶🧂")
    params = SamplingParams(temperature=0, max_tokens=6)
    for k in range(1, len(ids) + 1):
        got = "".join(piece.text for piece in llm.stream(ids[:k], params))
        assert "Salt" not in got
        assert got == llm.generate([ids[:k]], params)[0].outputs[0].text


def test_stream_pieces_add_up_to_the_output(llm):
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=20, ignore_eos=True, logprobs=2)
    pieces = list(llm.stream("The lamp is lit.", params))
    whole = llm.generate("The lamp is lit.", params)[0].outputs[0]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert [entry for piece in pieces for entry in piece.logprobs] == whole.logprobs
    assert [piece.finish_reason for piece in pieces].count(None) == len(pieces) - 1
    assert pieces[-1].finish_reason == "length"


def test_closing_a_stream_aborts_its_request(llm):
    stream = llm.stream("x", SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True))
    next(stream)
    stream.close()
    assert len(llm.generate("y", GREEDY)) == 1
    assert not llm.engine.has_unfinished_requests()
    llm.engine.scheduler.audit()


def test_streams_and_batches_interleave(llm):
    first = llm.stream("x", GREEDY)
    head = next(first)
    batch = llm.generate(["y", "z"], GREEDY)
    text = head.text + "".join(piece.text for piece in first)
    assert text == llm.generate("x", GREEDY)[0].outputs[0].text
    assert all(output.finished for output in batch)


def test_a_stream_refuses_a_bad_prompt_at_once(llm):
    with pytest.raises(RequestError, match="empty"):
        llm.stream("")


@pytest.mark.parametrize("batch", [2, 5, 16])
def test_a_seed_gives_the_same_tokens_beside_any_neighbours(llm, batch):
    """Fault 5."""
    seeded = SamplingParams(temperature=0.8, seed=42, max_tokens=10, ignore_eos=True)
    alone = result(llm.generate("but they know", seeded)[0])
    neighbours = [
        SamplingParams(temperature=0.8, max_tokens=10, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=7, max_tokens=10, ignore_eos=True),
        GREEDY,
    ]
    others = [neighbours[i % 3] for i in range(batch - 1)]
    for params, place in (([seeded, *others], 0), ([*others, seeded], batch - 1)):
        assert result(llm.generate(["but they know"] * batch, params)[place]) == alone


def test_unseeded_requests_differ(llm):
    """Fault 9, for what is built: copies of a prompt are independent."""
    hot = SamplingParams(temperature=5.0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate(["but they know"] * 16, hot)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) >= 15


def test_logprobs_are_of_the_raw_logits(llm):
    params = SamplingParams(temperature=0.3, top_k=1, max_tokens=6, ignore_eos=True, logprobs=3)
    completion = llm.generate("but they know", params)[0].outputs[0]
    plain = llm.generate("but they know", SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3))
    assert completion.logprobs == plain[0].outputs[0].logprobs
    for token, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(entries) == 3
        assert entries[token].rank == 1
        assert sorted(entries.values(), key=lambda e: e.rank) == list(entries.values())
        assert entries[token].decoded_token == llm.get_tokenizer().token_text(token)
    assert completion.cumulative_logprob == pytest.approx(
        sum(entries[token].logprob for token, entries in zip(completion.token_ids, completion.logprobs, strict=True))
    )


@settings(max_examples=6)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=6), aborted=st.data())
def test_aborting_anything_at_any_time_leaks_nothing(make_engine, lengths, aborted):
    engine = make_engine()
    scheduler = engine.scheduler
    ids = [f"abort-{i}" for i in range(len(lengths))]
    for request_id, length in zip(ids, lengths, strict=True):
        engine.add_request(request_id, [7] * length, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    ended = []
    while engine.has_unfinished_requests():
        engine.abort_request(aborted.draw(st.lists(st.sampled_from(ids), max_size=2)))
        ended += [output.request_id for output in engine.step() if output.finished]
        scheduler.audit()
    engine.step()
    assert sorted(ended) == ids
    assert scheduler.num_free_pages == scheduler.num_pages - 1
    assert scheduler.num_free_slots == scheduler.num_slots - 1


def test_prompts_of_whole_pages_and_around_them(make_llm, llm):
    """Fault 13, for what is built: lengths around a page, again under preemption."""
    prompts = [[11] * n for n in (127, 128, 129, 256, 257)] * 2
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    expected = [result(output) for output in llm.generate(prompts, params)]
    small = make_llm(num_pages=6, max_num_seqs=8, max_num_batched_tokens=128)
    before = small.get_metrics()["num_preemptions"]
    assert [result(output) for output in small.generate(prompts, params)] == expected
    assert small.get_metrics()["num_preemptions"] > before


def test_a_row_without_a_choice_fails_alone(llm):
    """Fault 33: nothing left to draw from ends that request; the others equal what they are alone."""
    everything = SamplingParams(
        temperature=0, max_tokens=4, min_tokens=4, stop_token_ids=list(range(512)), ignore_eos=True
    )
    prompts = ["a", "b", "c", "d", "e"]
    expected = [result(output) for output in llm.generate(prompts, GREEDY)]
    outputs = llm.generate(prompts, [GREEDY, GREEDY, everything, GREEDY, GREEDY])
    assert outputs[2].outputs[0].finish_reason == "error"
    assert "banned" in outputs[2].error
    assert [result(output) for i, output in enumerate(outputs) if i != 2] == expected[:2] + expected[3:]
    llm.engine.scheduler.audit()


def test_a_failing_step_ends_its_requests_and_not_the_engine(llm, monkeypatch):
    def broken(prepared):
        raise ArithmeticError("device fell over")

    expected = result(llm.generate("x", GREEDY)[0])
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.worker.runner, "forward", broken)
        failed = llm.generate(["x", "y"], GREEDY)
    assert [output.outputs[0].finish_reason for output in failed] == ["error", "error"]
    assert "device fell over" in failed[0].error
    assert result(llm.generate("x", GREEDY)[0]) == expected
    llm.engine.scheduler.audit()


def test_an_interrupted_generate_leaves_the_engine_usable(llm):
    """Ctrl-C reaches whoever waits: the main thread; the engine's own goes on."""
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "y"], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True), use_tqdm=False)
    assert [output.error for output in llm.generate(["x", "y"], GREEDY)] == [None, None]
    llm.engine.scheduler.audit()


def test_metrics_and_times(llm):
    output = llm.generate("but they know", GREEDY)[0]
    times = output.metrics
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.finished_time
    metrics = llm.get_metrics()
    assert metrics["generated_tokens"] >= 8
    assert metrics["total_pages"] == llm.engine.scheduler.num_pages - 1


def test_explain_says_what_a_request_waits_for(make_llm):
    small = make_llm(max_num_seqs=1)
    engine = small.engine
    engine.add_request("first", [7] * 5, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    engine.add_request("second", [7] * 5, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    engine.step()
    assert "1" in engine.explain("second")
    with pytest.raises(RequestError, match="no unfinished request 'third'"):
        engine.explain("third")
    engine.abort_request(["first", "second"])
    while engine.has_unfinished_requests():
        engine.step()


def test_a_closed_llm_says_so(make_llm):
    with LLM(make_llm().engine.config.model.model, max_num_seqs=2, disable_log_stats=True) as closed:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        closed.generate("x")
    closed.close()


def test_start_up_errors_name_the_remedy(tmp_path):
    with pytest.raises(CheckpointError, match="no folder"):
        LLM(tmp_path / "missing")
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        LLM(tmp_path, max_num_seq=3)


def test_importing_the_package_imports_no_torch():
    code = "import sys, deepinfer_core; assert 'torch' not in sys.modules; import deepinfer_core.config"
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True)
