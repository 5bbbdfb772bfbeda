"""What a request's tokens are drawn by, as it grows token by token: the columns that the scheduler builds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepinfer_core import _C
from deepinfer_core.interfaces.logits_processor import RowContext
from deepinfer_core.interfaces.sampler import Proposals, SamplingBatch
from deepinfer_core.sampling import Drawn, batch_of, narrowed, sampling_spec
from deepinfer_core.sampling_params import SamplingParams

VOCAB = 40
ids = st.lists(st.integers(0, 300), max_size=400)


def lists_of(column: tuple[NDArray[Any], ...] | None, row: int) -> list[list[Any]]:
    """A row's ids and what goes with them, as plain values."""
    assert column is not None
    offsets, *values = column
    return [each[offsets[row] : offsets[row + 1]].tolist() for each in values]


# -- one row


@given(ids, ids)
def test_counts_are_those_of_the_output_over_the_ids_of_both(prompt: list[int], output: list[int]) -> None:
    params = SamplingParams(repetition_penalty=1.1)
    batch = batch_of([Drawn(params, 0, prompt, output), Drawn(SamplingParams())])
    if not prompt + output:
        assert batch.seen is None and batch.penalties is None
        return
    seen, counts = lists_of(batch.seen, 0)
    expected = Counter(output)
    assert seen == list(dict.fromkeys(prompt + output)) and counts == [expected[token] for token in seen]
    assert lists_of(batch.seen, 1) == [[], []]
    assert batch.penalties is not None and batch.penalties.tolist() == [[1.1, 0.0, 0.0], [1.0, 0.0, 0.0]]


def test_prompt_tokens_count_for_the_repetition_penalty_only() -> None:
    for fields, expected in (
        ({"repetition_penalty": 2.0}, [[7, 8, 9], [0, 0, 1]]),
        ({"presence_penalty": 1.0}, [[9], [1]]),
    ):
        batch = batch_of([Drawn(SamplingParams(**fields), 0, [7, 8], [9])])  # type: ignore[arg-type]
        assert lists_of(batch.seen, 0) == expected


def test_what_no_request_asks_for_has_no_column() -> None:
    batch = batch_of(
        [Drawn(SamplingParams(), 3, [1, 2], stop_ids=(9,)), Drawn(SamplingParams(top_k=10**12, logprobs=0), 2**64 - 1)]
    )
    assert batch.seed.tolist() == [3, 2**64 - 1] and batch.position.tolist() == [2, 0]
    assert batch.top_k.tolist() == [-1, 2**31 - 1] and batch.num_logprobs.tolist() == [-1, 0]
    optional = ("forced", "bias", "seen", "penalties", "allowed", "banned", "masks", "proposed")
    assert [getattr(batch, name) for name in optional] == [None] * len(optional) and batch.contexts == {}


def test_every_parameter_has_its_column() -> None:
    params = SamplingParams(
        temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, logprobs=3, logprobs_mode="processed",
        logit_bias={5: 1.5, 2: -3}, allowed_token_ids=[9, 4], banned_token_ids=[], repetition_penalty=1.5,
        frequency_penalty=0.5, presence_penalty=-0.5,
    )  # fmt: skip
    banning = SamplingParams(banned_token_ids=[6, 1], logit_bias={0: 1})
    batch = batch_of([Drawn(params, 1, [3], [3]), Drawn(banning, 2, [3])])
    first = {name: getattr(batch, name)[0].item() for name in ("temperature", "top_k", "top_p", "min_p")}
    assert first == {"temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25}
    assert batch.num_logprobs.tolist() == [3, -1] and batch.processed_logprobs.tolist() == [True, False]
    assert lists_of(batch.bias, 0) == [[2, 5], [-3.0, 1.5]] and lists_of(batch.bias, 1) == [[0], [1.0]]
    assert sorted(*lists_of(batch.allowed, 0)) == [4, 9] and lists_of(batch.allowed, 1) == [[]]
    assert lists_of(batch.banned, 0) == [[]] and lists_of(batch.banned, 1) == [[1, 6]]
    assert batch.penalties is not None and batch.penalties[0].tolist() == [1.5, 0.5, -0.5]


def test_columns_are_read_only_views_of_the_native_ones() -> None:
    spec = sampling_spec(SamplingParams(banned_token_ids=[4]))
    native = _C.sampling_columns([spec], [1], [np.zeros(1, np.int32)], [np.zeros(0, np.int32)])
    first, second = native.columns(), native.columns()
    assert np.shares_memory(first["temperature"], second["temperature"]) and len(native) == 1
    for array in (first["temperature"], *first["banned"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_forced_tokens_come_in_order_and_then_no_more() -> None:
    params, output, seen = SamplingParams(forced_token_ids=[5, 5, 1]), list[int](), []
    for _ in range(5):
        forced = batch_of([Drawn(params, 0, [1], output)]).forced
        seen.append(None if forced is None else int(forced[0]))
        output.append(seen[-1] or 7)
    assert seen == [5, 5, 1, None, None]


def test_stop_ids_are_masked_beside_the_banned_ones_until_min_tokens_are_out() -> None:
    params = SamplingParams(min_tokens=2, banned_token_ids=[4])
    banned = [lists_of(batch_of([Drawn(params, 0, [1], [0] * n, (9, 2))]).banned, 0) for n in range(3)]
    assert banned == [[[2, 4, 9]], [[2, 4, 9]], [[4]]]


# -- look-ahead

tokens = st.integers(0, 6)
all_params = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.dictionaries(tokens, st.floats(-9, 9), max_size=2),
    banned_token_ids=st.sets(tokens, max_size=3),
    min_tokens=st.integers(0, 6),
    forced_token_ids=st.lists(tokens, max_size=5),
    max_tokens=st.none(),
)
requests = st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=6), all_params), min_size=1, max_size=4)
STOPS = (5,)


