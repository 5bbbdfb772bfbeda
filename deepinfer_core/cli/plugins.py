"""``deepinfer plugins``: find out about plugins, and choose among them. An action is a module ``plugins_<action>``.

None of these imports a plugin into its own process, so they work whatever state the plugins are in.
"""

from __future__ import annotations

from typing import Final

ACTIONS: Final = {
    "list": "one line per plugin and component, with its state and the reason",
}
