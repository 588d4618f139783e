"""What architectures share: sizes and rotary embeddings as model files state them, weights by role, and the blocks of a decoder."""
