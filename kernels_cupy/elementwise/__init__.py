"""Sums, scales and gates, element by element."""
