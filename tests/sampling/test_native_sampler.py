"""The native sampler against its rules written out in float64, with full sorts and a Philox in Python integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepinfer_core import _C

MASK = 2**32 - 1


def philox(counter: Iterable[int], key: Iterable[int]) -> tuple[int, ...]:
    """Philox4x32-10."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int, token: int) -> float:
    """The noise of one token at one position."""
    words = philox((token, position & MASK, position >> 32, 0), (seed & MASK, seed >> 32))
    return ((words[1] << 20 | words[0] >> 12) + 0.5) / 2**52


def in_order(logits: NDArray[np.float32]) -> list[int]:
    """Token ids by logit descending, then id ascending."""
    return sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))


def kept(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float, banned: Iterable[int] = ()
) -> list[int]:
    """Ids that survive the filters, in order."""
    out = set(banned)
    order = [t for t in in_order(logits) if t not in out and logits[t] > -math.inf]
    if top_k > 0:
        order = order[:top_k]
    most = float(logits[order[0]])
    weights = [math.exp((float(logits[t]) - most) / temperature) for t in order]
    total, before, size = math.fsum(weights), 0.0, 0
    while size < len(order) and (top_p == 1.0 or before < top_p * total):
        before += weights[size]
        size += 1
    return [t for t, weight in zip(order[:size], weights, strict=False) if weight >= min_p]


def draw(logits: NDArray[np.float32], ids: list[int], temperature: float, seed: int, position: int) -> int:
    """Argmax of scaled logit plus Gumbel noise over ``ids``."""
    most = float(max(logits[ids]))

    def score(token: int) -> float:
        return (float(logits[token]) - most) / temperature - math.log(-math.log(uniform(seed, position, token)))

    return max(sorted(ids), key=score)


def native(
    logits: Any,
    *,
    temperature: float | list[float] = 1.0,
    top_k: int | list[int] = 0,
    top_p: float | list[float] = 1.0,
    min_p: float | list[float] = 0.0,
    seed: int | list[int] = 0,
    position: int | list[int] = 0,
    num_logprobs: int | list[int] = -1,
    banned: list[list[int]] | None = None,
    num_threads: int = 1,
    isa: str = "best",
    **edits: Any,
) -> tuple[NDArray[Any], ...]:
    """Call the native sampler; scalars stand for every row, and ``edits`` go as they are."""
    rows = len(logits)

    def column(value: object, dtype: type[np.generic]) -> NDArray[Any]:
        return np.array(value if isinstance(value, list) else [value] * rows, dtype)

    if banned is not None:
        edits["banned"] = np.cumsum([0, *map(len, banned)]), np.array([*chain.from_iterable(banned)], np.int32)
    outputs: tuple[NDArray[Any], ...] = _C.Sampler(num_threads=num_threads, isa=isa).sample(
        logits,
        temperature=column(temperature, np.float64),
        top_k=column(top_k, np.int32),
        top_p=column(top_p, np.float64),
        min_p=column(min_p, np.float64),
        seed=column(seed, np.uint64),
        position=column(position, np.int64),
        num_logprobs=column(num_logprobs, np.int32),
        **edits,
    )
    return outputs


finite_logits = st.floats(-30, 30, width=32)
awkward_logits = st.one_of(
    finite_logits,
    st.sampled_from([0.0, -0.0, 1.0, -math.inf, 1e30, -1e30, 3e38, -3e38]),
    st.integers(-3, 3).map(float),
)


