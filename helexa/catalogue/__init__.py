"""Models: naming them, finding them in the cache, fetching them (docs/models.md).

`find` and `cached` look at the cache only; `fetch` may use the network. Names come from an operator, never from a client.
"""

from __future__ import annotations

from helexa.catalogue.cache import CachedModel, cached, find, remove
from helexa.catalogue.fetching import fetch
from helexa.catalogue.model_files import ModelFiles
from helexa.catalogue.source import Source, parse

__all__ = ["CachedModel", "ModelFiles", "Source", "cached", "fetch", "find", "parse", "remove"]
