"""``deepinfer plugins``: find out about plugins, and choose among them. An action is a module ``plugins_<action>``.

None of these imports a plugin into its own process, so they work whatever state the plugins are in.
"""

from __future__ import annotations

from typing import Final

ACTIONS: Final = {
    "list": "one line per plugin and component, with its state and the reason",
    "show": "one plugin: its components, configuration, origin, state and the reason",
    "doctor": "import every plugin in a child process and say what would go wrong",
    "enable": "select a plugin in the configuration file",
    "disable": "keep a plugin from being used unless an argument names it",
    "new": "write a distribution with a plugin that works, to start from",
    "check": "run the conformance suites of a plugin's seams on it",
}
