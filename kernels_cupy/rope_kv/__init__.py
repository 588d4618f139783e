"""Rotary embedding of queries and keys, and the write of keys and values to the paged cache."""
