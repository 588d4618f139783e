"""Which models are in memory: who is loaded because somebody asks, and who makes room for it. Pure.

Models that the configuration lists may be out of memory (`unloaded`). The one that was asked for first is loaded first. Where there is
no room, models that are not pinned leave, the one first that was asked for least recently; each ends what runs on it, while what is new
for it waits until it comes back. Bytes are those of the memory ceiling: weights and the most that the KV may take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helexa.scheduler.engine import Engine
from helexa.scheduler.roster import Roster
from ipc.leash_messages import LoadModel, ModelLost, UnloadModel

RETRY_S = 10.0  # a model that could not be loaded is tried again for those who ask so much later
GRACE_S = 2.0  # one that was just loaded is left alone for so long: who asked for it has yet to hear that it is there

Word = LoadModel | UnloadModel | ModelLost


@dataclass(frozen=True)
class Resident:
    """A model in memory. `used_at` in seconds, infinite while something runs on it; `going`: its worker is being ended."""

    instance: int
    bytes: int
    used_at: float
    pinned: bool = False
    in_use: bool = False  # it cannot leave yet: it loads, or was only just loaded
    leaving: bool = False
    going: bool = False


@dataclass(frozen=True)
class Room:
    """`load`: there is room now. Else those in `leave` make it, or will be able to; `error`: nobody can."""

    load: bool = False
    leave: frozenset[int] = frozenset()
    error: str = ""


def make_room(need: int, limit: int, residents: Sequence[Resident]) -> Room:
    """For a model that takes `need` bytes, of `limit` in all."""
    free = limit - sum(model.bytes for model in residents)
    if need <= free:
        return Room(load=True)
    movable = [model for model in residents if not model.pinned or model.going]
    most = free + sum(model.bytes for model in movable)
    if need > most:
        fixed = sum(model.bytes for model in residents) - sum(model.bytes for model in movable)
        pinned = f", of which {_mib(fixed)} are taken by models that are pinned" if fixed else ""
        return Room(error=f"it takes {_mib(need)} at least; the memory limit is {_mib(limit)}{pinned}. Raise memory.limit_mib")
    free += sum(model.bytes for model in movable if model.going)
    chosen: list[Resident] = []
    for model in sorted(movable, key=lambda model: (not model.leaving, model.used_at)):
        if free < need and not model.going and not model.in_use:
            chosen.append(model)
            free += model.bytes
    for model in list(chosen):  # a large one may make enough room without a small one before it
        if free - model.bytes >= need:
            chosen.remove(model)
            free -= model.bytes
    return Room(leave=frozenset(model.instance for model in chosen))


def _mib(count: int) -> str:
    return f"{max(0, count) / 2**20:,.0f} MiB"


class Residency:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    @property
    def has_work(self) -> bool:
        """`review` may have something to do."""
        return any(
            engine.presence.leaving or engine.presence.wanted or engine.presence.failed_at is not None for engine in self._roster
        )

    def next_deadline(self) -> float | None:
        """When `review` has something to do though nothing happened."""
        times: list[float | None] = []
        for engine in self._roster:
            seen = engine.presence
            times.append(None if seen.failed_at is None else seen.failed_at + RETRY_S)
            times.append(None if seen.asked_at is None else seen.asked_at + engine.config.admission.queue_wait_s)
            times.append(seen.ready_at + GRACE_S if self._is_fresh(engine) and self._next() is not None else None)
        return min((time for time in times if time is not None), default=None)

    def review(self, limit: int, now: float) -> list[Word]:
        """What the supervisor is to do. `limit`: the bytes that all models may take together."""
        for engine in self._roster:
            asked = engine.presence.asked_at
            if asked is not None and asked + engine.config.admission.queue_wait_s <= now and not engine.num_held:
                engine.presence.forget_wish()  # nobody waits any more who once did
            if engine.presence.failed_at is not None and engine.presence.failed_at + RETRY_S <= now:
                engine.try_again()
        words: list[Word] = []
        leave: frozenset[int] = frozenset()
        while (wanted := self._next()) is not None:
            room = make_room(wanted.served.need_bytes, limit, list(self._residents(now)))
            if room.error:
                wanted.fail(room.error, now)
                words.append(ModelLost(wanted.name, room.error, wanted.instance))
            elif room.load:
                wanted.summon()
                words.append(LoadModel(wanted.instance))
            else:
                leave = room.leave
                break
        self._let_leave(leave, now)
        return [*words, *self._unloaded()]

    def _next(self) -> Engine | None:
        """The unloaded model that was asked for first."""
        waiting = [engine for engine in self._roster if engine.state == "unloaded" and engine.presence.wanted]
        there = [engine for engine in waiting if not engine.presence.unloading_bytes]
        return min(there, key=lambda engine: engine.presence.wanted_at or 0.0, default=None)

    def _is_fresh(self, engine: Engine) -> bool:
        return engine.state == "ready" and engine.presence.on_request and not engine.presence.has_served

    def _residents(self, now: float) -> Iterator[Resident]:
        for engine in self._roster:
            seen = engine.presence
            if engine.resident_bytes:
                yield Resident(
                    engine.instance,
                    engine.resident_bytes,
                    math.inf if engine.is_busy else seen.used_at,
                    pinned=engine.served.pinned or not engine.served.listed,
                    in_use=engine.state != "ready" or (self._is_fresh(engine) and now < seen.ready_at + GRACE_S),
                    leaving=seen.leaving,
                    going=bool(seen.unloading_bytes),
                )

    def _let_leave(self, chosen: frozenset[int], now: float) -> None:
        for engine in self._roster:
            if engine.instance in chosen:
                engine.presence.leave()
            elif engine.presence.leaving and not engine.presence.dismissed:
                engine.stay(now)

    def _unloaded(self) -> Iterator[UnloadModel]:
        """Those who leave and on whom nothing runs any more."""
        for engine in self._roster:
            if engine.presence.leaving and engine.state == "ready" and not engine.is_busy:
                engine.unload()
                yield UnloadModel(engine.instance)
