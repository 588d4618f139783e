"""Linears on weights as they lie in the model file."""
