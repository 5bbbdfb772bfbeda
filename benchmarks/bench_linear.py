"""Time of ``ops.cpu.linear`` against ``torch.nn.functional.linear``, per weight format and batch.

    python benchmarks/bench_linear.py --size 2048 --threads 2

torch has no fp8 or fp4 linear on the CPU; those columns are compared with its bf16 one. Best of several runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from deepinfer_kernels import cpu, ops
from deepinfer_kernels.weights import DenseWeight, Fp4Weight, Fp8Weight, Weight


def best(call: Callable[[], object], seconds: float) -> float:
    """Shortest time of one call, in seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def weights(inputs: int, outputs: int) -> dict[str, Weight]:
    """One weight of every format."""
    fp8 = torch.randn(outputs, inputs).to(torch.float8_e4m3fn).view(torch.uint8)
    exponents = torch.randint(120, 124, (-(-outputs // 32), -(-inputs // 32)), dtype=torch.uint8)
    fp4 = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    per_row = torch.randint(120, 124, (outputs, inputs // 32), dtype=torch.uint8)
    return {
        "bf16": DenseWeight(torch.randn(outputs, inputs, dtype=torch.bfloat16)),
        "f32": DenseWeight(torch.randn(outputs, inputs)),
        "fp8": Fp8Weight(fp8, exponents),
        "fp4": Fp4Weight(fp4, per_row),
    }


def main() -> None:
    """Print one line per batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2048, help="inputs and outputs (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement (default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 32, 256])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cpu.set_num_threads(args.threads)
    formats = weights(args.size, args.size)
    dense = formats["bf16"]
    assert isinstance(dense, DenseWeight), "torch's linear takes the bf16 weight as a tensor"
    print(f"K = M = {args.size}, {args.threads} threads, {cpu.get_isa()}; microseconds, (times as fast as torch)")
    for batch in args.batches:
        x = torch.randn(batch, args.size, dtype=torch.bfloat16)
        base = best(lambda x=x: torch.nn.functional.linear(x, dense.data), args.seconds)  # type: ignore[misc]
        line = f"batch {batch:4d}   torch bf16 {base * 1e6:9.0f}"
        for name, weight in formats.items():
            ours = best(lambda x=x, w=weight: ops.cpu.linear(x, w, torch.bfloat16), args.seconds)  # type: ignore[misc]
            line += f"   {name} {ours * 1e6:9.0f} ({base / ours:5.2f})"
        print(line)


if __name__ == "__main__":
    main()
