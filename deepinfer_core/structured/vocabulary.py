"""The vocabulary as grammar engines see it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.interfaces.grammar import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepinfer_core.tokenizer import Tokenizer


def make_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """``vocab_size``: that of the model's logits, which may have more ids than the tokenizer, or fewer."""
    silent = {*tokenizer.special_ids, *eos_token_ids}
    known = min(vocab_size, tokenizer.vocab_size)
    spoken = [b"" if token in silent else tokenizer.token_bytes(token) for token in range(known)]
    special = {text: token for text, token in tokenizer.special_tokens.items() if token < vocab_size}
    return Vocabulary((*spoken, *[b""] * (vocab_size - known)), MappingProxyType(special), eos_token_ids)


def mask_of(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """``[ceil(V / 32)]`` int32 with the bits of these ids set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


def engine_mask(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """The bits that an engine may set: ids with a text, and special tokens that are no end of sequence."""
    chosen = {token for token, spoken in enumerate(vocabulary.token_bytes) if spoken}
    chosen |= {*vocabulary.special_tokens.values()}
    return mask_of(chosen - {*vocabulary.eos_token_ids}, len(vocabulary))
