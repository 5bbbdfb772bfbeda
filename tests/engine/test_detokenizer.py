"""Incremental text: whole characters, joined pieces equal the text, stop strings take back exactly what they must."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_core.engine.detokenizer import IncrementalDetokenizer, StopMatcher
from deepinfer_core.errors import RequestError
from deepinfer_core.sampling_params import SamplingParams
from deepinfer_core.tokenizer import Tokenizer, load_tokenizer

TOKENIZER = load_tokenizer(Path(__file__).parents[1] / "data" / "v41-tiny-bf16")
VOCAB = 512
SALT = "Salt, 塩, sel 🌶🧂"

any_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=40)
# Random ids are mostly broken characters; ids of real text are mostly whole ones.
text_tokens = st.text(max_size=20).map(lambda text: TOKENIZER.encode(text, add_special_tokens=False))
tokens = st.one_of(any_tokens, text_tokens)


def run(ids: list[int], prompt: list[int] | None = None, **params: Any) -> tuple[list[str], IncrementalDetokenizer]:
    """The pieces that a stream would show, one per token and one for the end."""
    detokenizer = IncrementalDetokenizer(TOKENIZER, prompt or [], SamplingParams(max_tokens=None, **params))
    pieces: list[str] = []

    def take() -> None:
        pieces.append(detokenizer.since(sum(map(len, pieces))))

    for token in ids:
        stopped = detokenizer.append(token)
        take()
        if stopped:
            break
    detokenizer.finish()
    take()
    return pieces, detokenizer


@given(tokens, tokens, st.booleans())
def test_many_tokens_at_once_give_the_text_of_each(prompt: list[int], ids: list[int], skip: bool) -> None:
    _, expected = run(ids, prompt, skip_special_tokens=skip)
    detokenizer = IncrementalDetokenizer(TOKENIZER, prompt, SamplingParams(skip_special_tokens=skip))
    detokenizer.extend(ids[:3])
    detokenizer.extend(ids[3:])
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.num_tokens) == (expected.text, len(ids))


@given(tokens, st.booleans())
def test_the_text_is_the_tokenizers_own_decoding(ids: list[int], skip: bool) -> None:
    pieces, detokenizer = run(ids, skip_special_tokens=skip)
    assert "".join(pieces) == detokenizer.text == TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert detokenizer.stop_reason is None


@given(st.text(max_size=30))
def test_a_character_is_shown_whole_as_soon_as_it_is_complete(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    pieces, _ = run(ids)
    data = b""
    for token, piece in zip(ids, pieces, strict=False):
        data += TOKENIZER.token_bytes(token)
        assert "\ufffd" not in piece or "\ufffd" in text
        whole = data.decode(errors="ignore")
        assert piece == whole
        data = data[len(whole.encode()) :]
    assert pieces[-1] == ""


@given(tokens, st.data())
def test_pieces_do_not_depend_on_when_they_are_taken(ids: list[int], data: st.DataObject) -> None:
    stop = data.draw(st.lists(st.sampled_from(["e", "the", " t", "\ufffd", "塩", "in th"]), max_size=3))
    whole = run(ids, stop=stop)[1]
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(max_tokens=None, stop=stop))
    shown = ""
    for token in ids:
        detokenizer.append(token)
        if data.draw(st.booleans()):
            shown += detokenizer.since(len(shown))
    detokenizer.finish()
    detokenizer.finish()
    assert shown + detokenizer.since(len(shown)) == detokenizer.text == whole.text
    assert detokenizer.since(len(whole.text)) == ""


@pytest.mark.parametrize("cut", range(1, len(TOKENIZER.encode(SALT)) + 1))
def test_a_prompt_that_ends_inside_a_character_does_not_come_back(cut: int) -> None:
    """Fault 1: what follows the prompt completes its last character; no more of the prompt appears."""
    ids = TOKENIZER.encode(SALT)
    prompt, rest = ids[:cut], ids[cut:]
    whole = TOKENIZER.decode(prompt).rstrip("\ufffd")
    pieces, detokenizer = run(rest, prompt)
    assert "".join(pieces) == detokenizer.text == SALT[len(whole) :]


@pytest.mark.parametrize("cut", range(1, len(TOKENIZER.encode(SALT)) + 1))
@pytest.mark.parametrize("generated", ["", "abc", "é", "塩"])
def test_an_unfinished_character_of_the_prompt_leaves_no_trace(cut: int, generated: str) -> None:
    prompt = TOKENIZER.encode(SALT)[:cut]
    assert run(TOKENIZER.encode(generated, add_special_tokens=False), prompt)[1].text == generated


@given(tokens, tokens)
def test_only_generated_bytes_can_make_replacement_characters(prompt: list[int], ids: list[int]) -> None:
    text = run(ids, prompt)[1].text
    alone = run(ids)[1].text
    # The prompt can at most turn leading stray bytes into one character.
    assert text == alone or alone.lstrip("\ufffd") in text
    assert len(text) <= len(alone)


@pytest.mark.parametrize(
    ("stop", "text", "end"),
    [
        ("aab", "aaab", 4),
        ("ababc", "abababc", 7),
        ("aabaaa", "aabaabaaa", 9),
        ("aabaac", "aabaabaac", 9),
        ("aaaa", "aabaaab aaaa", 12),
        ("aabaaac", "aabaaabaaac", 11),
    ],
)
def test_stop_strings_that_overlap_themselves(stop: str, text: str, end: int) -> None:
    assert StopMatcher([stop]).feed(text) == (end, stop)


@given(st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=3), st.text("ab", max_size=40), st.data())
@settings(max_examples=300)
def test_the_first_stop_string_to_end_wins_whatever_the_pieces(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    expected = next(
        (
            (end, max((s for s in stops if text[:end].endswith(s)), key=len))
            for end in range(1, len(text) + 1)
            if any(text[:end].endswith(s) for s in stops)
        ),
        None,
    )
    matcher, at = StopMatcher(stops), 0
    while at < len(text):
        size = data.draw(st.integers(1, 7))
        match = matcher.feed(text[at : at + size])
        if match:
            assert (at + match[0], match[1]) == expected
            return
        at = min(at + size, len(text))
        undecided = max(n for n in range(8) for s in stops if n < len(s) and text[:at].endswith(s[:n]))
        assert matcher.num_undecided == undecided
    assert expected is None


@given(
    tokens, st.lists(st.sampled_from(["e", "the", " t", "in", "塩", "a b", "\n", "\ufffd"]), min_size=1), st.booleans()
)
def test_stop_strings_end_the_text_where_they_first_occur(ids: list[int], stop: list[str], include: bool) -> None:
    full = TOKENIZER.decode(ids)
    ends = [(full.index(s) + len(s), -len(s), s) for s in stop if s in full]
    pieces, detokenizer = run(ids, stop=stop, include_stop_str_in_output=include)
    assert "".join(pieces) == detokenizer.text
    if ends:
        end, _, first = min(ends)
        assert detokenizer.stop_reason == first
        assert detokenizer.text == full[: end if include else end - len(first)]
    else:
        assert detokenizer.stop_reason is None and detokenizer.text == full


def test_a_stop_string_may_span_tokens_and_is_withheld_only_while_it_may_come() -> None:
    ids = [TOKENIZER.encode(character, add_special_tokens=False)[0] for character in "xEND yENxEND z"]
    pieces, detokenizer = run(ids, stop=["END z"])
    shown = [piece for piece in pieces if piece]
    assert detokenizer.text == "xEND yENx" and detokenizer.stop_reason == "END z"
    assert shown == ["x", "END y", "ENx"]


def test_a_stop_string_that_never_occurs_withholds_nothing() -> None:
    """Fault 3."""
    ids = TOKENIZER.encode("The lamp is lit. § is a sign.", add_special_tokens=False)
    pieces, detokenizer = run(ids, stop=["§" * 50])
    assert detokenizer.text == run(ids)[1].text
    assert pieces[0] == TOKENIZER.token_text(ids[0]) != ""
    pieces, detokenizer = run(TOKENIZER.encode("§§", add_special_tokens=False), stop=["§" * 50])
    assert pieces[-1] == detokenizer.text == "§§"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_stopping_at_a_special_token(skip: bool, include: bool) -> None:
    """Fault 3: a special token's text stops, whether special tokens are in the text or not."""
    user = TOKENIZER.special_tokens["<｜User｜>"]
    ids = [*TOKENIZER.encode("Hi the", add_special_tokens=False), user, 300, 301]
    pieces, detokenizer = run(
        ids, stop=["<｜User｜>", "theory"], skip_special_tokens=skip, include_stop_str_in_output=include
    )
    assert detokenizer.stop_reason == "<｜User｜>"
    assert "".join(pieces) == detokenizer.text == ("Hi the<｜User｜>" if include else "Hi the")


