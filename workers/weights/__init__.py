"""Weights from model files, as the ops take them."""
