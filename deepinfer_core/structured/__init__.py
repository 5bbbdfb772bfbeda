"""Structured outputs: how the engine holds an output to what its request asks for."""
