"""The ``grammar`` seam: structured outputs, as masks over the vocabulary that follow an output token by token.

The core compiles a request's :class:`~deepinfer_core.interfaces.structured_output.StructuredOutput` on a thread of its
own while the request waits and others run, keeps the result for later requests of the same content, and makes one
:class:`Matcher` per output. A step then is, for each row::

    matcher.fill_mask(row)          # what may come next; the sampler draws from that
    matcher.accept(token)           # what came

The core decides when an output may end: end-of-sequence ids are never in a mask by an engine's word; they are added
where :attr:`Matcher.is_complete`, and an output that is complete and cannot go on ends there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core.interfaces.structured_output import StructuredOutput


@attrs.frozen(eq=False)
class Vocabulary:
    """What token ids stand for. Made once per engine; nothing in it ever changes."""

    token_bytes: tuple[bytes, ...]
    """``[V]``, V being the size of the model's logits: what each token adds to a text. Empty for ids that add none:
    special tokens, end-of-sequence ids, and ids that the tokenizer lacks."""
    special_tokens: Mapping[str, int]
    """Ids of special tokens, by their text."""
    eos_token_ids: tuple[int, ...]
    """The model's end-of-sequence ids."""

    def __len__(self) -> int:
        return len(self.token_bytes)

    @property
    def mask_words(self) -> int:
        """Length of a mask: ``ceil(V / 32)``."""
        return -(-len(self.token_bytes) // 32)


@runtime_checkable
class Matcher(Protocol):
    """One output on its way through a grammar. Called on the driver, from one thread at a time, between forward
    passes: nothing here may wait.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the tokens so far are a whole output of the grammar, even if more could follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token. False, with nothing changed, for one that cannot come next."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens; at most as many as were accepted."""
        ...

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """Write which tokens may come next. The state does not change.

        row: ``[mask_words]`` int32, zeros: set bit ``t % 32`` of word ``t // 32`` for each such token ``t``. Bits of
        end-of-sequence ids and beyond V are ignored.
        """
        ...


@runtime_checkable
class Grammar(Protocol):
    """A compiled grammar; shared by all requests of the same content, and by threads."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an output."""
        ...


@runtime_checkable
class GrammarEngine(Protocol):
    """A component of the seam."""

    @property
    def kinds(self) -> Collection[str]:
        """Fields of ``StructuredOutput`` that it can compile; also the manifest's capability ``kinds``."""
        ...

    def compile(self, spec: StructuredOutput, vocabulary: Vocabulary) -> Grammar:
        """Compile a request's grammar; ``spec.kind`` is one of :attr:`kinds`.

        Called on worker threads, on several at once; native code should let go of the GIL. Raises ValueError, with
        what is wrong and the remedy, for a grammar that is bad, unsupported or too large: what it then cannot promise
        it must refuse. After the engine's time limit the result is no longer waited for.
        """
        ...
