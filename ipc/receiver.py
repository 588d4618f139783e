"""What a client holds of one choice's output: the receiver's rules of ipc/README.md, in plain Python.

Shared by the web tier (helexa/web/streams.py) and the ZeroMQ client (helexa/client.py), which differ in how they spell messages
but not in what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence


class Gap(ValueError):
    """Ids are missing between what is held and what came: ask again with the ids held."""


class HeldOutput:
    """The output ids of one choice, each once and in order, and the credit extended for more.

    `window` is how many tokens the engine may run ahead of the consumer; `upto` is the count it may send so far.
    """

    def __init__(self, window: int) -> None:
        self.ids: list[int] = []
        self.window = window
        self.upto = window
        self.keep: int | None = None  # set once a stop string ended the choice here
        self.finished = False

    def merge(self, start: int, ids: Sequence[int]) -> int:
        """Appends what is new of `ids`, whose first has index `start`; returns how many leading entries to drop.

        A choice that is finished or stopped takes nothing more. Raises Gap when ids before `start` are not held.
        """
        if self.finished or self.keep is not None:
            return len(ids)
        if start > len(self.ids):
            raise Gap(f"{len(self.ids)} ids held, the next to come was {start}")
        dropped = min(len(self.ids) - start, len(ids))
        self.ids.extend(ids[dropped:])
        return dropped

    def stop(self, keep: int) -> None:
        """The first `keep` ids are the whole output."""
        self.keep = keep
        del self.ids[keep:]

    def consumed(self, count: int) -> int | None:
        """The consumer is done with the first `count` ids. Returns a new `upto` to tell the engine, or None: not yet.

        Credit is extended once half of the window is used, so that it costs a message every window / 2 tokens.
        """
        upto = count + self.window
        if self.finished or self.keep is not None or upto - self.upto < max(1, self.window // 2):
            return None
        self.upto = upto
        return upto
