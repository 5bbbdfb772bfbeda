"""Settings of the whole suite."""

from hypothesis import settings

# Times belong to the machine, not to the code: a busy one must not fail a property.
settings.register_profile("deepinfer", deadline=None)
settings.load_profile("deepinfer")
