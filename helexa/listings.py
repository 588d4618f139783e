"""The models that the configuration lists: the one of [model], then those of [models.NAME]. Pure but for a look whether paths exist."""

from __future__ import annotations

from dataclasses import dataclass

from helexa import catalogue
from helexa.catalogue import Source
from helexa.config import Config
from helexa.errors import ConfigError


@dataclass(frozen=True)
class Listing:
    """`context` in tokens, 0: what the model was trained for."""

    name: str
    source: Source
    context: int
    quant: str
    on_request: bool
    pinned: bool


def listings(config: Config) -> list[Listing]:
    """Raises ConfigError, or ModelSourceError for a source that cannot be read."""
    first = config.model
    source = catalogue.parse(first.source, config)
    found = [Listing(first.name or source.served_name, source, first.context, first.quant, first.load == "request", first.pinned)]
    for name, model in config.models.items():
        if not model.source:
            raise ConfigError(f"`models.{name}.source` is missing: the model, as for model.source")
        if not name or len(name) > 256 or not name.isprintable():
            raise ConfigError(f"`models`: a name of {len(name)} characters, or one that is not printable")
        if name == found[0].name:
            raise ConfigError(f"`models.{name}` is the name of the model of [model] too; give one of them another")
        source = catalogue.parse(model.source, config)
        found.append(Listing(name, source, model.context, model.quant, model.load == "request", model.pinned))
    return found
