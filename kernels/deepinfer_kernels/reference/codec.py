"""Number formats: e4m3, e2m1 and e8m0 codes, quantisers, and packed cache records."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer_kernels.codecs import CODECS, Codec
from deepinfer_kernels.weights import SCALE_GROUP, DenseWeight, Fp4Weight, Fp8Weight, Weight

E4M3_MAX = 448.0
E2M1_MAX = 6.0


def e8m0_to_float(code: Tensor) -> Tensor:
    """uint8 exponent codes to f32: ``2^(code-127)``, 255 is NaN."""
    value = torch.ldexp(torch.ones_like(code, dtype=torch.float32), code.to(torch.int32) - 127)
    return torch.where(code == 255, torch.full_like(value, torch.nan), value)


def e4m3_to_float(code: Tensor) -> Tensor:
    """uint8 e4m3fn codes to f32."""
    return code.view(torch.float8_e4m3fn).float()


def _e2m1_values(code: Tensor) -> Tensor:
    """uint8 4-bit codes to f32: 0, ½, 1, 1½, 2, 3, 4, 6, and the same with the sign bit, the top one, set."""
    step = (code & 7).float()
    value = torch.where(step < 4, step / 2, torch.where(step < 6, step - 2, 2 * step - 8))
    return torch.where(code >= 8, -value, value)


def e2m1_to_float(packed: Tensor) -> Tensor:
    """uint8 pairs ``[..., n]`` to f32 ``[..., 2n]``, low nibble first."""
    return torch.stack([_e2m1_values(packed & 15), _e2m1_values(packed >> 4)], -1).flatten(-2)


def _ceil_log2(x: Tensor) -> Tensor:
    """``ceil(log2(x))`` of positive normal f32 values, exactly, by their bits."""
    bits = x.contiguous().view(torch.int32)
    return (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def _e2m1_codes(x: Tensor) -> Tensor:
    """f32 values to e2m1 codes: round to nearest, ties to the even code, saturate."""
    magnitude = x.abs()
    # Midpoints between neighbours; a tie goes up exactly where the upper code is even.
    code = torch.zeros_like(magnitude, dtype=torch.uint8)
    for upper, midpoint in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0), start=1):
        code += (magnitude >= midpoint if upper % 2 == 0 else magnitude > midpoint).to(torch.uint8)
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def _scales(amax: Tensor, codec: Codec) -> tuple[Tensor, Tensor]:
    """Scale codes (uint8) and their f32 values for each group's ``amax``."""
    amax = amax.clamp_min(codec.min_amax)
    if codec.e4m3_scale:
        scale = (amax / E2M1_MAX).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn)
        return scale.view(torch.uint8), scale.float()
    # Multiplying by the reciprocal is how the published quantiser divides.
    exponent = _ceil_log2(amax * (1.0 / (E2M1_MAX if codec.fp4 else E4M3_MAX)))
    code = (exponent.clamp(-127, 127) + 127).to(torch.uint8)
    return code, e8m0_to_float(code)


def _quantize(x: Tensor, codec: Codec) -> tuple[Tensor, Tensor, Tensor]:
    """Groups of ``x`` as codes ``[..., groups, group]``, scale codes and scale values ``[..., groups]``."""
    groups = x.float().unflatten(-1, (x.shape[-1] // codec.group, codec.group))
    scale_code, scale = _scales(groups.abs().amax(-1), codec)
    limit = E2M1_MAX if codec.fp4 else E4M3_MAX
    scaled = (groups / scale[..., None]).clamp(-limit, limit)
    code = _e2m1_codes(scaled) if codec.fp4 else scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return code, scale_code, scale


def quantize_dequantize(x: Tensor, codec: str) -> Tensor:
    """See the interface."""
    code, _, scale = _quantize(x, CODECS[codec])
    value = _e2m1_values(code) if CODECS[codec].fp4 else e4m3_to_float(code)
    return (value * scale[..., None]).flatten(-2).to(x.dtype)


def pack_kv(x: Tensor, codec: str) -> Tensor:
    """See the interface."""
    code, scale_code, _ = _quantize(x, CODECS[codec])
    data = code.flatten(-2)
    if CODECS[codec].fp4:
        data = data[..., 0::2] | (data[..., 1::2] << 4)
    return torch.cat([data, scale_code], -1)


def unpack_kv(records: Tensor, codec: str, dim: int) -> Tensor:
    """See the interface."""
    spec = CODECS[codec]
    data, scale_code = records.split([spec.data_bytes(dim), dim // spec.group], -1)
    value = e2m1_to_float(data) if spec.fp4 else e4m3_to_float(data.contiguous())
    scale_code = scale_code.contiguous()
    scale = e4m3_to_float(scale_code) if spec.e4m3_scale else e8m0_to_float(scale_code)
    out: Tensor = value.unflatten(-1, (dim // spec.group, spec.group)) * scale[..., None]
    return out.flatten(-2).to(torch.bfloat16)


def store_records(cache: Tensor, slots: Tensor, records: Tensor) -> None:
    """See the interface."""
    scatter_rows(cache.flatten(0, 1), slots, records)


def scatter_rows(target: Tensor, places: Tensor, rows: Tensor) -> None:
    """``target[places[i]] = rows[i]`` in place wherever ``places[i] >= 0``, without asking where that is.

    ``target [T,B]``, ``places [N]`` int64, ``rows [N,B]``.
    """
    if not len(places):
        return
    live = places >= 0
    # Rows without a place write what the last row with one writes; without any, what is there already.
    last = (live * torch.arange(len(places), device=places.device)).argmax(0, keepdim=True)
    spare = places[last].clamp_min(0)
    spare_row = torch.where(live[last, None], rows[last], target[spare])
    target[torch.where(live, places, spare)] = torch.where(live[:, None], rows, spare_row)


def dequantize_weight(weight: Weight) -> Tensor:
    """Any weight as f32 ``[..., M, K]``."""
    if isinstance(weight, DenseWeight):
        return weight.data.float()
    if isinstance(weight, Fp8Weight):
        rows, cols = weight.data.shape[-2:]
        scale = e8m0_to_float(weight.scale)
        scale = scale.repeat_interleave(SCALE_GROUP, -2)[..., :rows, :]
        return e4m3_to_float(weight.data) * scale.repeat_interleave(SCALE_GROUP, -1)[..., :cols]
    if isinstance(weight, Fp4Weight):
        return e2m1_to_float(weight.data) * e8m0_to_float(weight.scale).repeat_interleave(SCALE_GROUP, -1)
    raise TypeError(f"weight must be a DenseWeight, Fp8Weight or Fp4Weight, got {type(weight).__name__}")