def make_scheduler() -> _C.Scheduler:
    return _C.Scheduler(
        page_size=4, num_pages=200, num_slots=9, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256,
        max_chunk_tokens=64,
    )  # fmt: skip


def as_drafts(lists: dict[int, list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    counts = np.array([len(each) for each in lists.values()], np.int32)
    values = np.zeros((len(lists), int(counts.max(initial=0))), np.int32)
    for row, each in zip(values, lists.values(), strict=True):
        row[: len(each)] = each
    return np.array([*lists], np.int64), counts, values


def content(batch: Any) -> bytes:
    """Everything that native columns, or a batch, say."""
    return (batch if isinstance(batch, SamplingBatch) else SamplingBatch(**batch.columns())).to_bytes()


class Requests:
    """Requests in a scheduler, and what their rows should be made of."""

    def __init__(self, given: list[tuple[list[int], SamplingParams]]) -> None:
        self.scheduler = make_scheduler()
        self.parts: dict[int, tuple[list[int], SamplingParams]] = {}
        for number, (prompt, params) in enumerate(given):
            handle = self.scheduler.submit(
                str(number),
                np.array(prompt, np.int32),
                max_tokens=200,
                sampling=sampling_spec(params, STOPS),
                seeds=[number],
            )
            self.parts[handle] = prompt, params
        self.outputs: dict[int, list[int]] = {handle: [] for handle in self.parts}

    def drawn(self, handle: int, ahead: list[int]) -> Drawn:
        prompt, params = self.parts[handle]
        return Drawn(params, [*self.parts].index(handle), prompt, self.outputs[handle] + ahead, STOPS)

    def step(self, drafts: dict[int, list[int]], token: int) -> None:
        """One step, of which the columns are checked; some drafts are accepted."""
        plan = self.scheduler.schedule(as_drafts(drafts))
        ends, count = plan.query_offsets[1:].tolist(), plan.num_drafts.tolist()
        sampled = [place for place, samples in enumerate(plan.samples) if samples]
        expected, committed, lengths = [], list[int](), []
        for place in sampled:
            handle = int(plan.handles[place])
            ahead = plan.token_ids[ends[place] - count[place] : ends[place]].tolist()
            assert ahead == drafts.get(handle, [])[: len(ahead)]
            expected += [self.drawn(handle, ahead[:n]) for n in range(len(ahead) + 1)]
            accepted = ahead[: (handle + token) % (len(ahead) + 1)]
            committed += [*accepted, token]
            lengths.append(len(accepted) + 1)
            self.outputs[handle] += [*accepted, token]
        assert content(self.scheduler.sampling_batch(plan)) == content(batch_of(expected))
        self.scheduler.commit(plan, np.array(committed, np.int32), np.array(lengths, np.int32))
        self.scheduler.audit()


@given(requests, st.lists(st.lists(st.lists(tokens, max_size=4), min_size=4, max_size=4), max_size=5))
def test_rows_after_drafts_are_those_of_requests_that_have_them(
    given_requests: Any, looks: list[list[list[int]]]
) -> None:
    """However often one looks ahead, whatever is accepted of it, and whoever is beside it."""
    requests = Requests(given_requests)
    requests.step({}, 0)
    for number, look in enumerate(looks):
        drafts = dict(zip(requests.parts, look, strict=False))
        ahead = SamplingBatch(**requests.scheduler.draft_batch(*as_drafts(drafts)).columns())
        expected = batch_of([requests.drawn(handle, each) for handle, each in drafts.items()])
        assert content(ahead) == content(expected)
        some = dict(list(drafts.items())[::-2])
        kept = ahead.to_bytes()
        requests.step(some, number % 5)
        assert ahead.to_bytes() == kept, "columns changed afterwards"


def test_a_draft_that_could_not_be_drawn_is_not_counted() -> None:
    requests = Requests([([1, 2], SamplingParams(repetition_penalty=1.5)), ([3], SamplingParams(presence_penalty=1))])
    requests.step({}, 0)
    first, second = requests.parts
    ahead = SamplingBatch(**requests.scheduler.draft_batch(*as_drafts({first: [4, -1], second: [-1, 4]})).columns())
    assert lists_of(ahead.seen, 0) == [[1, 2, 0, 4], [0, 0, 1, 1]] and lists_of(ahead.seen, 1) == [[0, 4], [1, 1]]
    assert ahead.position.tolist() == [5, 4]
    requests.step({}, 0)


def test_requests_without_parameters_and_ended_ones_have_rows_of_which_nothing_is_used() -> None:
    scheduler = make_scheduler()
    prompt = np.array([1, 2, 3], np.int32)
    plain = scheduler.submit("plain", prompt, max_tokens=9)
    spec = sampling_spec(SamplingParams(banned_token_ids=[1]))
    ended = scheduler.submit("ended", prompt, max_tokens=9, sampling=spec, seeds=[1])
    plan = scheduler.schedule()
    assert plan.handles.tolist() == [plain, ended]
    scheduler.cancel(ended)
    batch = SamplingBatch(**scheduler.sampling_batch(plan).columns())
    assert batch.temperature.tolist() == [0, 0] and batch.position.tolist() == [3, 3] and batch.banned is None
    with pytest.raises(ValueError, match=f"handle {plain} has no sampling parameters"):
        scheduler.draft_batch(*as_drafts({plain: []}))
    scheduler.commit(plan, np.array([4, 5], np.int32))
    with pytest.raises(RuntimeError, match="not the oldest outstanding one"):
        scheduler.sampling_batch(plan)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=100))
