"""What all suites have in common: where the component comes from, and that it fills its seam."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from deepinfer_core.interfaces.backend import Backend
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins import PluginManager
from deepinfer_core.plugins.probe import load_object
from deepinfer_core.testing.protocols import problems


class Suite:
    """Base of every suite. A subclass sets :attr:`plugin`, or overrides the fixture :meth:`component`.

    Tests are named after what the seam promises. One that cannot be run on this component is skipped, with the
    reason; a subclass must not leave out others.
    """

    seam: ClassVar[str]
    plugin: ClassVar[str | None] = None
    """Name of an installed plugin: its component is loaded through its manifest, as the engine does it."""
    component_name: ClassVar[str | None] = None
    """Which of the plugin's components, where it has several for the seam."""

    @pytest.fixture
    def component(self) -> Any:
        """The component under test, a new one for every test."""
        if self.plugin is None:
            pytest.fail(f"{type(self).__name__} must set the attribute 'plugin' or override the fixture 'component'")
        return PluginManager([self.plugin], environ={}).component(self.seam, self.component_name)

    def test_it_has_every_member_of_its_seams_protocol(self, component: Any) -> None:
        """Members exist and methods take what the core passes."""
        path = SEAMS[self.seam].protocol
        if path is None:
            pytest.skip(f"the seam {self.seam!r} has no Protocol: its other tests check its form")
        protocol: Any = load_object(path)
        assert problems(component, protocol) == [], f"the component does not fill {path}"

    def run_without_torch(self, statement: str) -> None:
        """Run a statement in a child process in which torch cannot be imported; ``component`` is the component."""
        if self.plugin is None:
            pytest.skip("the component was not given by its plugin's name, so a child process cannot load it")
        load = "PluginManager([sys.argv[1]], environ={}).component(sys.argv[2], sys.argv[3] or None)"
        script = "import sys; sys.modules['torch'] = None\nfrom deepinfer_core.plugins import PluginManager\n"
        child = subprocess.run(
            [sys.executable, "-c", f"{script}component = {load}\n{statement}", self.plugin, self.seam,
             self.component_name or ""],
            capture_output=True, text=True, timeout=120, env=child_environment(),
        )  # fmt: skip
        assert child.returncode == 0, f"this must work without torch: {statement}\n{child.stderr}"


def default_backend() -> tuple[str, Backend]:
    """The backend that others are compared with, and its name: the installed one that says it is the default."""
    manager = PluginManager(environ={})
    backend: Backend = manager.component("backend")
    (name,) = manager.named("backend")
    return name, backend


def child_environment() -> dict[str, str]:
    """The environment in which a child process finds what this one can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
