"""Drafts what followed the same tokens earlier in the request: no weights, no device."""
