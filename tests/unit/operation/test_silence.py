"""Whom the supervisor takes for silent."""

from __future__ import annotations

from types import SimpleNamespace

from helexa.child_group import alone
from helexa.children import Role, Running
from helexa.config import Config
from helexa.supervisor import Supervisor
from helexa.watching import Silence
from ipc import sockets
from ipc.codec import decode_from_child
from ipc.leash_messages import Beat


def test_who_spoke_while_the_supervisor_was_stopped_is_not_silent() -> None:
    """Stopped for a while between its look at the leashes and its look at the clock, it killed a worker whose beats lay unread."""
    killed: list[str] = []
    leash, theirs = sockets.pair(decode_from_child)
    role = Role("scheduler", "no.module", [])
    role.running = Running(SimpleNamespace(kill=lambda: killed.append("scheduler")), leash)  # type: ignore[arg-type]
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.scheduler, supervisor.models, supervisor.silence = alone(role), [], Silence()  # type: ignore[assignment]
    supervisor.operating = SimpleNamespace(config=Config())  # type: ignore[assignment]
    seconds = iter([100.0, 103.0, 200.0])
    supervisor.watched = SimpleNamespace(at=lambda now: next(seconds))  # type: ignore[assignment]
    supervisor.silence.expect("scheduler", 5.0, 0.0)
    worker = sockets.Link(theirs, decode_from_child)
    worker.send(Beat())
    supervisor._end_silent()
    leash.receive()
    supervisor._end_silent()
    assert killed == []
    supervisor._end_silent()
    assert killed == ["scheduler"]
