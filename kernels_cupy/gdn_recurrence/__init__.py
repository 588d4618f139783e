"""Gated DeltaNet, token by token."""