@st.composite
def filtered_row(draw_value: st.DrawFn) -> tuple[NDArray[np.float32], dict[str, Any], list[int]]:
    """A row that has something to choose, its filters, and banned ids."""
    row = draw_value(st.lists(awkward_logits, min_size=1, max_size=40))
    banned = draw_value(st.sets(st.integers(0, len(row) - 1), max_size=len(row) - 1))
    free = sorted(set(range(len(row))) - banned)
    if all(row[token] == -math.inf for token in free):
        row[free[0]] = 0.0
    settings = {
        "temperature": draw_value(st.sampled_from([0.05, 0.5, 1.0, 3.0])),
        "top_k": draw_value(st.sampled_from([-1, 0, 1, 2, 5, 39, 10**6])),
        "top_p": draw_value(st.sampled_from([1e-9, 0.1, 0.5, 0.9, 1.0])),
        "min_p": draw_value(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
    }
    return np.array(row, np.float32), settings, sorted(banned)


def drawn_set(row: NDArray[np.float32], draws: int = 400, **settings: Any) -> set[int]:
    """Tokens that come up at many positions."""
    rows = np.ascontiguousarray(np.broadcast_to(row, (draws, len(row))))
    return set(native(rows, position=list(range(draws)), **settings)[0].tolist())


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ([MASK] * 4, [MASK] * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(
    counter: list[int], key: list[int], expected: tuple[int, ...]
) -> None:
    assert tuple(_C.philox4x32(counter, key)) == expected == philox(counter, key)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1), st.lists(st.integers(0, MASK), min_size=1, max_size=20))
def test_noise_is_the_documented_function_of_seed_position_and_token(seed: int, position: int, ids: list[int]) -> None:
    noise = _C.uniform_noise(seed, position, np.array(ids, np.uint32))
    assert noise.tolist() == [uniform(seed, position, token) for token in ids]
    assert ((noise > 0) & (noise < 1)).all()


@given(filtered_row(), st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@settings(max_examples=400, deadline=None)
def test_a_draw_equals_the_reference(case: Any, seed: int, position: int) -> None:
    row, filters, banned = case
    expected = draw(row, kept(row, banned=banned, **filters), filters["temperature"], seed, position)
    token = native(row[None], seed=seed, position=position, banned=[banned], **filters)[0]
    assert token.tolist() == [expected]


@given(filtered_row(), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_only_kept_tokens_are_drawn(case: Any, seed: int) -> None:
    row, filters, banned = case
    ids = kept(row, banned=banned, **filters)
    got = drawn_set(row, 50, seed=seed, banned=[banned] * 50, **filters)
    assert got <= set(ids)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.5}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.1}, {0}),
        ({"top_p": 0.101}, {0, 1}),
        ({"min_p": 1.0}, set(range(10))),
        ({"top_k": 4, "top_p": 0.5}, {0, 1}),
        ({}, set(range(10))),
    ],
)
def test_ties_at_a_boundary_keep_the_lowest_ids(filters: dict[str, Any], expected: set[int]) -> None:
    assert drawn_set(np.zeros(10, np.float32), **filters) == expected


@pytest.mark.parametrize("size", [2_000, 40_000])
@pytest.mark.parametrize(
    "filters", [{"top_k": 1500}, {"top_p": 0.4}, {"top_k": 1800, "top_p": 0.7}, {"min_p": 0.2}, {}]
)
@pytest.mark.parametrize("kind", ["normal", "ties", "all equal", "outlier", "geometric", "peaked"])
def test_large_rows_equal_the_reference(kind: str, filters: dict[str, Any], size: int) -> None:
    rng = np.random.default_rng(size)
    kinds: dict[str, Callable[[], Any]] = {
        "normal": lambda: rng.normal(size=size),
        "ties": lambda: rng.integers(0, 3, size),
        "all equal": lambda: np.zeros(size),
        "outlier": lambda: np.where(np.arange(size) == 7, -1e30, rng.normal(size=size)),
        "geometric": lambda: -(10.0 ** rng.uniform(-30, 30, size)),
        "peaked": lambda: rng.normal(size=size) * 6,
    }
    row = kinds[kind]().astype(np.float32)
    full = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    positions = list(range(8))
    ids = np.array(kept(row, **full))
    got = native(np.tile(row, (8, 1)), seed=3, position=positions, **full)[0].tolist()
    scaled = (row[ids].astype(np.float64) - float(row.max())) / 0.8
    for position, token in zip(positions, got, strict=True):
        noise = -np.log(-np.log(_C.uniform_noise(3, position, ids.astype(np.uint32))))
        assert token == ids[np.argmax(scaled + noise)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"min_p": 0.3}, {1, 2, 4}),
        ({"min_p": 0.3, "temperature": 0.5}, {1, 4}),
        ({"top_k": 4, "min_p": 0.3}, {1, 2, 4}),
        ({"top_k": 2, "min_p": 0.3}, {1, 4}),
        ({"top_p": 0.95, "min_p": 0.3}, {1, 2, 4}),
        ({"top_p": 0.5, "min_p": 0.3}, {1, 4}),
        ({"top_k": 3, "top_p": 0.75, "min_p": 0.1}, {1, 4}),
        ({"top_k": 3, "top_p": 0.82, "min_p": 0.1}, {1, 2, 4}),
    ],
)
def test_filters_combine(filters: dict[str, Any], expected: set[int]) -> None:
    """Weights 1, 0.61, 0.37, 0.22, 0.14 at temperature 1: each filter works on what the one before it left."""
    row = np.array([-1.5, 0.0, -1.0, -2.0, -0.5], np.float32)
    assert drawn_set(row, **filters) == expected
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    assert set(kept(row, **full)) == expected


