"""The choices' bytes as a trie; a token may come next if its bytes lead from the current node to another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from deepinfer_core.interfaces.grammar import Vocabulary
    from deepinfer_core.interfaces.structured_output import StructuredOutput

_MOST_BYTES = 1 << 20


@attrs.define(eq=False)
class Node:
    """A place in some choices: which bytes may follow, and whether a choice ends here."""

    children: dict[int, Node] = attrs.field(factory=dict)
    is_end: bool = False
    mask: NDArray[np.int32] | None = None
    """Which tokens may follow, once somebody has asked."""

    def insert(self, text: bytes) -> None:
        """Add a choice."""
        node = self
        for byte in text:
            node = node.children.setdefault(byte, Node())
        node.is_end = True

    def after(self, text: bytes) -> Node | None:
        """The node that ``text`` leads to."""
        node: Node | None = self
        for byte in text:
            node = node.children.get(byte) if node is not None else None
        return node

    def paths(self, longest: int) -> Iterator[bytes]:
        """All texts of 1 to ``longest`` bytes that lead on from here."""
        level = [(b"", self)]
        for _ in range(longest):
            level = [(path + bytes([byte]), child) for path, node in level for byte, child in node.children.items()]
            yield from (path for path, _ in level)


@attrs.frozen(eq=False)
class TokenIndex:
    """Token ids by their bytes."""

    vocabulary: Vocabulary
    ids: dict[bytes, list[int]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        for token, text in enumerate(self.vocabulary.token_bytes):
            if text:
                self.ids.setdefault(text, []).append(token)

    def mask(self, node: Node) -> NDArray[np.int32]:
        """The tokens that may come at a node."""
        if node.mask is None:
            bits = np.zeros(32 * self.vocabulary.mask_words, np.uint8)
            for path in node.paths(max(map(len, self.ids), default=0)):
                bits[self.ids.get(path, [])] = 1
            node.mask = np.packbits(bits, bitorder="little").view(np.int32)
        return node.mask


class TrieMatcher:
    """One output: the nodes it has come through."""

    def __init__(self, root: Node, index: TokenIndex) -> None:
        self._index = index
        self._nodes = [root]

    @property
    def is_complete(self) -> bool:
        """See the protocol."""
        return self._nodes[-1].is_end

    def accept(self, token_id: int) -> bool:
        """See the protocol."""
        text = self._index.vocabulary.token_bytes[token_id]
        node = self._nodes[-1].after(text) if text else None
        if node is not None:
            self._nodes.append(node)
        return node is not None

    def rollback(self, count: int) -> None:
        """See the protocol."""
        del self._nodes[len(self._nodes) - count :]

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """See the protocol."""
        row[:] = self._index.mask(self._nodes[-1])


@attrs.frozen(eq=False)
class Trie:
    """A compiled choice."""

    root: Node
    index: TokenIndex

    def matcher(self) -> TrieMatcher:
        """See the protocol."""
        return TrieMatcher(self.root, self.index)


class ChoiceTrie:
    """The component."""

    kinds = ("choice",)

    def __init__(self) -> None:
        self._index_of = lru_cache(maxsize=1)(TokenIndex)  # a vocabulary is indexed once

    def compile(self, spec: StructuredOutput, vocabulary: Vocabulary) -> Trie:
        """See the protocol."""
        texts = [text.encode() for text in spec.choice or ()]
        if sum(map(len, texts)) > _MOST_BYTES:
            raise ValueError(f"choices must have at most {_MOST_BYTES} bytes in all, got {sum(map(len, texts))}")
        root = Node()
        for text in texts:
            root.insert(text)
        return Trie(root, self._index_of(vocabulary))
