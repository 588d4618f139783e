"""What a changed configuration means for a running service. Pure."""

from __future__ import annotations

from helexa.config import Config, KeyDoc, describe, value_of
from helexa.errors import ConfigError

# what web workers read; gunicorn replaces them for it. A worker's streams go on until they have ended
WEB_KEYS = ("server.", "keys.", "sampling.", "streaming.", "logging.", "tracing.", "default_model")


def changes(old: Config, new: Config) -> list[KeyDoc]:
    """The keys that differ. Raises ConfigError where one of them can only change by a restart."""
    changed = [item for item in describe() if value_of(old, item.path) != value_of(new, item.path)]
    fixed = [f"`{item.path}`" for item in changed if item.reload == "restart"]
    if fixed:
        verb = "takes" if len(fixed) == 1 else "take"
        raise ConfigError(f"{', '.join(fixed)} {verb} a restart to change; nothing was changed. Put it back, or restart helexa")
    return changed


def reaches_web(changed: list[KeyDoc]) -> bool:
    return any(item.path.startswith(WEB_KEYS) for item in changed)


def swaps_model(changed: list[KeyDoc]) -> bool:
    return any(item.path.startswith("model.") for item in changed)
