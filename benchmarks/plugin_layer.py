"""What the plugin layer costs: start-up with many installed plugins, and a step with and without plugins.

Usage: ``python benchmarks/plugin_layer.py [--plugins 300] [--steps 400] [--model PATH]``. Ratios come from one run: the
variants take turns, request by request, so that a busy machine meets all of them alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deepinfer_core import LLM, SamplingParams, hookimpl

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests" / "data" / "v41-tiny-bf16"
LISTING = """
import resource, sys
from deepinfer_core.cli.main import main
code = main(["plugins", "list", "--json"])
usage = resource.getrusage(resource.RUSAGE_SELF)
imported = sum(name.startswith("bench_plugin_") for name in sys.modules)
print(usage.ru_utime + usage.ru_stime, imported, file=sys.stderr)
sys.exit(code)
"""


def install(site: Path, count: int) -> None:
    """Distributions as an installer leaves them, each with a plugin whose import would end the process."""
    for i in range(count):
        package, info = site / f"bench_plugin_{i}", site / f"bench_dist_{i}-1.0.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text("import os\nos._exit(1)\n")
        (package / "deepinfer_plugin.toml").write_text(
            f'name = "bench-{i}"\napi = ">=1.0,<2"\n[[component]]\nseam = "hooks"\nname = "bench-{i}"\n'
            f'object = "bench_plugin_{i}:Thing"\n'
        )
        readme = "A line of a long description.\n" * 200
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bench-dist-{i}\nVersion: 1.0\n\n{readme}")
        (info / "entry_points.txt").write_text(f"[deepinfer.plugins]\nbench-{i} = bench_plugin_{i}\n")


def list_seconds(count: int, repeats: int = 3) -> tuple[float, int]:
    """CPU seconds of the process of ``deepinfer plugins list``, start of Python included (best of ``repeats``), and
    how many of the plugins it imported."""
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), count)
        environment = {**os.environ, "PYTHONPATH": folder}
        results = []
        for _ in range(repeats):
            command = [sys.executable, "-c", LISTING]
            output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            assert output.stdout.count("bench_plugin") == 0 and output.stdout.count('"bench-dist-') == count
            seconds, imported = output.stderr.split()[-2:]
            results.append((float(seconds), int(imported)))
    return min(results)


class Observer:
    """Implements the hooks of every step, and does nothing."""

    @hookimpl
    def post_schedule(self, plan: Any) -> None: ...

    @hookimpl
    def post_process_model_outputs(self, outputs: Any) -> None: ...


def step_seconds(model: Path, steps: int, rounds: int = 8) -> dict[str, float]:
    """Median CPU seconds of a step, by variant: twice without plugins (their ratio is the noise), and with one."""
    variants: dict[str, list[object]] = {"none": [], "none again": [], "one observer": [Observer()]}
    params = SamplingParams(temperature=0.0, max_tokens=max(steps // rounds, 2), ignore_eos=True)
    llms = {
        name: LLM(
            model, plugins=plugins, num_pages=16, max_num_seqs=1, num_threads=1, disable_log_stats=True, banner=False
        )
        for name, plugins in variants.items()
    }
    times: dict[str, list[float]] = {name: [] for name in llms}
    for round_number in range(rounds + 1):
        for name, llm in llms.items():
            started = time.process_time()
            llm.generate([[7, 8, 9]], params, use_tqdm=False)
            if round_number:  # the first one warms up
                times[name].append((time.process_time() - started) / params.max_tokens)
    for llm in llms.values():
        llm.close()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=300)
    parser.add_argument("--steps", type=int, default=400, help="steps per variant")
    parser.add_argument("--model", type=Path, default=MODEL)
    args = parser.parse_args()
    base, _ = list_seconds(0)
    seconds, imported = list_seconds(args.plugins)
    print(f"plugins list, {args.plugins} more installed: {seconds:.3f} s of CPU time ({base:.3f} s without them)")
    print(f"  of which imported: {imported}; budget 0.3 s: {'kept' if seconds < 0.3 else 'MISSED'}")
    steps = step_seconds(args.model, args.steps)
    for name, value in steps.items():
        print(f"step, {name:<14} {value * 1e6:9.1f} us of CPU time, {value / steps['none']:.3f} of the first")


if __name__ == "__main__":
    main()
