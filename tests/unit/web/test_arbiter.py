"""The arbiter's part of the service, as gunicorn's configuration has it."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from helexa.web import gunicorn_conf
from ipc import sockets
from ipc.codec import decode_from_child
from ipc.leash_messages import LastWords


def test_a_dead_supervisor_is_seen_though_its_leash_is_open() -> None:
    """The supervisor was killed as it forked a worker: the worker-to-be held the leash open for a moment longer, the arbiter took the
    supervisor for alive, was told of no other death, and stayed for good."""
    leash, theirs = sockets.pair(decode_from_child)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    supervisor = gunicorn_conf._Supervisor.__new__(gunicorn_conf._Supervisor)
    supervisor.leash, supervisor.child, supervisor.last_words = leash, SimpleNamespace(pidfd=os.pidfd_open(child.pid)), ""
    assert not supervisor.has_ended()
    sockets.Link(theirs, decode_from_child).send(LastWords("out of memory"))
    assert not supervisor.has_ended() and supervisor.last_words == "out of memory"
    child.kill()
    child.wait()
    assert supervisor.has_ended()
