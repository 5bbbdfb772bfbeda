"""Conformance of ``backend`` components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.testing.checkpoints import write_toy_checkpoint
from deepinfer_core.testing.kernels import Example, check_against, check_rows, cpu_backend, moved, results, same_bits
from deepinfer_core.testing.suite import Suite, default_backend
from deepinfer_core.testing.toy import ToyArchitecture
from deepinfer_core.worker.host_pool import new_host_pool


class BackendSuite(Suite):
    """The device works, its ops give the CPU backend's results, and an engine runs on it."""

    seam = "backend"
    missing_ops: ClassVar[Sequence[str]] = ()
    """Ops that the backend does not have, and that no model of its users calls."""

    @pytest.fixture
    def oracle(self) -> Any:
        """The ops that results are compared with."""
        return cpu_backend().kernels

    @pytest.fixture
    def cases(self, component: Backend, oracle: Any) -> list[Example]:
        """Calls of every op."""
        component.configure(None)
        return [e for seed in (0, 1) for e in oracle.examples(seed) if e.op not in self.missing_ops]

    def test_the_device_holds_tensors(self, component: Backend) -> None:
        """What goes there comes back."""
        assert isinstance(component.device, torch.device)
        values = torch.arange(6, dtype=torch.float32)
        there = values.to(component.device)
        assert there.device.type == component.device.type and torch.equal(there.cpu(), values)

    def test_memory_is_reported_in_bytes(self, component: Backend) -> None:
        """Free is part of the total."""
        free, total = component.memory_info()
        assert type(free) is int and type(total) is int and 0 <= free <= total and total > 0

    def test_its_name_is_a_word(self, component: Backend) -> None:
        """What users type."""
        assert component.name == component.name.strip() and component.name not in ("", "auto")
        if self.component_name:
            assert component.name == self.component_name

    @pytest.mark.parametrize("threads", [0, -1])
    def test_wrong_thread_counts_are_refused(self, component: Backend, threads: int) -> None:
        """With the value; a device that ignores the count may take it."""
        try:
            component.configure(threads)
        except ValueError as error:
            assert str(threads) in str(error), "the message names the value"
        finally:
            component.configure(None)

    def test_ops_give_the_cpu_backends_results(self, component: Backend, oracle: Any, cases: list[Example]) -> None:
        """Within what each op allows."""
        host = torch.device("cpu")
        for example in cases:
            expected = results(getattr(oracle, example.op), example, host)
            found = results(getattr(component.kernels, example.op), example, component.device)
            check_against(found, expected, example.tolerance, example.op)

    def test_rows_are_independent(self, component: Backend, cases: list[Example]) -> None:
        """Bit for bit, alone and in any place."""
        for example in cases:
            if example.by_row:
                check_rows(getattr(component.kernels, example.op), example, component.device)

    def test_the_number_of_threads_changes_nothing(self, component: Backend, cases: list[Example]) -> None:
        """Bit for bit."""
        found = []
        for threads in (1, 2, 3):
            component.configure(threads)
            with new_host_pool(component, threads):
                found.append([results(getattr(component.kernels, e.op), e, component.device) for e in cases])
        component.configure(None)
        for example, one, two, three in zip(cases, *found, strict=True):
            assert same_bits(one, two) and same_bits(one, three), f"{example.op} with 1, 2 and 3 threads"

    def test_arguments_are_left_unchanged(self, component: Backend, cases: list[Example]) -> None:
        """But for what the op is there to write."""
        for example in cases:
            args = [moved(arg, component.device) for arg in example.args]
            getattr(component.kernels, example.op)(*args)
            for index, (before, after) in enumerate(zip(example.args, args, strict=True)):
                if isinstance(before, torch.Tensor) and index != example.writes:
                    assert same_bits([before], [after.cpu()]), f"{example.op} changed its argument {index}"

    def test_an_op_that_is_not_there_is_an_error(self, component: Backend) -> None:
        """With the op's name: never a silent way round."""
        with pytest.raises((AttributeError, RuntimeError), match="no_such_op"):
            component.kernels.no_such_op()

    def test_an_engine_runs_on_it(self, component: Backend, tmp_path: Path) -> None:
        """The tokens of a small model are those of the default backend."""
        if self.plugin is None:
            pytest.skip("the component was not given by its plugin's name, so an engine cannot select it")
        checkpoint = write_toy_checkpoint(tmp_path / "checkpoint")
        tokens = []
        for backend in (component.name, default_backend()[0]):
            with LLM(checkpoint, plugins=[ToyArchitecture()], backend=backend, disable_log_stats=True) as llm:
                params = SamplingParams(temperature=0.5, seed=1, max_tokens=5, ignore_eos=True)
                outputs = llm.generate([[5, 9, 11], [7] * 9], params, use_tqdm=False)
            assert [output.error for output in outputs] == [None, None]
            tokens.append([output.outputs[0].token_ids for output in outputs])
        assert tokens[0] == tokens[1]
