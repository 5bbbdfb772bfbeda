"""``deepinfer chat``: turns, commands, refusals, and a real terminal where Ctrl-C stops the reply only."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.cli.chat import Chat
from deepinfer_core.cli.main import main
from deepinfer_core.errors import RequestError
from deepinfer_core.outputs import CompletionOutput
from deepinfer_core.sampling_params import SamplingParams

DATA = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
OPTIONS = ["--num-pages", "64", "--max-num-seqs", "4", "--temperature", "0", "--ignore-eos"]


class EchoLLM:
    """Replies with the number of messages and the last one's text; ``interrupt`` makes Ctrl-C come half-way."""

    def __init__(self) -> None:
        self.conversations: list[list[dict[str, str]]] = []
        self.is_aborted = self.interrupt = False

    def stream(self, prompt: dict[str, Any], params: SamplingParams) -> Iterator[CompletionOutput]:
        messages = prompt["messages"]
        self.conversations.append(messages)
        if messages[-1]["content"] == "bad":
            raise RequestError("the prompt is bad")
        return self._pieces(f"{len(messages)} {messages[-1]['content']}")

    def _pieces(self, text: str) -> Iterator[CompletionOutput]:
        for place, character in enumerate(text):
            if self.interrupt and place == 3:
                signal.raise_signal(signal.SIGINT)
            if self.is_aborted:
                return
            yield CompletionOutput(0, character, [7])

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
def echo() -> EchoLLM:
    return EchoLLM()


def contents(chat: Chat) -> list[str]:
    return [message["content"] for message in chat.messages]


def test_turns_build_on_each_other_until_reset(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(echo, SamplingParams(), "be kind")
    for line in ("a", "", "  ", "b", "/reset", "c"):
        chat.handle(line)
    assert capsys.readouterr().out == "2 a\n4 b\n2 c\n"
    assert [message["role"] for message in echo.conversations[1]] == ["system", "user", "assistant", "user"]
    assert contents(chat) == ["be kind", "c", "2 c"]


def test_a_refused_message_leaves_the_conversation_as_it_was(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(echo, SamplingParams())
    for line in ("a", "bad", "b"):
        chat.handle(line)
    captured = capsys.readouterr()
    assert captured.out == "1 a\n3 b\n"
    assert captured.err == "deepinfer chat: error: the prompt is bad\n"
    assert chat.num_refused == 1


def test_an_interrupted_reply_counts_as_far_as_it_got(echo: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    chat = Chat(echo, SamplingParams())
    echo.interrupt = True
    chat.handle("hello")
    assert capsys.readouterr().out == "1 h\n"
    assert contents(chat) == ["hello", "1 h"]
    assert signal.getsignal(signal.SIGINT) is before


# -- on a real checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chatty")
    for file in DATA.iterdir():
        if not file.name.startswith("golden"):
            shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def piped(model: Path, data: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "deepinfer_core.cli.main", "chat", "--model", str(model), *OPTIONS, *options]
    return subprocess.run(command, input=data, capture_output=True)


def test_a_pipe_is_a_conversation_without_prompts(model: Path) -> None:
    result = piped(model, b"hello\r\n\n/reset\nhello\n/exit\nnever", "--max-tokens", "4")
    assert (result.returncode, result.stderr) == (0, b"")
    first, second = result.stdout.decode().splitlines()
    assert first == second != ""


def test_bad_lines_of_a_pipe_end_with_2(model: Path) -> None:
    result = piped(model, b"x\n" + b"y" * 20000 + b"\nx\n", "--max-tokens", "2", "--max-model-len", "64")
    assert result.returncode == 2
    assert b"max_model_len is 64" in result.stderr
    assert len(result.stdout.splitlines()) == 2
    result = piped(model, b"\xff\n")
    assert result.returncode == 2
    assert b"line 1 of standard input is not UTF-8 text: byte 0xff" in result.stderr


def test_a_model_without_template_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--model", str(DATA), *OPTIONS]) == 2
    assert "no chat template" in capsys.readouterr().err


class Terminal:
    """The command on a pseudo-terminal of its own, which gives it Ctrl-C and Ctrl-D."""

    SCRIPT = (
        "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from deepinfer_core.cli.main import main; sys.exit(main())"
    )

    def __init__(self, *arguments: str) -> None:
        self.screen, terminal = pty.openpty()
        command = [sys.executable, "-c", self.SCRIPT, *arguments]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
        os.close(terminal)

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def read_until(self, mark: str, *, seconds: float = 60) -> str:
        """Everything shown up to and with ``mark``."""
        shown, end = b"", time.monotonic() + seconds
        while mark.encode() not in shown:
            assert time.monotonic() < end, f"no {mark!r} in {shown!r}"
            if select.select([self.screen], [], [], 0.1)[0]:
                shown += os.read(self.screen, 4096)
        return shown.decode(errors="replace")

    def press_until(self, key: str, mark: str) -> str:
        """Press ``key``, again if nothing comes of it: Python's line editor misses a signal that arrives just before
        it waits for a key, and shows it at the next one."""
        for _ in range(10):
            self.type(key)
            with suppress(AssertionError):
                return self.read_until(mark, seconds=5)
        raise AssertionError(f"no {mark!r} after pressing {key!r} ten times")

    def close(self) -> int:
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()
            os.close(self.screen)


def test_ctrl_c_stops_the_reply_and_not_the_program(model: Path) -> None:
    terminal = Terminal("chat", "--model", str(model), *OPTIONS, "--max-tokens", "3900")
    try:
        assert "Ctrl-C stops a reply" in terminal.read_until("> ")
        for message in ("hello", "again"):
            terminal.type(message + "\n")
            terminal.read_until(message + "\r\n")
            os.read(terminal.screen, 1)  # the reply has begun
            terminal.type("\x03")
            assert len(terminal.read_until("\r\n> ")) < 6000
        terminal.type("half a line")
        terminal.read_until("half a line")
        assert "/reset forgets" in terminal.press_until("\x03", "\r\n> ")
        terminal.type("\x04")
    finally:
        code = terminal.close()
    assert code == 0
