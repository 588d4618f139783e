"""gunicorn's configuration, which makes its arbiter the foreground process of the service:
`gunicorn -c python:helexa.web.gunicorn_conf`. `helexa serve` execs just that.

Stops: the first SIGINT or SIGTERM drains (open requests finish, no new ones are taken), the second stops at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# gunicorn puts the current folder on the import path before this file runs: a stray `ipc.py` there must not be ours
_ROOT = Path(__file__).resolve().parent.parent.parent
_HERE = os.getcwd()
if Path(_HERE) != _ROOT:
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".", _HERE)]
if str(_ROOT) not in sys.path:
    sys.path.append(str(_ROOT))

import errno  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
from typing import Any  # noqa: E402

from gunicorn.errors import HaltServer  # noqa: E402

from helexa import config as configuration  # noqa: E402
from helexa import run_directory  # noqa: E402
from helexa.errors import HelexaError  # noqa: E402
from helexa.processes import Child, die_with_parent  # noqa: E402
from ipc import installation, sockets  # noqa: E402
from ipc.codec import BadMessage, decode_from_child  # noqa: E402
from ipc.leash_messages import ChildReady, Drain, LastWords, Stop  # noqa: E402
from ipc.sockets import Closed  # noqa: E402

SUPERVISOR_STOP_MS = 25_000  # the supervisor gives its own children 20 s


def _fail(message: str, code: int) -> None:
    print(f"helexa: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


try:
    installation.folder()
    _config = configuration.from_environment()
except (HelexaError, RuntimeError) as error:
    _fail(str(error), 2)

wsgi_app = "helexa.web.entry:app"
worker_class = "asgi"
bind = [
    f"[{_config.server.host}]:{_config.server.port}"
    if ":" in _config.server.host
    else f"{_config.server.host}:{_config.server.port}"
]
workers = _config.server.web_workers
worker_connections = _config.server.max_connections
keepalive = _config.server.keep_alive_s
graceful_timeout = _config.server.drain_s
chdir = str(_ROOT)
control_socket_disable = True  # one per user: two servers would collide, and helexa has its own
loglevel = "warning" if _config.logging.level in ("info", "warning") else _config.logging.level


def _is_readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class _Supervisor:
    """The arbiter's end of the supervisor's leash."""

    def __init__(self) -> None:
        self.leash, theirs = sockets.pair(decode_from_child)
        self.child = Child(
            "helexa.supervisor",
            ["--arbiter-pid", str(os.getpid())],
            theirs,
            configuration.child_environment({}),
            new_session=True,
        )
        self.last_words = ""

    def wait_until_up(self) -> None:
        try:
            while True:
                message = self.leash.receive()
                if isinstance(message, ChildReady):
                    return
                if isinstance(message, LastWords):
                    self.last_words = message.message
        except (Closed, BadMessage):
            _fail(self.last_words or "the supervisor ended before it was up", 1)

    def has_ended(self) -> bool:
        """Whether it is gone; takes its last words. Not by the end of its leash alone: a child that it was just forking has that open
        for a moment longer, and nobody would look again."""
        dead = _is_readable(self.child.pidfd)
        while self.leash.has_message():
            try:
                message = self.leash.receive()
            except (Closed, BadMessage):
                return True
            if isinstance(message, LastWords):
                self.last_words = message.message
        return dead

    def drain(self) -> None:
        """Tells it that the service is being stopped; says nothing where it is gone."""
        try:
            self.leash.send(Drain())
        except Closed:
            pass

    def stop(self) -> None:
        """Tells it to end everything, and waits until it has."""
        try:
            self.leash.send(Stop())
        except Closed:
            pass
        poller = select.poll()
        poller.register(self.child.pidfd, select.POLLIN)
        if not poller.poll(SUPERVISOR_STOP_MS):
            self.child.kill()
            poller.poll()
        self.has_ended()
        run_directory.sweep(_config)


class _Leaving:
    """Web workers that were replaced and end once their streams have. gunicorn itself would wait for them in its one loop, blind
    to signals and to the supervisor's death."""

    def __init__(self) -> None:
        self._workers: dict[int, Any] = {}

    def replace(self, server: Any) -> None:
        """HUP: new web workers, with the configuration that counts now, accept from the same listener."""
        old, server.WORKERS = dict(server.WORKERS), {}
        server.manage_workers()
        for pid in old:
            server.kill_worker(pid, signal.SIGTERM)
        self._workers |= old

    def forget_dead(self) -> None:
        """After gunicorn has collected the dead."""
        for pid, worker in list(self._workers.items()):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                worker.tmp.close()
                del self._workers[pid]

    def rejoin(self, server: Any) -> None:
        """A stop waits for them as for the others."""
        server.WORKERS.update(self._workers)
        self._workers = {}


_supervisor: _Supervisor | None = None


def on_starting(server: Any) -> None:
    """In the arbiter, before it binds: start the supervisor, and bend the arbiter's signals to this service's stops."""
    global _supervisor
    _check_port()
    _supervisor = supervisor = _Supervisor()
    supervisor.wait_until_up()
    stops: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            stops.append(number)
            supervisor.drain()
            number = signal.SIGTERM if len(stops) == 1 else signal.SIGQUIT
        server.SIG_QUEUE.put_nowait(number)

    reap, stop = server.handle_chld, server.stop
    leaving = _Leaving()

    def stop_all(graceful: bool = True) -> None:
        leaving.rejoin(server)
        stop(graceful)

    def on_child() -> None:
        reap()
        leaving.forget_dead()
        if supervisor.has_ended():
            server.cfg.set("graceful_timeout", 0)  # nobody is left to finish what is open
            raise HaltServer(supervisor.last_words or "the supervisor died", 1)

    server.signal = on_signal
    server.handle_chld = server.handle_cld = on_child
    server.handle_hup = lambda: leaving.replace(server)
    server.stop = stop_all
    server.handle_usr2 = lambda: server.log.warning("USR2 is refused: two arbiters cannot share one engine; use HUP, or restart")


def _check_port() -> None:
    host, port = _config.server.host, _config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and not run_directory.is_served(_config):
                _fail(f"port {port} is in use by another program; choose another with --port", 1)
            if error.errno != errno.EADDRINUSE:
                _fail(f"cannot listen on {host}:{port} ({error.strerror}); check server.host and server.port", 1)


def post_fork(server: Any, worker: Any) -> None:
    die_with_parent(worker.ppid)


def post_worker_init(worker: Any) -> None:
    """The terminal's Ctrl-C reaches every process at once: a web worker waits for the arbiter's word instead."""
    worker.loop.remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def on_exit(server: Any) -> None:
    """In the arbiter, after the web workers: end the rest; a service that failed says why and exits 1."""
    if _supervisor is not None:
        _supervisor.stop()
        if _supervisor.last_words:
            _fail(_supervisor.last_words, 1)
