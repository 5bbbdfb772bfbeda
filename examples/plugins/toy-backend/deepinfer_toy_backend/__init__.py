"""A backend for a device that only this package knows."""