def test_a_stop_string_around_a_hidden_special_token_is_refused() -> None:
    with pytest.raises(RequestError, match=r"contains the special token '<｜User｜>'.*skip_special_tokens=False"):
        run([], stop=["<｜User｜>Hi"])
    ids = [4, *TOKENIZER.encode("Hi", add_special_tokens=False)]
    assert run(ids, stop=["<｜User｜>Hi"], skip_special_tokens=False)[1].stop_reason == "<｜User｜>Hi"


@pytest.mark.parametrize("min_tokens", range(7))
def test_stop_strings_wait_for_min_tokens(min_tokens: int) -> None:
    ids = [TOKENIZER.encode("a", add_special_tokens=False)[0]] * 6
    _, detokenizer = run(ids, stop=["a"], min_tokens=min_tokens)
    assert detokenizer.text == "a" * min(min_tokens, 6)
    assert detokenizer.stop_reason == ("a" if min_tokens < 6 else None)
    special = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(stop="<｜User｜>", min_tokens=2))
    assert [special.append(4) for _ in range(3)] == [False, False, True]


def test_an_unfinished_character_of_the_first_tokens_does_not_stop_either() -> None:
    half = TOKENIZER.encode("塩", add_special_tokens=False)[:1]
    for min_tokens, reason in ((0, "\ufffd"), (1, None)):
        _, detokenizer = run(half, stop="\ufffd", min_tokens=min_tokens)
        assert (detokenizer.stop_reason, detokenizer.text) == (reason, "" if reason else "\ufffd")


