"""Draws that are functions of (seed, position, token id)."""
