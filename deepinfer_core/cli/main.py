"""The ``deepinfer`` command. Nothing is imported before the subcommand is known, and torch only by those
that compute.

Exit codes: 0 ok; 1 an internal error (with traceback); 2 bad input, or output that cannot be written (one
paragraph on standard error); 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from deepinfer_core import envs
from deepinfer_core.cli.parser import Parser
from deepinfer_core.errors import ConfigError, DeepInferError, nearest

if TYPE_CHECKING:
    from deepinfer_core.interfaces.command import Command

COMMANDS: Final = {
    "generate": "complete prompts",
    "chat": "converse with a model, line by line",
    "inspect": "show a checkpoint's config and layer plan",
    "models": "list the checkpoints that installed packages ship",
    "plugins": "list plugins, explain them, and switch them on and off",
    "env": "show versions, hardware, environment variables and plugins",
}
#: They must work whatever state the environment is in: they are how one finds out.
_DIAGNOSTIC: Final = frozenset({"models", "plugins", "env"})
#: What a full disk, a quota or a broken device make of a write.
_CANNOT_WRITE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if sys.stdout is None:
        return _refuse(name, DeepInferError("standard output is closed; redirect it to a file or to /dev/null"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 stops nothing
    try:
        code = _run_command(name, arguments[1:]) if name[:1] not in ("", "-") else _run_bare(arguments)
        sys.stdout.flush()  # here a reader that went away is noticed in time
        return code
    except SystemExit as exit:  # argparse: --help is 0, a bad option 2
        return exit.code if isinstance(exit.code, int) else 2
    except DeepInferError as error:
        return _refuse(name, error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            return _report_internal_error()
        _discard_output()
        return _refuse(name, DeepInferError(f"cannot write the output: {error.strerror}"))
    except Exception:
        return _report_internal_error()


def _discard_output() -> None:
    """What is still buffered would be written once more at the exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_internal_error() -> int:
    traceback.print_exc()
    print("deepinfer: internal error, please report it with the lines above", file=sys.stderr)
    return 1


def _run_command(name: str, arguments: list[str]) -> int:
    if name not in _DIAGNOSTIC:
        envs.check()
        level = envs.read("DEEPINFER_LOG_LEVEL")
        logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
        if level == "warning" and sys.stderr is not None and sys.stderr.isatty():
            logging.getLogger("deepinfer_core.plugins.banner").setLevel(logging.INFO)
    command: Any = _find(name)
    prog, description = f"deepinfer {name}", COMMANDS.get(name) or command.__doc__
    if hasattr(command, "ACTIONS"):
        action = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
        if action is None:
            return _run_without_command(arguments, prog, description, command.ACTIONS)
        if action not in command.ACTIONS:
            known = f"(known: {', '.join(command.ACTIONS)})"
            raise ConfigError(f"unknown action {action!r}{nearest(action, command.ACTIONS)} {known}")
        prog, description = f"{prog} {action}", command.ACTIONS[action]
        command = importlib.import_module(f"{command.__name__}_{action}")
    parser = Parser(prog=prog, description=description)
    command.add_arguments(parser)
    return cast("Command", command).run(parser.parse_intermixed_args(arguments))


def _find(name: str) -> Command:
    if name in COMMANDS:
        return cast("Command", importlib.import_module(f"deepinfer_core.cli.{name}"))
    from deepinfer_core.plugins import PluginManager

    manager = PluginManager()
    known = [*COMMANDS, *manager.commands()]
    if name not in known:
        raise ConfigError(f"unknown command {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return cast("Command", manager.command(name))


def _run_bare(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        import importlib.metadata

        print(importlib.metadata.version("deepinfer-core"))
        return 0
    known = {**COMMANDS, **{name: help for name, help in _plugin_commands().items() if name not in COMMANDS}}
    return _run_without_command(arguments, "deepinfer", "LLM inference for DeepSeek-V4.1-class models.", known)


def _run_without_command(arguments: list[str], prog: str, description: str, known: Mapping[str, str]) -> int:
    """Help of a command that needs another word after it."""
    lines = [f"  {name:<14} {help}".rstrip() for name, help in known.items()]
    parser = Parser(
        prog=prog,
        usage=f"{prog} COMMAND [options]",
        description=description,
        epilog="\n".join(["commands:", *lines, "", f"{prog} COMMAND --help shows a command's options."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if prog == "deepinfer":
        parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.parse_args(arguments)
    parser.print_help(sys.stderr)
    return 2


def _plugin_commands() -> Mapping[str, str]:
    from deepinfer_core.plugins import PluginManager

    try:
        return PluginManager().commands()
    except DeepInferError:  # help comes whatever the settings are like
        return PluginManager(environ={}).commands()


def _refuse(name: str, error: DeepInferError) -> int:
    try:
        show = envs.read("DEEPINFER_DEBUG")
    except ConfigError:
        show = False
    if show:
        traceback.print_exception(error)
    print(f"deepinfer {name}".rstrip() + f": error: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