def test_views_of_a_requests_tokens_stay_as_they_were(output: list[int]) -> None:
    scheduler = make_scheduler()
    handle = scheduler.submit("a", np.array([7, 8], np.int32), max_tokens=200)
    views = [(scheduler.tokens(handle), scheduler.output_tokens(handle))]
    for token in output:
        scheduler.commit(scheduler.schedule(), np.array([token], np.int32))
        views.append((scheduler.tokens(handle), scheduler.output_tokens(handle)))
    del scheduler
    for length, (whole, own) in enumerate(views):
        assert whole.tolist() == [7, 8, *output[:length]] and own.tolist() == output[:length]
        for view in (whole, own):
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.flags.writeable = True


# -- other rows, and bytes


@st.composite
def drawn_requests(draw: st.DrawFn) -> list[Drawn]:
    """Requests of which some have what others lack."""
    some = st.lists(st.integers(0, VOCAB - 1), max_size=5)
    allowed = draw(st.lists(st.sampled_from([None, {2, 3, 9}]), min_size=1, max_size=5))
    params = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7]),
        top_k=st.integers(0, 9),
        logprobs=st.sampled_from([None, 2]),
        logprobs_mode=st.sampled_from(["raw", "processed"]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-9, 9), max_size=2),
        banned_token_ids=st.sets(st.integers(20, VOCAB - 1), max_size=3),
        forced_token_ids=st.sampled_from([(), (), (1, 2)]),
    )
    seeds = st.integers(0, 2**64 - 1)
    return [
        Drawn(attrs.evolve(draw(params), allowed_token_ids=each), draw(seeds), draw(some), draw(some))
        for each in allowed
    ]


def with_everything(batch: SamplingBatch) -> SamplingBatch:
    """The batch with masks, proposals and contexts on some of its rows."""
    rows = np.arange(len(batch))
    masked = narrowed(batch, rows[::2], np.arange(VOCAB) % 3 != rows[::2, None] % 3)
    sizes = rows % 3
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
    columns = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32), 1 / np.repeat(sizes, sizes)
    proposed = Proposals(np.where(sizes > 0, 0, -1).astype(np.int32), offsets, *columns)
    none = np.zeros(0, np.int32)
    contexts = {row: RowContext(str(row), SamplingParams(), none, none) for row in rows[1::2].tolist()}
    return attrs.evolve(masked, proposed=proposed, contexts=contexts)


def choices(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size - 1), max_size=8)


