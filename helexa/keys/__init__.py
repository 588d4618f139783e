"""API keys: who may ask, and how much (docs/keys.md). The file holds digests only; a key itself is shown once, when it is made."""
