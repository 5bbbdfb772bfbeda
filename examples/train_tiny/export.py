"""Write the trained trunk and drafter as a checkpoint in the published format.

python -m train_tiny.export --work WORK --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from . import quant
from .dspark import Drafter, load_trunk
from .layers import Dense
from .settings import GENERATION, hf_config
from .train import Hashes

#: Parameters that stay f32; every other one that no format is given for is stored as bf16.
_FULL = re.compile(r"(hc_(attn|ffn)_(fn|base|scale)|attn_sink|gate\.bias)$")


def scale_codes(scale: Tensor) -> Tensor:
    """Powers of two as e8m0."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def fp8_tensors(weight: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes and 32 x 32 block scales of ``[M, K]``."""
    scale = quant.block_scales(weight)
    wide = scale.repeat_interleave(32, 0)[: weight.shape[0]].repeat_interleave(32, 1)[:, : weight.shape[1]]
    return (quant.fp8_blocks(weight) / wide).to(torch.float8_e4m3fn), scale_codes(scale)


def fp8_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes and per-32 scales of ``[rows, dim]``."""
    groups = table.unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1).clamp_min(quant.FP8_FLOOR)
    scale = quant.ceil_power_of_two(amax * (1 / quant.E4M3_MAX))
    codes = quant.e4m3_value(groups / scale[..., None]).flatten(-2).to(torch.float8_e4m3fn)
    return codes, scale_codes(scale)


def fp4_tensors(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of e2m1 codes, low nibble first, as int8, and per-32 scales of ``[M, K]``."""
    groups = weight.unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1).clamp_min(6 * 2.0**-126)
    scale = quant.ceil_power_of_two(amax * (1 / quant.E2M1_MAX))
    values = quant.e2m1_value((groups / scale[..., None]).clamp(-6, 6)).flatten(-2)
    sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.searchsorted(sizes, values.abs().contiguous()).to(torch.uint8)
    codes |= torch.signbit(values).to(torch.uint8) << 3
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8), scale_codes(scale)


def published(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a trunk or drafter under its published name, in its stored form."""
    parts = dict(module.named_modules())
    for name, value in module.state_dict().items():
        name, value = re.sub(r"\.hc_(attn|ffn)\.", r".hc_\1_", name), value.detach().float()
        owner = parts.get(name.removesuffix(".weight"))
        if isinstance(owner, Dense) and owner.storage == "fp4":
            stack, matrix = re.match(r"(.*\.experts)\.(w[123])\.weight", name).groups()  # type: ignore[union-attr]
            for expert, weight in enumerate(value):
                codes, scale = fp4_tensors(weight)
                yield f"{stack}.{expert}.{matrix}.weight", codes
                yield f"{stack}.{expert}.{matrix}.scale", scale
        elif name.endswith("engram.embed.weight") or (isinstance(owner, Dense) and owner.storage == "fp8"):
            codes, scale = fp8_tensors(value) if isinstance(owner, Dense) else fp8_rows(value)
            yield name, codes
            yield name.removesuffix("weight") + "scale", scale
        else:
            yield name, value if _FULL.search(name) else value.to(torch.bfloat16)


def drafter_name(name: str, last: int) -> str:
    """``stages.1.…`` → ``mtp.1.…``; what all stages share goes to the first or the last."""
    for ours, theirs in (("markov_embed", "markov_head.embed"), ("markov_head", "markov_head.head")):
        if name.startswith(ours + "."):
            return f"mtp.{last}.{theirs}.weight"
    if name.startswith("confidence."):
        return f"mtp.{last}.confidence_head.proj.weight"
    if name.startswith("norm."):
        return f"mtp.{last}.{name}"
    return f"mtp.0.{name}" if name.startswith("main_") else re.sub(r"^stages\.", "mtp.", name)


def export(trunk: nn.Module, drafter: Drafter | None, config: dict[str, Any], tokenizer: Path, out: Path) -> int:
    """Write the folder ``out``; returns the bytes of its tensors."""
    out.mkdir(parents=True, exist_ok=True)
    shards = [dict(published(trunk))]
    if drafter is not None:
        last = len(drafter.stages) - 1
        shards.append({drafter_name(name, last): value for name, value in published(drafter)})
    places, total = {}, 0
    for number, tensors in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: value.contiguous() for name, value in tensors.items()}, out / file, {"format": "pt"})
        (out / file).chmod(0o644)
        places |= dict.fromkeys(tensors, file)
        total += sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    for name, table in (("config.json", config), ("generation_config.json", GENERATION)):
        (out / name).write_text(json.dumps(table, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, out / name)
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    hashes = Hashes(a.work)
    trained = None
    if (a.work / "drafter.pt").exists():
        trained = Drafter(hashes.config)
        trained.load_state_dict(torch.load(a.work / "drafter.pt")["model"])
    settings = hf_config(hashes.config.engram.compressed_vocab_size)
    size = export(load_trunk(a.work, hashes), trained, settings, a.work, a.out)
    print(f"{size / 1e6:.2f} MB of tensors in {a.out}")