def test_greedy_is_the_largest_logit_and_ties_go_to_the_lowest_id() -> None:
    rows = np.zeros((4, 300), np.float32)
    rows[0, [290, 17, 140]] = 5.0
    rows[1, :] = -np.inf
    rows[1, 299] = -3e38
    rows[2, 3] = -0.0
    rows[3, 260] = 3e38
    assert native(rows, temperature=0.0, top_k=1, top_p=0.1)[0].tolist() == [17, 299, 0, 260]


def test_a_row_with_nothing_to_choose_fails_alone() -> None:
    """Fault 33: such a row gets -1, its neighbours what they get without it."""
    rows = np.random.default_rng(0).normal(size=(7, 200)).astype(np.float32)
    alone = native(rows, num_logprobs=2, seed=5)[0].tolist()
    rows[1] = -np.inf
    rows[2, 150] = np.nan
    rows[4, 3] = np.inf
    rows[5, 1:] = -np.inf
    banned: list[list[int]] = [[], [], [], [], [], [0], []]
    for temperature in (0.0, 1.0):
        tokens, logprobs, ranks, _, ids, tops = native(
            rows, num_logprobs=2, seed=5, temperature=temperature, banned=banned
        )
        assert tokens[[1, 2, 4, 5]].tolist() == [-1] * 4
        assert np.isnan(logprobs[[1, 2, 4, 5]]).all() and ranks[[1, 2, 4, 5]].tolist() == [0] * 4
        assert ids.reshape(7, 2)[[1, 2, 4, 5]].tolist() == [[-1, -1]] * 4
        assert np.isfinite(tops.reshape(7, 2)[[0, 3, 6]]).all()
        if temperature:
            assert tokens[[0, 3, 6]].tolist() == [alone[0], alone[3], alone[6]]


@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_a_vocabulary_of_one(value: float) -> None:
    tokens, logprobs, ranks, *_ = native(np.full((1, 1), value, np.float32), num_logprobs=1, top_k=5, top_p=0.5)
    assert tokens.tolist() == ([0] if value == 0 else [-1])
    if value == 0:
        assert logprobs.tolist() == [0.0] and ranks.tolist() == [1]


def test_banned_tokens_are_never_drawn_but_count_in_logprobs() -> None:
    row = np.array([[9.0, 1.0, 8.0, 0.0]], np.float32)
    for temperature in (0.0, 1.0):
        tokens, logprobs, ranks, _, ids, _ = native(row, temperature=temperature, banned=[[0, 2, 3]], num_logprobs=2)
        assert tokens.tolist() == [1] and ids.tolist() == [0, 2] and ranks.tolist() == [3]
        assert logprobs[0] == pytest.approx(1.0 - np.log(np.exp(row.astype(np.float64)).sum()), abs=1e-6)


@given(st.lists(st.one_of(finite_logits, st.just(-math.inf)), min_size=1, max_size=300), st.data())
@settings(deadline=None)
def test_logprobs_are_the_log_softmax_of_the_raw_logits(values: list[float], data: st.DataObject) -> None:
    row = np.array(values, np.float32)
    if row.max() == -np.inf:
        row[0] = 0.0
    count = data.draw(st.integers(0, len(row)))
    expected = row.astype(np.float64) - (np.log(np.exp(row.astype(np.float64) - row.max()).sum()) + row.max())
    tokens, logprobs, ranks, offsets, ids, tops = native(row[None], temperature=2.0, top_k=3, num_logprobs=count)
    order = in_order(row)
    assert offsets.tolist() == [0, count] and ids.tolist() == order[:count]
    np.testing.assert_allclose(tops, expected[ids], atol=1e-5)
    np.testing.assert_allclose(logprobs, expected[tokens], atol=1e-5)
    assert ranks.tolist() == [order.index(tokens[0]) + 1]