def test_nothing_is_withheld_when_the_stop_string_is_wanted() -> None:
    ids = TOKENIZER.encode("The lamp is lit.", add_special_tokens=False)
    pieces, detokenizer = run(ids, stop=["The lamp is out", "lit"], include_stop_str_in_output=True)
    expected = [TOKENIZER.token_text(token) for token in ids[: len(pieces) - 1]]
    assert detokenizer.text == "The lamp is lit"
    assert pieces[: len(expected) - 1] == expected[:-1]


def test_special_tokens_do_not_end_the_prompts_last_character() -> None:
    """As in the tokenizer's own decoding without special tokens."""
    first, *rest = TOKENIZER.encode("塩", add_special_tokens=False)
    assert run(rest, [300, first, 4, 5])[1].text == "塩"
    assert run(rest, [300, first, 4, 5], skip_special_tokens=False)[1].text == "\ufffd" * len(rest)


def test_nothing_is_added_after_a_stop() -> None:
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], SamplingParams(stop="lamp"))
    for token in TOKENIZER.encode("The lamp is lit.", add_special_tokens=False):
        detokenizer.append(token)
    assert detokenizer.append(300)
    detokenizer.finish()
    assert detokenizer.text == "The "


def test_ids_that_the_tokenizer_lacks_have_no_text() -> None:
    ids = TOKENIZER.encode("塩", add_special_tokens=False)
    assert run([ids[0], 5000, *ids[1:]])[1].text == "塩"


def test_the_work_per_token_does_not_grow_with_the_text() -> None:
    """Counted, not timed: each token's bytes are looked up once, wherever it stands."""
    looked_up: list[int] = []

    class Counting:
        special_ids, special_tokens = TOKENIZER.special_ids, TOKENIZER.special_tokens

        def token_bytes(self, token: int) -> bytes:
            looked_up.append(token)
            return TOKENIZER.token_bytes(token)

    ids = random.Random(0).choices(range(7, VOCAB), k=2000)
    detokenizer = IncrementalDetokenizer(Counting(), ids, SamplingParams(stop="§§"))  # type: ignore[arg-type]
    assert len(looked_up) <= 3
    looked_up.clear()
    shown = 0
    for token in ids:
        detokenizer.append(token)
        shown += len(detokenizer.since(shown))
    assert looked_up == ids


def sentencepiece_like() -> Tokenizer:
    """A tokenizer with byte fallback, as Llama's."""
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁Hello": 256, "▁wor": 257, "ld": 258}
    backend = Backend(models.BPE(vocab, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))  # type: ignore[no-untyped-call]


@given(st.lists(st.integers(0, 259), max_size=20))
@settings(max_examples=50)
def test_byte_fallback_tokenizers_keep_the_space_before_the_first_word(ids: list[int]) -> None:
    tokenizer = sentencepiece_like()
    detokenizer = IncrementalDetokenizer(tokenizer, [259], SamplingParams())
    for token in ids:
        detokenizer.append(token)
    detokenizer.finish()
    expected = b"".join(tokenizer.token_bytes(token) for token in ids if token != 259).decode(errors="replace")
    assert detokenizer.text == expected
    if ids[:2] == [256, 257]:
        assert detokenizer.text.startswith(" Hello wor")
    if b"\xff" not in expected.encode() and "\ufffd" not in expected:
        assert tokenizer.decode(ids) == expected.removeprefix(" ")
