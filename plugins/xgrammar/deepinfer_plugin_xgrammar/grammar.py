"""Context-free grammars as data: what schemas and patterns become, and the text that the library reads."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Final, TypeAlias

import attrs

from deepinfer_plugin_xgrammar.charset import CharSet

#: Parts of a grammar, characters of texts included; as many take the library about a second.
MAX_SIZE: Final = 200_000


@attrs.frozen
class Text:
    """Exactly this text."""

    text: str


@attrs.frozen
class Chars:
    """One character of a set."""

    chars: CharSet


@attrs.frozen
class Seq:
    """All of these, in order."""

    parts: tuple[Node, ...]


@attrs.frozen
class Alt:
    """One of these; of no options there is none."""

    options: tuple[Node, ...]


@attrs.frozen
class Repeat:
    """``low`` to ``high`` times; None: as often as you like."""

    item: Node
    low: int
    high: int | None


@attrs.frozen
class Ref:
    """The rule of this name."""

    name: str


Node: TypeAlias = Text | Chars | Seq | Alt | Repeat | Ref

EMPTY: Final = Text("")
NEVER: Final = Alt(())


def seq(*parts: Node) -> Node:
    """A sequence, texts that meet joined."""
    flat: list[Node] = []
    for part in parts:
        for item in part.parts if isinstance(part, Seq) else (part,):
            if isinstance(item, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + item.text)
            else:
                flat.append(item)
    kept = [part for part in flat if part != EMPTY]
    return kept[0] if len(kept) == 1 else Seq(tuple(kept)) if kept else EMPTY


def alt(options: Iterable[Node]) -> Node:
    """A choice, each option once."""
    unique = tuple(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else Alt(unique)


def repeat(item: Node, low: int, high: int | None) -> Node:
    """A repetition, without the trivial ones.

    A repetition of a repetition becomes one where that is the same: a text would match it in many ways, and the
    library keeps track of all of them.
    """
    if high == 0 or item == EMPTY:
        return EMPTY
    if isinstance(item, Repeat) and item.low <= 1:
        high = None if high is None or item.high is None else high * item.high
        low, item = low * item.low, item.item
    return item if (low, high) == (1, 1) else Repeat(item, low, high)


def chars(which: CharSet) -> Node:
    """One character of a set."""
    code = which.single
    return Text(chr(code)) if code is not None else Chars(which) if which else NEVER


def optional(item: Node) -> Node:
    """Once or not at all."""
    return repeat(item, 0, 1)


@attrs.define
class Rules:
    """Named rules, the first of which is ``root``."""

    rules: dict[str, Node] = attrs.field(factory=dict)
    _shared: dict[Node, Ref] = attrs.field(factory=dict)
    _size: int = 0
    _num_names: int = 0

    def fresh_name(self) -> str:
        """A name that no rule has."""
        self._num_names += 1
        return f"r{self._num_names}"

    def add(self, node: Node, name: str | None = None) -> Ref:
        """Make a rule of a node. Raises ValueError when the grammar gets too large."""
        name = name or self.fresh_name()
        self._size += sum(1 + len(part.text) if isinstance(part, Text) else 1 for part in walk(node))
        if self._size > MAX_SIZE:
            raise ValueError(f"it makes a grammar of more than {MAX_SIZE} parts; make it smaller")
        self.rules[name] = node
        return Ref(name)

    def share(self, node: Node) -> Ref:
        """A rule for a node that may come again. The library works out the tokens of equal rules once."""
        if node not in self._shared:
            self._shared[node] = self.add(node)
        return self._shared[node]

    def prune(self) -> None:
        """Leave out what has no finite text, so that no output can run into it.

        Raises ValueError if the root is of that kind.
        """
        able: set[str] = set()
        pending = dict(self.rules)
        while found := {name for name, node in pending.items() if _pruned(node, able) != NEVER}:
            able |= found
            for name in found:
                del pending[name]
        if "root" not in able:
            raise ValueError("nothing can match it: there is no finite output that it takes")
        self.rules = {name: _pruned(node, able) for name, node in self.rules.items() if name in able}

    def ebnf(self) -> str:
        """The rules in the library's syntax."""
        return "\n".join(f"{name} ::= {_spell(node)}" for name, node in self.rules.items())


def walk(node: Node) -> Iterator[Node]:
    """A node and everything below it."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, Seq):
            pending += node.parts
        elif isinstance(node, Alt):
            pending += node.options
        elif isinstance(node, Repeat):
            pending.append(node.item)


def _pruned(node: Node, able: Container[str]) -> Node:
    """The node without what has no finite text, where only rules in ``able`` have one."""
    if isinstance(node, Ref):
        return node if node.name in able else NEVER
    if isinstance(node, Seq):
        parts = [_pruned(part, able) for part in node.parts]
        return NEVER if NEVER in parts else seq(*parts)
    if isinstance(node, Alt):
        options = [_pruned(option, able) for option in node.options]
        return alt(option for option in options if option != NEVER)
    if isinstance(node, Repeat):
        item = _pruned(node.item, able)
        return repeat(item, node.low, node.high) if item != NEVER else EMPTY if node.low == 0 else NEVER
    return node


_SPECIAL: Final = re.compile(r"[^ !#-\[\]-~]")


def _quote(text: str) -> str:
    return '"' + _SPECIAL.sub(lambda match: _escape(ord(match[0])), text) + '"'


def _escape(code: int) -> str:
    return f"\\U{code:08x}"  # shorter escapes would swallow hex digits that follow


def _spell_chars(which: CharSet) -> str:
    def one(code: int) -> str:
        return chr(code) if chr(code).isascii() and chr(code).isalnum() else _escape(code)

    def ranges(of: CharSet) -> str:
        return "".join(one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in of.ranges)

    outside = ~which
    if len(outside.ranges) < len(which.ranges):  # what the library is much faster with; surrogates are in no set
        return f"[^{ranges(outside)}{one(0xD800)}-{one(0xDFFF)}]"
    return f"[{ranges(which)}]"


def _spell(node: Node) -> str:
    if isinstance(node, Text):
        return _quote(node.text)
    if isinstance(node, Chars):
        return _spell_chars(node.chars)
    if isinstance(node, Ref):
        return node.name
    if isinstance(node, Seq):
        return " ".join(map(_spell_part, node.parts))
    if isinstance(node, Alt):
        return " | ".join(map(_spell, node.options))
    bounds = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    high = "" if node.high is None else node.high
    return _spell_part(node.item) + (bounds or f"{{{node.low},{high}}}")


def _spell_part(node: Node) -> str:
    return f"({_spell(node)})" if isinstance(node, Seq | Alt | Repeat) else _spell(node)
