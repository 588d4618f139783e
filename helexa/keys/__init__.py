"""API keys: who may ask, and how much (docs/keys.md). Only digests are kept; a key itself is shown once, when it is made."""
