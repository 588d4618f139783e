"""The gates of Gated DeltaNet."""
