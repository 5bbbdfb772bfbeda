"""Plugins: manifests, discovery without import, selection, and the manager that hands them out."""

from deepinfer_core.plugins.hooks import Hooks
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.table import PluginRow

__all__ = ["Hooks", "PluginManager", "PluginRow"]
