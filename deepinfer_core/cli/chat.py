"""``deepinfer chat``: a conversation on the terminal, or line by line from a pipe."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import attrs

from deepinfer_core.arg_utils import EngineArgs
from deepinfer_core.cli.prompts import decode
from deepinfer_core.cli.sampling import add_sampling_arguments, sampling_params
from deepinfer_core.errors import DeepInferError

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.sampling_params import SamplingParams

_PROMPT = "> "
_HELP = "Ctrl-C stops a reply; /reset forgets the conversation; /exit or Ctrl-D ends."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer chat``."""
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    EngineArgs.add_cli_args(parser)
    add_sampling_arguments(parser, max_tokens=None)


def run(args: argparse.Namespace) -> int:
    """Converse until the input ends. 2 when a message from a pipe was refused, otherwise 0."""
    engine_args = EngineArgs.from_cli_args(args)
    params = sampling_params(args, engine_args)

    from deepinfer_core import LLM  # last: everything that can be refused without torch has been

    with LLM(**attrs.asdict(engine_args, recurse=False)) as llm:
        llm.get_tokenizer().require_chat_template()
        chat = Chat(llm, params, args.system)
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            print(_HELP)
        for line in _terminal_lines() if is_terminal else _piped_lines():
            if line == "/exit":
                break
            chat.handle(line)
    return 2 if chat.num_refused and not is_terminal else 0


class Chat:
    """One conversation; each line typed is a message or a command.

    system: the first message's text, or None.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self._llm = llm
        self._params = params
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = [*self._start]
        self.num_refused = 0

    def handle(self, line: str) -> None:
        """Answer a message, or obey a command. What is refused is reported, and leaves the conversation as it was."""
        if line == "/reset":
            self.messages = [*self._start]
        elif line.strip():
            question = {"role": "user", "content": line}
            try:
                reply = self._reply([*self.messages, question])
            except DeepInferError as error:
                self.num_refused += 1
                sys.stdout.flush()
                print(f"deepinfer chat: error: {error}", file=sys.stderr)
            else:
                self.messages += [question, {"role": "assistant", "content": reply}]

    def _reply(self, messages: list[dict[str, str]]) -> str:
        """Stream the reply; an interrupted one counts as far as it got."""
        pieces: list[str] = []
        with _interrupt_aborts(self._llm):
            for piece in self._llm.stream({"messages": messages}, self._params):
                pieces.append(piece.text)
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        print()
        return "".join(pieces)


@contextmanager
def _interrupt_aborts(llm: LLM) -> Iterator[None]:
    """Ctrl-C ends what runs, between two of the engine's steps."""
    usual = signal.getsignal(signal.SIGINT)

    def abort(number: int, frame: FrameType | None) -> None:
        llm.abort()

    signal.signal(signal.SIGINT, abort)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _terminal_lines() -> Iterator[str]:
    """Lines as they are typed, with the editing that the terminal library offers."""
    with suppress(ImportError):
        import readline  # noqa: F401  (changes what input() can do)
    while True:
        try:
            yield input(_PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print(f"\n{_HELP}")


def _piped_lines() -> Iterator[str]:
    """Raises RequestError for a line that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        yield decode(line, f"line {number} of standard input").rstrip("\r\n")
