"""Conversations as prompts: what a message must look like, and the template that makes it text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import RequestError, nearest

if TYPE_CHECKING:
    from deepinfer_core.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")


def render_chat(messages: object, add_generation_prompt: object, tokenizer: Tokenizer | None) -> tuple[str, list[int]]:
    """A conversation's text by the tokenizer's chat template, and its token ids.

    messages: a non-empty list of dicts, each with ``role`` (one of :data:`ROLES`) and ``content`` (text);
        further keys are the template's to use.
    add_generation_prompt: end where the assistant's reply begins.

    Raises RequestError for anything else, for a model without tokenizer or template, and for what the
    template itself refuses.
    """
    if tokenizer is None:
        raise RequestError("a chat needs a tokenizer and this model has none; give one with tokenizer=FOLDER")
    if not isinstance(add_generation_prompt, bool):
        raise RequestError(f"add_generation_prompt must be True or False, got {add_generation_prompt!r}")
    text = tokenizer.apply_chat_template(check_messages(messages), add_generation_prompt=add_generation_prompt)
    return text, tokenizer.encode(text, add_special_tokens=False)


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages as plain dicts. Raises RequestError naming the first bad one and the rule it breaks."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list of dicts with 'role' and 'content', got {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; give at least one {'role': 'user', 'content': ...}")
    return [_check_message(place, message) for place, message in enumerate(messages)]


def _check_message(place: int, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"message {place} must be a dict with 'role' and 'content', got {type(message).__name__}")
    for key in ("role", "content"):
        if key not in message:
            raise RequestError(f"message {place} needs {key!r}, got {sorted(map(str, message))}")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        near = nearest(role, ROLES) if isinstance(role, str) else ""
        raise RequestError(f"message {place}: role must be one of {', '.join(ROLES)}, got {role!r}{near}")
    if not isinstance(content, str):
        raise RequestError(f"message {place}: content must be text, got {type(content).__name__}")
    return dict(message)
