"""A prompt as users give it, and how it becomes token ids."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.engine.chat_prompt import render_chat
from deepinfer_core.errors import RequestError, nearest

if TYPE_CHECKING:
    from deepinfer_core.tokenizer import Tokenizer

#: Text, token ids, or a table: ``prompt`` and ``prompt_token_ids``, or ``messages`` (a conversation, see
#: :func:`deepinfer_core.engine.chat_prompt.render_chat`) and ``add_generation_prompt`` (default True).
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]

_TEXT_KEYS = ("prompt", "prompt_token_ids")
_CHAT_KEYS = ("messages", "add_generation_prompt")


def prompt_parts(prompt: Prompt, tokenizer: Tokenizer | None) -> tuple[str | None, Sequence[int] | None]:
    """``(text, token ids)`` of a prompt, at least one of them given. Raises RequestError."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        return _table_parts(prompt, tokenizer)
    if isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes | bytearray):
        ids: Sequence[Any] = prompt
        return None, ids
    raise RequestError(f"a prompt must be text, a list of token ids or a dict, got {type(prompt).__name__}")


def _table_parts(prompt: Mapping[str, Any], tokenizer: Tokenizer | None) -> tuple[str | None, Sequence[int] | None]:
    keys = (*_TEXT_KEYS, *_CHAT_KEYS)
    for name in prompt:
        if name not in keys:
            raise RequestError(f"unknown prompt key {name!r}{nearest(str(name), keys)} (known: {', '.join(keys)})")
    if "messages" in prompt:
        if any(name in prompt for name in _TEXT_KEYS):
            raise RequestError("a prompt dict must have either 'messages' or 'prompt' and 'prompt_token_ids'")
        return render_chat(prompt["messages"], prompt.get("add_generation_prompt", True), tokenizer)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise RequestError("a prompt dict needs 'prompt' (text), 'prompt_token_ids' or 'messages' (a conversation)")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"prompt must be text, got {type(text).__name__}")
    return text, ids


def tokenize_prompt(text: str | None, ids: Sequence[int] | None, tokenizer: Tokenizer | None) -> list[int]:
    """Token ids of a prompt; ids win over text. Raises RequestError."""
    if ids is not None:
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence | np.ndarray):
            raise RequestError(f"prompt_token_ids must be a list of integers, got {type(ids).__name__}")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, numbers.Integral):
                raise RequestError(f"prompt token ids must be integers, got {token!r}")
        return [int(token) for token in ids]
    if tokenizer is None:
        raise RequestError("this model has no tokenizer, so a prompt must be token ids")
    if not text:
        raise RequestError("the prompt is empty; give at least one character or token id")
    return tokenizer.encode(text)


def check_prompt(ids: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    """The ids as the scheduler takes them. Raises RequestError for an empty prompt or an id out of range."""
    if not ids:
        raise RequestError("the prompt is empty; give at least one token id")
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise RequestError(f"prompt token {place} must be in 0..{vocab_size - 1} (the vocabulary), got {token}")
    return np.asarray(ids, np.int32)
