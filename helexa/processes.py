"""Starting and watching child processes on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """This process is killed when `parent`, which forked it, ends. For use between fork and exec, and after a plain fork.

    The signal follows the forking thread, and comes only for deaths after the call: hence the look back.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _in_child(parent: int) -> Callable[[], None]:
    def prepare() -> None:
        die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return prepare


class Child:
    """A Python module run as a child, with a leash: a socket whose end of file tells either side of the other's death.

    Unless it leads a session of its own, the kernel kills it with its parent.
    """

    def __init__(
        self, module: str, arguments: list[str], leash: socket.socket, environment: Mapping[str, str], new_session: bool = False
    ) -> None:
        self.module = module
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments, "--leash-fd", str(leash.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=[leash.fileno()],
            env=dict(environment),
            preexec_fn=None if new_session else _in_child(os.getpid()),
            start_new_session=new_session,
        )
        leash.close()
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()

    def reap(self) -> None:
        """Collects the dead process; blocks while it lives."""
        self.process.wait()
        os.close(self.pidfd)
