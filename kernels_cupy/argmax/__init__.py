"""Batched argmax with an error word a row."""