def test_logprobs_of_a_large_row() -> None:
    row = np.random.default_rng(1).normal(size=(1, 129_280)).astype(np.float32) * 4
    for count in (1, 20, 3000):
        tokens, logprobs, ranks, _, ids, tops = native(row, num_logprobs=count, temperature=1.5)
        expected = row[0].astype(np.float64) - np.log(np.exp(row[0].astype(np.float64)).sum())
        assert ids.tolist() == np.argsort(-row[0], kind="stable")[:count].tolist()
        np.testing.assert_allclose(tops, expected[ids], atol=1e-5)
        assert logprobs[0] == pytest.approx(expected[tokens[0]], abs=1e-5)
        assert ranks[0] == 1 + (row[0] > row[0, tokens[0]]).sum()


def test_no_logprobs_are_computed_when_none_are_asked_for() -> None:
    _, logprobs, ranks, offsets, ids, tops = native(np.zeros((2, 8), np.float32), num_logprobs=[-1, 0])
    assert np.isnan(logprobs[0]) and logprobs[1] == pytest.approx(-math.log(8))
    assert ranks[0] == 0 and offsets.tolist() == [0, 0, 0] and ids.size == tops.size == 0


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.2}, {"temperature": 2.5, "top_k": 12, "top_p": 0.9}]
)
def test_draws_follow_the_target_distribution(filters: dict[str, Any]) -> None:
    row = np.random.default_rng(9).normal(size=24).astype(np.float32) * 1.5
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    ids = kept(row, **full)
    weights = np.exp(row[ids].astype(np.float64) / full["temperature"])
    draws = 40_000
    tokens = native(np.tile(row, (draws, 1)), seed=11, position=list(range(draws)), **full)[0]
    expected = draws * weights / weights.sum()
    observed = np.array([(tokens == token).sum() for token in ids])
    assert observed.sum() == draws
    chi_square = ((observed - expected) ** 2 / expected).sum()
    freedom = len(ids) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_seeds_and_positions_give_independent_draws() -> None:
    draws = 4_000
    rows = np.zeros((draws, 2), np.float32)
    by_seed = native(rows, seed=list(range(draws)), position=7)[0]
    by_position = native(rows, seed=7, position=list(range(draws)))[0]
    for tokens in (by_seed, by_position):
        assert abs(tokens.mean() - 0.5) < 4 * 0.5 / math.sqrt(draws)
        assert abs((tokens[1:] == tokens[:-1]).mean() - 0.5) < 4 * 0.5 / math.sqrt(draws)


@given(st.randoms(use_true_random=False), st.integers(1, 12), st.sampled_from([3, 130, 1700]))
@settings(max_examples=40, deadline=None)
def test_a_row_depends_on_itself_alone(random: Any, count: int, vocab: int) -> None:
    """Fault 5: alone, batched, in another order, with more threads: the same bits."""
    rng = np.random.default_rng(random.getrandbits(32))
    rows = (rng.normal(size=(count, vocab)) * 3).astype(np.float32)
    columns: dict[str, list[Any]] = {
        "temperature": rng.choice([0.0, 0.7, 1.0, 5.0], count).tolist(),
        "top_k": rng.choice([0, 1, 40], count).tolist(),
        "top_p": rng.choice([0.5, 0.95, 1.0], count).tolist(),
        "min_p": rng.choice([0.0, 0.1], count).tolist(),
        "seed": [random.getrandbits(64) for _ in range(count)],
        "position": rng.integers(0, 2**40, count).tolist(),
        "num_logprobs": rng.integers(-1, 4, count).tolist(),
        "banned": [rng.choice(vocab, 2).tolist() for _ in range(count)],
    }

    def unpacked(order: list[int], **options: Any) -> dict[int, tuple[bytes, ...]]:
        chosen: dict[str, Any] = {name: [values[i] for i in order] for name, values in columns.items()}
        tokens, logprobs, ranks, offsets, ids, tops = native(rows[order], **chosen, **options)
        return {
            i: (
                *(part[place].tobytes() for part in (tokens, logprobs, ranks)),
                *(part[offsets[place] : offsets[place + 1]].tobytes() for part in (ids, tops)),
            )
            for place, i in enumerate(order)
        }

    together = unpacked(list(range(count)))
    shuffled = list(range(count))
    random.shuffle(shuffled)
    assert unpacked(shuffled) == together
    assert {i: unpacked([i])[i] for i in range(count)} == together


