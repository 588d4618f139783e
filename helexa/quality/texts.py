"""The text that quality is measured over where none is given."""

from __future__ import annotations


def manual() -> str:
    """The Python manual's topics, which come with Python: some 700 kB of prose and code."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
