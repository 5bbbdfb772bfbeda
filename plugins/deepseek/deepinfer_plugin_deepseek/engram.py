"""Engram: hashed n-gram memory that edits the residual streams before some layers.

Conditional Memory via Scalable Lookup (DeepSeek 2026, arXiv:2601.07372); hashes, primes and the gate are the published
reference model's of DeepSeek-V4.1. Token ids may be known on the device only, so the hashing is done there.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from deepinfer_kernels.modules import Linear, dense_storage, parameter

from .step import Step

if TYPE_CHECKING:
    from deepinfer_core.tokenizer import Tokenizer

    from .config import DeepseekV41Config
    from .config.sections import EngramConfig

#: Smallest |dot| that the gate's square root sees.
GATE_CLAMP = 1e-6
_SEED_STEP = 10007
_REPLACEMENT = "\ufffd"


def token_key(text: str, spelling: str) -> str:
    """What a token is to the n-gram memory: its text without case, accents or runs of blanks.

    ``text`` is the token decoded alone; one that is no text by itself counts by its ``spelling`` in the vocabulary.
    """
    if _REPLACEMENT in text:
        return spelling
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(char for char in plain if unicodedata.category(char) != "Mn").lower()
    plain = re.sub(r"[ \t\r\n]+", " ", plain)
    return plain if plain == " " else plain.strip() or text


def compressed_token_map(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray:
    """``[vocab_size]`` int64: each token's id among the distinct keys, in order of first appearance."""
    ids: dict[str, int] = {}
    keys = (token_key(tokenizer.token_text(token), tokenizer.token_spelling(token)) for token in range(vocab_size))
    return np.fromiter((ids.setdefault(key, len(ids)) for key in keys), np.int64, vocab_size)


def _is_prime(number: int) -> bool:
    """Deterministic Miller-Rabin for numbers below 3.3e24 (Sorenson & Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if number < 2 or any(number % p == 0 for p in bases):
        return number in bases
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos

    def witnesses(base: int) -> bool:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            return False
        return all((power := power * power % number) != number - 1 for _ in range(twos - 1))

    return not any(witnesses(base) for base in bases)


def _primes_from(start: int) -> Iterator[int]:
    while True:
        if _is_prime(start):
            yield start
        start += 1


class HashLayout:
    """Multipliers, primes and row offsets of every engram layer's table."""

    def __init__(self, config: EngramConfig) -> None:
        sizes, heads = config.max_ngram - 1, config.num_heads
        # Primes count up from the vocabulary size, each used once over all layers.
        primes = _primes_from(config.vocab_size)
        shape = (len(config.layer_ids), sizes, heads)
        self.primes = np.fromiter((next(primes) for _ in range(int(np.prod(shape)))), np.int64).reshape(shape)
        """``[layers, n-gram sizes, heads]``: rows of each table part."""
        flat = self.primes.reshape(len(config.layer_ids), -1)
        self.offsets = np.concatenate([np.zeros_like(flat[:, :1]), flat.cumsum(1)[:, :-1]], 1)
        """``[layers, columns]``: first row of each part."""
        limit = (2**63 - 1) // config.compressed_vocab_size // 2
        self.multipliers = np.stack(
            [
                2 * np.random.default_rng(_SEED_STEP * layer).integers(0, limit, config.max_ngram, dtype=np.int64) + 1
                for layer in config.layer_ids
            ]
        )
        """``[layers, max_ngram]`` odd int64."""

    @property
    def rows(self) -> list[int]:
        """Rows each layer's table must have."""
        return [int(part.sum()) for part in self.primes]


class TokenHasher:
    """Turns a step's token context, on ``device``, into rows of every engram layer's table."""

    def __init__(
        self, config: EngramConfig, layout: HashLayout, token_map: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        tables = (token_map, layout.multipliers, layout.primes, layout.offsets)
        self._map, self._multipliers, self._primes, self._offsets = (torch.from_numpy(t).to(device) for t in tables)
        self._pad = int(token_map[config.pad_token_id])
        self._layers = {layer: place for place, layer in enumerate(config.layer_ids)}

    def rows(self, context_ids: Tensor) -> dict[int, Tensor]:
        """``context_ids [N, max_ngram]`` (-1 = before the sequence) → ``{layer: [N, columns]}``."""
        mapped = self._map[context_ids.clamp_min(0)]
        mapped = torch.where(context_ids < 0, self._pad, mapped)
        return {layer: self._row_ids(mapped, place) for layer, place in self._layers.items()}

    def _row_ids(self, compressed_ids: Tensor, layer: int) -> Tensor:
        """``compressed_ids [N, max_ngram]`` int64 (column k: k tokens back) → table rows ``[N, columns]`` int64."""
        terms = compressed_ids * self._multipliers[layer]
        hashes = functools.reduce(lambda done, term: [*done, done[-1] ^ term], terms.unbind(1)[1:], [terms[:, 0]])
        ngrams = torch.stack(hashes[1:], 1)
        rows = ngrams[:, :, None] % self._primes[layer]
        return rows.flatten(1) + self._offsets[layer]


class Embedding(nn.Module):
    """The table: ``[rows, head_dim]`` bf16, or e4m3 with a scale per 32 values."""

    def __init__(self, rows: int, dim: int, quantized: bool) -> None:
        super().__init__()
        self._quantized = quantized
        self.weight = parameter("e4m3" if quantized else "bf16", rows, dim)
        if quantized:
            self.scale = parameter("e8m0", rows, dim // 32)

    def lookup(self, step: Step, rows: Tensor) -> Tensor:
        """``rows [N,C]`` int64 → ``[N,C,dim]`` bf16."""
        if not self._quantized:
            return self.weight[rows]
        records = torch.cat([self.weight[rows], self.scale[rows]], -1).flatten(0, 1)
        values = step.kernels.unpack_kv(records, "fp8_e8m0_32", self.weight.shape[1])
        return values.view(*rows.shape, -1)  # type: ignore[no-any-return]


class Engram(nn.Module):
    """Looks up a token's n-grams and gates what they hold into each stream."""

    def __init__(self, config: DeepseekV41Config, layer: int) -> None:
        super().__init__()
        settings, hidden, mult = config.engram, config.hidden_size, config.hyper_connection.mult
        assert settings is not None, "the layer plan admits engram layers only with engram settings"
        self._layer, self._eps = layer, config.rms_norm_eps
        rows = settings.num_embeddings[settings.layer_ids.index(layer)]
        self.embed = Embedding(rows, settings.head_dim, dense_storage(config) != "bf16")
        self.wkv = Linear(settings.row_dim, (mult + 1) * hidden, dense_storage(config))
        self.q_weight = parameter("bf16", mult, hidden)
        self.k_weight = parameter("bf16", mult, hidden)

    def run(self, step: Step, streams: Tensor, rows: Tensor) -> Tensor:
        """``streams [N,m,d]``, table rows ``[N, columns]`` → new streams."""
        memory = self.embed.lookup(step, rows)
        step.observe(f"layers.{self._layer}.engram_rows", memory)
        kv = self.wkv.apply_to(step.kernels, memory.flatten(1))
        return step.kernels.engram_gate(  # type: ignore[no-any-return]
            streams, kv, self.q_weight, self.k_weight, self._eps, GATE_CLAMP, None
        )