@given(st.data(), drawn_requests())
def test_selected_rows_are_those_of_a_batch_of_these_requests(data: st.DataObject, given_requests: list[Drawn]) -> None:
    rows = data.draw(choices(len(given_requests)))
    selected = batch_of(given_requests).select(rows)
    assert selected.to_bytes() == batch_of([given_requests[row] for row in rows]).to_bytes()


@given(st.data(), drawn_requests())
def test_selecting_twice_is_selecting_once(data: st.DataObject, given_requests: list[Drawn]) -> None:
    """With masks, proposals and contexts too."""
    batch = with_everything(batch_of(given_requests))
    first = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=8))
    second = data.draw(choices(len(first)))
    twice, once = batch.select(first).select(second), batch.select([first[row] for row in second])
    assert len(once) == len(second) and twice.to_bytes() == once.to_bytes()
    assert twice.contexts.keys() == once.contexts.keys()
    for place, row in enumerate(second):
        assert once.contexts.get(place) is batch.contexts.get(first[row])
    everything = batch.select(range(len(batch)))
    assert everything.to_bytes() == batch.select(np.ones(len(batch), np.bool_)).to_bytes()
    if (batch.proposed is not None) == (everything.proposed is not None):
        assert everything.to_bytes() == batch.to_bytes() and everything.contexts == batch.contexts


def test_a_row_that_there_is_not_cannot_be_selected() -> None:
    with pytest.raises(IndexError):
        batch_of([Drawn()]).select([1])


@given(drawn_requests())
def test_bytes_hold_all_but_contexts(given_requests: list[Drawn]) -> None:
    batch = with_everything(batch_of(given_requests))
    again = SamplingBatch.from_bytes(batch.to_bytes())
    assert again.contexts == {} and again.to_bytes() == batch.to_bytes()
    for field in attrs.fields(SamplingBatch):
        before, after = getattr(batch, field.name), getattr(again, field.name)
        if field.name == "contexts":
            continue
        if isinstance(before, Proposals):
            before, after = attrs.astuple(before, recurse=False), attrs.astuple(after, recurse=False)
        pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
        for one, other in pairs:
            assert (one is None) == (other is None) and np.array_equal(one, other)  # type: ignore[arg-type]
            assert one is None or one.dtype == other.dtype


def changed(batch: SamplingBatch, **columns: Any) -> bytes:
    return attrs.evolve(batch, **columns).to_bytes()


LISTS = np.array([0, 1, 2], np.int64), np.array([3, 4], np.int32)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"temperature": np.zeros(3)}, r"temperature must be \[2\] float64, got \[3\] float64"),
        ({"seed": np.zeros(2, np.int64)}, r"seed must be \[2\] uint64, got \[2\] int64"),
        ({"top_p": None}, "a batch has the columns"),
        ({"top_p": 3}, r"top_p must be \[2\] float64, got int"),
        ({"position": 3}, r"temperature must be \[0\]"),
        ({"forced": np.zeros((2, 1), np.int32)}, r"forced must be \[2\] int32, got \[2, 1\] int32"),
        ({"bias": LISTS}, "bias must be 3 arrays"),
        ({"banned": LISTS[:1]}, "banned must be 2 arrays"),
        ({"banned": (LISTS[0][:2], LISTS[1])}, r"offsets of banned must be \[3\] int64, got \[2\] int64"),
        ({"banned": (LISTS[0], LISTS[1][:1])}, r"lists of banned must be \[2\] int32, got \[1\] int32"),
        ({"allowed": (LISTS[0] + 1, LISTS[1])}, "offsets of allowed must begin with 0"),
        ({"allowed": (np.array([0, 3, 2]), LISTS[1])}, "never fall"),
        ({"seen": (*LISTS, LISTS[1])}, "seen and penalties go together"),
        ({"seen": (*LISTS, LISTS[1]), "penalties": np.ones((2, 2))}, r"penalties must be \[2, 3\] float64"),
        ({"masks": (np.array([0, 1], np.int32), np.zeros((1, 1), np.int32))}, "masks must be numbers below 1 or -1"),
        ({"masks": (np.array([0, -2], np.int32), np.zeros((1, 1), np.int32))}, "got -2 to 0"),
        ({"masks": (np.array([0, 0], np.int32), np.zeros(1, np.int32))}, "words of masks must be"),
        ({"proposed": Proposals(LISTS[1], *LISTS, LISTS[1])}, r"lists of proposed must be \[2\] float64"),  # type: ignore[arg-type]
    ],
)
def test_columns_that_do_not_fit_together_are_refused(columns: dict[str, Any], message: str) -> None:
    message_bytes = changed(batch_of([Drawn(), Drawn()]), **columns)
    with pytest.raises(ValueError, match=message):
        SamplingBatch.from_bytes(message_bytes)
