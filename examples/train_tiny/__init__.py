"""How the tiny model is made: data, training, drafter, export. Run its modules from ``examples/``."""
