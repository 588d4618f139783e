"""What clients have not been sent yet. Level-triggered: an entry stays until its send succeeded."""

from __future__ import annotations

from collections.abc import Iterator

from helexa.scheduler.sequence import Sequence, SequenceKey
from ipc.messages import Finish


class Outbox:
    def __init__(self) -> None:
        self._pending: dict[SequenceKey, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """The sequence may have something to send: ids, credit or an end."""
        self._pending[sequence.key] = sequence

    def discard(self, sequence: Sequence) -> None:
        self._pending.pop(sequence.key, None)

    def due(self) -> Iterator[tuple[Sequence, int, int, Finish | None]]:
        """(sequence, start, end, finish): the output ids [start, end) to send now, and the end when they reach it."""
        for sequence in list(self._pending.values()):
            end = _sendable(sequence)
            finish = sequence.finish
            if finish is not None and (sequence.finish_sent or end < finish.output_tokens):
                finish = None
            if end > sequence.num_sent or finish is not None:
                yield sequence, sequence.num_sent, end, finish
            else:
                self.discard(sequence)

    def sent(self, sequence: Sequence, end: int, finish: Finish | None) -> None:
        """The client's socket took the ids up to `end`, and the end if one was given."""
        sequence.num_sent = end
        sequence.finish_sent = sequence.finish_sent or finish is not None
        self.discard(sequence)


def _sendable(sequence: Sequence) -> int:
    """Output ids the client may hold now: within its credit, and no more than its end counts."""
    output = sequence.num_output_tokens if sequence.finish is None else sequence.finish.output_tokens
    return max(sequence.num_sent, min(sequence.credit, output))
