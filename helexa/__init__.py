"""helexa: an exact, self-hosted server for language models."""

__version__ = "0.1.0"
