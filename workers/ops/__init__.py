"""The ops a model is written in, and their implementations: NumPy reference, native CPU."""
