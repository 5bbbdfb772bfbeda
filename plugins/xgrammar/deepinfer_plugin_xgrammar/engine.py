"""The component, and what the library's objects look like to the core."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from deepinfer_plugin_xgrammar.grammar import Rules, Text, alt
from deepinfer_plugin_xgrammar.schema import json_object_rules, schema_rules
from deepinfer_plugin_xgrammar.structural_tag import pattern_rules, translate

if TYPE_CHECKING:
    import xgrammar

    from deepinfer_core.interfaces.grammar import Vocabulary
    from deepinfer_core.interfaces.structured_output import StructuredOutput

#: Longest grammar of a request's own, in characters. The library's parser is recursive.
_MOST_EBNF: Final = 200_000
#: What the library puts before its messages.
_PLACE_IN_SOURCE: Final = re.compile(r"^(\[[\d:]+\] )?\S+\.(cc|h):\d+: ")


class XGrammar:
    """Implements :class:`deepinfer_core.interfaces.grammar.GrammarEngine`; the first grammar imports the library."""

    kinds = ("json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiler: tuple[Vocabulary, xgrammar.GrammarCompiler] | None = None

    def compile(self, spec: StructuredOutput, vocabulary: Vocabulary) -> CompiledGrammar:
        """See the protocol."""
        compile = {
            "ebnf": lambda compiler: compiler.compile_grammar(_checked_ebnf(spec.ebnf or "")),
            "structural_tag": lambda compiler: compiler.compile_structural_tag(
                json.dumps(translate(spec.structural_tag or {}, spec.max_whitespace), ensure_ascii=False)
            ),
        }.get(spec.kind)
        if compile is None:
            text = _rules(spec).ebnf()
            return CompiledGrammar(self._compiler_for(vocabulary).compile_grammar(text))
        try:
            return CompiledGrammar(compile(self._compiler_for(vocabulary)))
        except RuntimeError as error:  # the library's word for bad input
            raise ValueError(_PLACE_IN_SOURCE.sub("", str(error)).strip()) from None

    def _compiler_for(self, vocabulary: Vocabulary) -> xgrammar.GrammarCompiler:
        """The library's compiler for a vocabulary, made once. The core caches grammars, so the library need not."""
        with self._lock:
            if self._compiler is None or self._compiler[0] is not vocabulary:
                import xgrammar

                info = xgrammar.TokenizerInfo(
                    list(vocabulary.token_bytes),
                    vocab_type=xgrammar.VocabType.RAW,
                    vocab_size=len(vocabulary),
                    stop_token_ids=[],  # the core says where an output may end
                )
                self._compiler = vocabulary, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
            return self._compiler[1]


class CompiledGrammar:
    """Implements :class:`deepinfer_core.interfaces.grammar.Grammar`."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    def matcher(self) -> GrammarMatcher:
        """See the protocol."""
        import xgrammar

        return GrammarMatcher(xgrammar.GrammarMatcher(self._compiled))


class GrammarMatcher:
    """Implements :class:`deepinfer_core.interfaces.grammar.Matcher`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """See the protocol."""
        return bool(self._matcher.is_completed())

    def accept(self, token_id: int) -> bool:
        """See the protocol."""
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        """See the protocol."""
        self._matcher.rollback(count)

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """See the protocol."""
        self._matcher.fill_next_token_bitmask(row.reshape(1, -1), 0)


def _rules(spec: StructuredOutput) -> Rules:
    if spec.kind == "json_object":
        return json_object_rules(spec.max_whitespace)
    if spec.kind == "regex":
        return pattern_rules(spec.regex)
    if spec.kind == "choice":
        rules = Rules()
        rules.add(alt(Text(text) for text in spec.choice or ()), "root")
        return rules
    schema: Any = spec.json_schema
    return schema_rules(schema, spec.max_whitespace)


def _checked_ebnf(text: str) -> str:
    if len(text) > _MOST_EBNF:
        raise ValueError(f"a grammar must be at most {_MOST_EBNF} characters long, got {len(text)}")
    return text
