"""Storage formats of cached vectors. Pure data: importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Codec:
    """How a vector is stored: codes, then one scale byte per ``group`` elements.

    fp4: two e2m1 codes a byte, the even element in the low nibble; otherwise one e4m3 code a byte.
    e4m3_scale: scales are e4m3 instead of e8m0 (powers of two).
    min_amax: smallest magnitude a group is scaled for.
    """

    group: int
    fp4: bool
    e4m3_scale: bool
    min_amax: float

    def data_bytes(self, dim: int) -> int:
        """Bytes of codes for ``dim`` elements."""
        return dim // 2 if self.fp4 else dim

    def record_bytes(self, dim: int) -> int:
        """Bytes of codes and scales for ``dim`` elements."""
        return self.data_bytes(dim) + dim // self.group


CODECS = {
    "fp8_e8m0_32": Codec(32, fp4=False, e4m3_scale=False, min_amax=1e-4),
    "fp4_e8m0_32": Codec(32, fp4=True, e4m3_scale=False, min_amax=6 * 2.0**-126),
    "fp4_e4m3_16": Codec(16, fp4=True, e4m3_scale=True, min_amax=6 * 2.0**-9),
}

#: What each cache of a latent-attention model holds.
WINDOW_CODEC = "fp8_e8m0_32"
COMPRESSED_CODEC = "fp4_e4m3_16"
INDEX_CODEC = "fp4_e8m0_32"
