"""How far a download is: the bytes in its folder, told now and then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from helexa.catalogue.cache import tree_bytes
from helexa.catalogue.choice import size

Progress = Callable[[int, int], None]  # bytes so far, bytes in all or 0 where not known

TICK_S = 0.25
LINE_BYTES = 32_000_000


@contextlib.contextmanager
def watching(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Tells `progress` the bytes in `folder`, from a thread, while the body runs; the last time when it has ended well."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(TICK_S):
            progress(tree_bytes(folder), total)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    progress(tree_bytes(folder), total)


def as_lines(name: str, report: Callable[[str], None]) -> Progress:
    """Plain lines: one each time another LINE_BYTES have come."""
    told = 0

    def progress(count: int, total: int) -> None:
        nonlocal told
        if count // LINE_BYTES > told:
            told = count // LINE_BYTES
            report(f"{name}: {size(count)}{f' of {size(total)}' if total else ''}")

    return progress
