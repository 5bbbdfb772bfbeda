"""The four configuration objects the engine is built from. Torch-free; every field is checked."""

PAGE_SIZE = 128