def test_threads_change_nothing() -> None:
    rows = np.random.default_rng(2).normal(size=(9, 129_280)).astype(np.float32)
    options: dict[str, Any] = {"top_p": 0.9, "seed": list(range(9)), "num_logprobs": 3}
    one, four = native(rows, **options), native(rows, num_threads=4, **options)
    assert all(np.array_equal(a, b) for a, b in zip(one, four, strict=True))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_instruction_sets_change_nothing(isa: str) -> None:
    try:
        _C.Sampler(isa=isa)
    except ValueError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(4)
    for vocab in (1, 5, 8, 127, 128, 500, 5003):
        count = 60
        rows = (rng.normal(size=(count, vocab)) * 3).astype(np.float32)
        rows[::7] = np.round(rows[::7])
        rows[5, rng.integers(vocab)] = np.nan
        rows[6, rng.integers(vocab)] = np.inf
        rows[7:9, : vocab // 2] = -np.inf
        options: dict[str, Any] = {
            "temperature": rng.choice([0.0, 0.7, 1.0, 5.0], count).tolist(),
            "top_k": rng.choice([0, 0, 1, 40, 2000], count).tolist(),
            "top_p": rng.choice([0.3, 0.9, 0.999, 1.0], count).tolist(),
            "min_p": rng.choice([0.0, 0.0, 0.1], count).tolist(),
            "seed": rng.integers(2**63, size=count).tolist(),
            "position": rng.integers(2**40, size=count).tolist(),
            "num_logprobs": rng.integers(-1, min(vocab, 9) + 1, count).tolist(),
        }
        expected, got = native(rows, isa="plain", **options), native(rows, isa=isa, **options)
        assert [part.tobytes() for part in got] == [part.tobytes() for part in expected]


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="isa must be best, plain, avx2 or avx512, got neon"):
        _C.Sampler(isa="neon")


def test_an_empty_batch() -> None:
    tokens, *_ = native(np.zeros((0, 10), np.float32))
    assert tokens.shape == (0,)


def test_the_logits_are_left_alone() -> None:
    row = np.random.default_rng(0).normal(size=(1, 500)).astype(np.float32)
    before = row.copy()
    row.flags.writeable = False
    native(row, banned=[[1, 2]], top_p=0.5, num_logprobs=3)
    assert np.array_equal(row, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be finite and >= 0, got -1"),
        ({"temperature": math.nan}, r"temperature must be finite"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0"),
        ({"top_p": math.nan}, r"top_p must be in"),
        ({"min_p": 1.5}, r"min_p must be in \[0, 1\], got 1.5"),
        ({"position": -1}, r"position must be >= 0, got -1"),
        ({"num_logprobs": 9}, r"num_logprobs must be in \[-1, 8\], got 9"),
        ({"banned": [[8], []]}, r"banned token ids must be in \[0, 8\), got 8"),
        ({"banned": [[-1], []]}, r"banned token ids must be in"),
        ({"top_k": [1]}, r"top_k must have shape \[2\]"),
        ({"seed": [1, 2, 3]}, r"seed must have shape \[2\]"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native(np.zeros((2, 8), np.float32), **options)


def test_logits_must_be_contiguous_float32() -> None:
    for logits in (np.zeros((2, 8)), np.zeros((2, 8), np.float32).T, [[0.0]]):
        with pytest.raises(TypeError):
            native(logits)
    with pytest.raises(ValueError, match="num_threads must be >= 1, got 0"):
        _C.Sampler(num_threads=0)
