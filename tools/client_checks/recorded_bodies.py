"""Whether tests/clients/recorded_bodies.json has what clients were seen to send: `recorded_bodies.py SEEN KEPT [--update]`.

SEEN is what recording_proxy.py wrote. A body counts as kept if one of the same client, path and set of fields is there. `--update` adds
those that are new; without it they are an error, since the tests would not know of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def kind(entry: Entry) -> tuple[str, str, str]:
    """Client, path, and the fields to the second level, which is as deep as a body's meaning changes with the client."""
    body = entry["body"]
    inner = {name: sorted(value) if isinstance(value, dict) else None for name, value in body.items()}
    return entry["client"].partition("/")[0], entry["path"], json.dumps(inner, sort_keys=True)


def main() -> int:
    seen_path, kept_path = Path(sys.argv[1]), Path(sys.argv[2])
    kept: list[Entry] = json.loads(kept_path.read_text(encoding="utf-8"))
    known = {kind(entry) for entry in kept}
    seen: list[Entry] = json.loads(seen_path.read_text(encoding="utf-8"))
    new = [entry for entry in seen if kind(entry) not in known]
    if new and "--update" in sys.argv[3:]:
        kept_path.write_text(json.dumps(sorted(kept + new, key=kind), indent=1) + "\n", encoding="utf-8")
        new = []
    for entry in new:
        print(f"not among the recorded bodies: {entry['client']} {entry['path']} {sorted(entry['body'])}")
    print(f"{len(seen)} kinds of bodies seen, {len(new)} not recorded")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
