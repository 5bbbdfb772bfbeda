"""Where the prompts of a command line come from: arguments, a file, standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deepinfer_core.errors import RequestError


def collect_prompts(arguments: Sequence[str], file: str | None) -> list[str]:
    """Prompts in order: the arguments, then the file's. ``-`` among the arguments, or no prompt at all, means
    standard input, whole, as one prompt.

    Raises RequestError for text that is not UTF-8 (naming the source and the byte), an unreadable file, a
    file without prompts, and no prompt at all.
    """
    if not arguments and file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise RequestError("no prompt: give one as argument, by --prompts-file, or on standard input")
        arguments = ["-"]
    prompts = [_standard_input() if text == "-" else _argument(text) for text in arguments]
    return prompts + ([] if file is None else _lines(file))


def decode(data: bytes, source: str) -> str:
    """UTF-8 text. Raises RequestError naming the source and the offset of the first bad byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = f"byte {data[error.start]:#04x} at offset {error.start}"
        raise RequestError(f"{source} is not UTF-8 text: {bad}") from None


def _argument(text: str) -> str:
    return decode(os.fsencode(text), f"the prompt {text!a}") if _has_surrogates(text) else text


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _standard_input() -> str:
    text = decode(sys.stdin.buffer.read(), "standard input")
    return text.removesuffix("\n").removesuffix("\r")


def _lines(file: str) -> list[str]:
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read the prompts file {file}: {error.strerror}") from None
    lines = [line.removesuffix("\r") for line in decode(data, f"the prompts file {file}").split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise RequestError(f"the prompts file {file} holds no prompt; write one per line")
    return prompts
