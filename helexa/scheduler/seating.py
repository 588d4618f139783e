"""Seats: who sits on them, who has to give his up, and who waits for his reader before he may sit again. Pure."""

from __future__ import annotations

from helexa.scheduler.counters import Counters
from helexa.scheduler.fairness import FairQueue
from helexa.scheduler.kv_memory import KvMemory
from helexa.scheduler.sequence import Request, Sequence, SequenceKey, State


class Seating:
    """`running` is by arrival at a seat, oldest first; `leaves` are seats that the worker has to be told are empty."""

    def __init__(self, seats: int, memory: KvMemory, waiting: FairQueue, counters: Counters) -> None:
        self.running: list[Sequence] = []
        self.parked: dict[SequenceKey, Sequence] = {}  # preempted while out of credit
        self.leaves: list[int] = []
        self._seats = seats
        self._memory = memory
        self._waiting = waiting
        self._counters = counters
        self._free = list(range(seats - 1, -1, -1))
        self._newcomers: list[Request] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take_newcomers(self) -> list[Request]:
        """Requests of which a choice took its first seat since this was last asked: they are not refused any more."""
        newcomers, self._newcomers = self._newcomers, []
        return newcomers

    def seat_first(self) -> Sequence | None:
        """Gives the queue's first a seat and the memory it needs; None where either is missing."""
        first = self._waiting.peek()
        if first is None or not self._free or not self._memory.seat(first):
            return None
        sequence = self._waiting.pop()
        if not sequence.ever_seated:
            self._counters.cached_tokens += sequence.num_cached_tokens
            self._newcomers.append(sequence.request)
        sequence.seat = self._free.pop()
        sequence.state = State.RUNNING
        sequence.ever_seated = True
        sequence.passed_over = 0
        self.running.append(sequence)
        return sequence

    def could_seat(self) -> bool:
        """Whether the queue's first would find room in the next step."""
        first = self._waiting.peek()
        return first is not None and (self._has_room(first) or bool(self._victims(first)))

    def make_room(self) -> None:
        """While the queue's first cannot be seated: one that waits for its reader gives its seat up, else, to an interactive
        one, a background one. Neither is forgotten."""
        while (first := self._waiting.peek()) is not None:
            victims = self._victims(first)
            if self._has_room(first) or not victims:
                return
            self._preempt(victims[-1])

    def _has_room(self, first: Sequence) -> bool:
        return bool(self._free) and self._memory.fits(first)

    def _victims(self, first: Sequence) -> list[Sequence]:
        victims = [sequence for sequence in self.running if sequence.stalled_since is not None]
        if victims or first.request.priority_class > 0:
            return victims
        return [sequence for sequence in self.running if sequence.request.priority_class > 0]

    def preempt_youngest(self) -> bool:
        """When memory lets nobody go on, one gives its up, those that wait for their reader first; False when only one runs."""
        if len(self.running) < 2 or all(sequence.out_of_credit for sequence in self.running):
            return False
        stalled = [sequence for sequence in self.running if sequence.out_of_credit]
        self._preempt((stalled or self.running)[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._counters.preemptions += 1
        self.unseat(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Back to the queue, or, out of credit, to wait for its reader first."""
        self.running.remove(sequence)
        self.release(sequence)
        sequence.state = State.WAITING
        if sequence.stalled_since is None:
            self._waiting.push(sequence, front=True)
        else:
            self.parked[sequence.key] = sequence

    def has_credit_again(self, sequence: Sequence) -> None:
        """Its reader has caught up."""
        sequence.stalled_since = None
        if self.parked.pop(sequence.key, None) is not None:
            self._waiting.push(sequence, front=True)

    def leave(self, sequence: Sequence) -> None:
        """It has ended, wherever it was; what a step in flight writes to stays until `release`."""
        self.parked.pop(sequence.key, None)
        before, sequence.state = sequence.state, State.FINISHED
        if before is State.WAITING and sequence.queued:
            self._waiting.leave(sequence)
        elif before is State.RUNNING:
            self.running.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Its seat and its memory are free; no step in flight writes there."""
        self._memory.release(sequence)
        if sequence.joined:
            self.leaves.append(sequence.seat)
        self._free.append(sequence.seat)
        sequence.seat = -1
        sequence.num_told_blocks = 0
        sequence.joined = sequence.sampled_last = False

    def check(self, holders: list[Sequence]) -> None:
        """Raises AssertionError where seats of `holders` and free ones are not all there are."""
        seats = [sequence.seat for sequence in holders]
        assert len(set(seats)) == len(seats) and len(seats) + len(self._free) == self._seats, "a seat is lost"
