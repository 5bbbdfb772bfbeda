"""The calls that other families are compared by reach every op, with arguments that mean something."""

from __future__ import annotations

import torch

from deepinfer_kernels import interface, ops


def test_every_op_has_an_example() -> None:
    assert {example.op for example in ops.cpu.examples()} == set(interface.__all__)


def test_results_are_finite_and_not_all_zero() -> None:
    for example in ops.cpu.examples(3):
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in example.args]
        found = getattr(ops.cpu, example.op)(*args)
        found = args[example.writes] if example.writes is not None else found
        for part in found if isinstance(found, tuple) else (found,):
            assert part is None or bool(torch.isfinite(part).all()), example.op
            assert part is None or bool(part.any()), example.op


def test_seeds_make_other_arguments_and_the_same_again() -> None:
    one, again, other = (ops.reference.examples(seed)[0].args[0] for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
