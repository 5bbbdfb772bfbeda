"""The checkpoint's tokenizer: text to ids and back, and the exact bytes that each token stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"  # what sentencepiece writes for a space


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _byte_level(spelling: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in spelling])
    except KeyError:  # an added token with characters that the alphabet lacks is spelled as is
        return spelling.encode()


def _byte_fallback(spelling: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(spelling)
    return bytes([int(byte[1], 16)]) if byte else spelling.replace(_WORD_START, " ").encode()


class Tokenizer:
    """A thin layer over the Hugging Face tokenizer (:attr:`hf`), which it does not change.

    Raises CheckpointError unless tokens stand for bytes: byte-level BPE, or BPE with byte fallback.
    """

    def __init__(self, hf: PreTrainedTokenizerFast) -> None:
        self.hf = hf
        self._backend: Any = hf.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        #: Ids of special tokens by their text; ``skip_special_tokens`` means these.
        self.special_tokens: dict[str, int] = {t.content: token for token, t in added.items() if t.special}
        #: The same ids.
        self.special_ids = frozenset(self.special_tokens.values())
        #: Ids are below this. A model's embedding may have more rows; those have no text.
        self.vocab_size: int = max(self._backend.get_vocab().values(), default=-1) + 1
        self._spelling_to_bytes = self._choose_decoder()
        self._bytes: dict[int, bytes] = {}

    @property
    def bos_token_id(self) -> int | None:
        """Put before a text by :meth:`encode`, if the tokenizer does that."""
        return self.hf.bos_token_id  # type: ignore[no-any-return]

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end of sequence; the model's config may name more."""
        return self.hf.eos_token_id  # type: ignore[no-any-return]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; raises RequestError for what is no text (a lone surrogate, another type)."""
        if not isinstance(text, str):
            raise RequestError(f"a prompt must be text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = ascii(text[error.start])
            raise RequestError(
                f"a prompt must be valid Unicode, got the lone surrogate {bad} at character {error.start}; "
                "read the text as UTF-8 with errors='strict' to find where it comes from"
            ) from None
        # verbose: the length limit is the engine's to judge.
        return self.hf.encode(text, add_special_tokens=add_special_tokens, verbose=False)  # type: ignore[no-any-return]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; U+FFFD where their bytes are no text."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def require_chat_template(self) -> None:
        """Raise RequestError unless the checkpoint came with a chat template."""
        if not self.hf.chat_template:
            raise RequestError(
                "this checkpoint's tokenizer has no chat template; add a chat_template.jinja beside its "
                "tokenizer.json, or write the conversation as text for generate()"
            )

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The conversation as text, special tokens included. Raises RequestError if the template refuses it."""
        self.require_chat_template()
        from jinja2 import TemplateError

        try:
            text = self.hf.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(f"the chat template refuses this conversation: {error}") from error
        return str(text)

    def token_text(self, token_id: int) -> str:
        """The token decoded alone, special or not."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_spelling(self, token_id: int) -> str:
        """The token as the vocabulary writes it, e.g. ``Ġthe``; empty for ids that the tokenizer lacks."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; empty for ids that the tokenizer lacks."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._spelling_to_bytes(self.token_spelling(token_id))
        return found

    def _choose_decoder(self) -> Any:
        decoder = self._backend.decoder
        spec = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
        kinds = [part["type"] for part in spec.get("decoders", [spec])]
        if "ByteLevel" in kinds:
            return _byte_level
        if "ByteFallback" in kinds:
            return _byte_fallback
        raise CheckpointError(
            f"the tokenizer's decoder is {' + '.join(map(str, kinds))}; only ByteLevel and ByteFallback decoders, "
            "whose tokens stand for bytes, are supported"
        )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load ``tokenizer.json`` (and ``tokenizer_config.json``) of a local directory; nothing is downloaded."""
    directory = Path(path)
    if not (directory / "tokenizer.json").is_file():
        raise CheckpointError(f"{directory} has no tokenizer.json; pass the directory that has one as the tokenizer")
    from transformers import PreTrainedTokenizerFast

    try:
        hf = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
        raise CheckpointError(f"the tokenizer in {directory} cannot be loaded: {error}") from error
    return Tokenizer(hf)
