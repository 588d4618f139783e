"""Rows of a weight at token ids."""
