"""Conformance of ``command`` components."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import ClassVar

import pytest

from deepinfer_core.cli.parser import Parser
from deepinfer_core.interfaces.command import Command
from deepinfer_core.testing.suite import Suite


class CommandSuite(Suite):
    """Set :attr:`arguments` to a command line that does nothing dangerous, so that the command is run too."""

    seam = "command"
    arguments: ClassVar[Sequence[str] | None] = None

    def parser(self, component: Command) -> argparse.ArgumentParser:
        """As ``deepinfer`` makes it."""
        parser = Parser(prog="deepinfer command")
        component.add_arguments(parser)
        return parser

    def test_its_options_can_be_added_more_than_once(self, component: Command) -> None:
        """To a fresh parser each time, with the same help."""
        assert self.parser(component).format_help() == self.parser(component).format_help()

    def test_every_option_has_help(self, component: Command) -> None:
        """What ``--help`` says of each."""
        silent = [a.dest for a in self.parser(component)._actions if not a.help]
        assert silent == [], "options without help"

    def test_unknown_options_are_refused(self, component: Command, capsys: pytest.CaptureFixture[str]) -> None:
        """With exit code 2 and the option's name."""
        with pytest.raises(SystemExit) as refusal:
            self.parser(component).parse_intermixed_args([*(self.arguments or ()), "--no-such-option"])
        assert refusal.value.code == 2 and "--no-such-option" in capsys.readouterr().err

    def test_help_exits_with_0(self, component: Command, capsys: pytest.CaptureFixture[str]) -> None:
        """And prints to standard output."""
        with pytest.raises(SystemExit) as end:
            self.parser(component).parse_intermixed_args(["--help"])
        assert end.value.code == 0 and "usage" in capsys.readouterr().out

    def test_it_runs_and_returns_an_exit_code(self, component: Command) -> None:
        """0 for the given command line."""
        if self.arguments is None:
            pytest.skip("what it would do is unknown: set the attribute 'arguments' to a harmless command line")
        code = component.run(self.parser(component).parse_intermixed_args(list(self.arguments)))
        assert type(code) is int and code == 0, f"{self.arguments} must end with exit code 0"
