"""The ``grammar`` seam's first implementation, on the XGrammar library.

Schemas and patterns become grammars here, with rules of our own, so that an output either validates or is refused;
the library compiles the grammars and matches tokens.
"""
