"""The supervisor's children: what each is for, how it is started, heard and collected."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from helexa import config as configuration
from helexa.processes import Child
from ipc import sockets
from ipc.codec import BadMessage, decode_from_child
from ipc.leash_messages import LastWords, Stop
from ipc.sockets import Closed, Link

log = logging.getLogger("supervisor")

STOP_WAIT_S = 20.0  # for children to end by themselves; then they are killed


@dataclass
class Running:
    """A child that lives, and our end of its leash."""

    child: Child
    leash: Link
    last_words: str = ""
    ended_for: str = ""  # why we killed it

    def end(self, reason: str) -> None:
        self.ended_for = reason
        self.child.kill()


@dataclass
class Role:
    """One child that the service needs. `name` is its own among the roles."""

    name: str
    module: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    own_session: bool = False
    silent: bool = False  # it says nothing while it works
    running: Running | None = None

    def start(self, more_arguments: Iterable[str] = ()) -> Running:
        leash, theirs = sockets.pair(decode_from_child)
        environment = configuration.child_environment(self.environment)
        child = Child(self.module, [*self.arguments, *more_arguments], theirs, environment, self.own_session)
        self.running = Running(child, leash)
        log.debug("started %s (pid %d)", self.name, child.pid)
        return self.running

    def tell(self, message: msgspec.Struct) -> None:
        """A child that is gone is told nothing; whoever comes after it is told all."""
        if self.running is not None:
            try:
                self.running.leash.send(message)
            except Closed:
                log.debug("the %s is gone", self.name)

    def reap(self) -> str:
        """Collects a dead child; why it died, as far as it or we know, or "". The leash of one that only closed it is cut too,
        so that it ends."""
        running, self.running = self.running, None
        if running is None:
            return ""
        words = running.last_words
        running.child.kill()
        try:
            while True:
                message = running.leash.receive()
                words = message.message if isinstance(message, LastWords) else words
        except (Closed, BadMessage):
            pass
        running.leash.close()
        running.child.reap()
        return words or running.ended_for


def stop(roles: Iterable[Role], reaped: Callable[[Role], None]) -> None:
    """Ends children, first by word, then by force; `reaped` is told of each."""
    waiting = [role for role in roles if role.running is not None]
    for role in waiting:
        role.tell(Stop())
    deadline = time.monotonic() + STOP_WAIT_S
    while waiting and time.monotonic() < deadline:
        poller = select.poll()
        for role in waiting:
            assert role.running is not None
            poller.register(role.running.child.pidfd, select.POLLIN)
        ended = {fd for fd, _ in poller.poll(max(0.0, deadline - time.monotonic()) * 1e3)}
        for role in [role for role in waiting if role.running is not None and role.running.child.pidfd in ended]:
            role.reap()
            reaped(role)
        waiting = [role for role in waiting if role.running is not None]
    for role in waiting:
        log.warning("the %s did not end within %g s; killed", role.name, STOP_WAIT_S)
        role.reap()
        reaped(role)
