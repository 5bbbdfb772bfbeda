"""Bans tokens that would complete an n-gram for the second time."""
