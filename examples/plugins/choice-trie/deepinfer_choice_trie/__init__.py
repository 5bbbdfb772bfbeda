"""A grammar engine in a hundred lines: outputs that are one of several texts."""
