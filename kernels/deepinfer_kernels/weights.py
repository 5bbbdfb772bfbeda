"""Storage formats of a linear layer's weight, as published checkpoints have them.

A weight maps ``K`` inputs to ``M`` outputs. Every class may carry leading dimensions (a stack of
experts); :meth:`select` gives one member as a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

#: Side of the square block (fp8) or length of the row group (fp4) that shares one scale.
SCALE_GROUP = 32


@dataclass(frozen=True)
class DenseWeight:
    """``data: [..., M, K]`` bf16 or f32."""

    data: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """``(..., M, K)``."""
        return tuple(self.data.shape)

    def select(self, index: int) -> DenseWeight:
        """Member ``index`` of a stack."""
        return DenseWeight(self.data[index])


@dataclass(frozen=True)
class Fp8Weight:
    """``data: [..., M, K]`` uint8 holding e4m3 codes; ``scale: [..., ceil(M/32), ceil(K/32)]`` uint8, e8m0."""

    data: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """``(..., M, K)``."""
        return tuple(self.data.shape)

    def select(self, index: int) -> Fp8Weight:
        """Member ``index`` of a stack."""
        return Fp8Weight(self.data[index], self.scale[index])


@dataclass(frozen=True)
class Fp4Weight:
    """``data: [..., M, K/2]`` uint8, two e2m1 codes a byte, the even input in the low nibble;
    ``scale: [..., M, K/32]`` uint8, e8m0."""

    data: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """``(..., M, K)``."""
        *lead, half = self.data.shape
        return (*lead, 2 * half)

    def select(self, index: int) -> Fp4Weight:
        """Member ``index`` of a stack."""
        return Fp4Weight(self.data[index], self.scale[index])


Weight = DenseWeight | Fp8Weight | Fp4Weight
