"""A real service for tests: `helexa serve` on a free loopback port, its processes by role, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

DEADLINE_S = 60.0  # a test that waits so long has failed; nothing is measured by it
ROLES = {
    "arbiter": "gunicorn",
    "supervisor": "helexa.supervisor",
    "scheduler": "helexa.scheduler.process",
    "worker": "workers.process",
    "web": "gunicorn",
}


def has_role(line: list[str], role: str) -> bool:
    """Whether a command line is a process's of that role; `rank 1` is that rank of a worker."""
    if role.startswith("rank "):
        return ROLES["worker"] in line and line[line.index("--rank") + 1] == role.removeprefix("rank ")
    return ROLES[role] in line


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """An environment whose run directory is under `folder`, with nothing of the developer's own service in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELEXA_") and name != "PYTHONPATH"}
    return {**kept, "XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1", **extra}


@dataclass
class Service:
    """A running `helexa serve`. `report` is all that it wrote so far."""

    process: subprocess.Popen[str]
    port: int
    run_dir: Path
    report: list[str]
    _lines: threading.Condition

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, text: str, count: int = 1) -> None:
        """Blocks until `text` stands in the report `count` times; fails when the service ends before."""
        with self._lines:
            done = self._lines.wait_for(
                lambda: sum(text in line for line in self.report) >= count or self.report[-1:] == ["<end>"], DEADLINE_S
            )
        assert done and sum(text in line for line in self.report) >= count, f"no {text!r} in:\n{''.join(self.report)}"

    def tree(self) -> list[psutil.Process]:
        """The arbiter and all below it."""
        try:
            arbiter = psutil.Process(self.process.pid)
            return [arbiter, *arbiter.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def pid(self, role: str) -> int:
        """The pid of a role's one process, or of a worker's `rank N`; waits for one that is being started, which has no command line
        of its own yet."""
        if role == "arbiter":
            return self.process.pid
        deadline = time.monotonic() + DEADLINE_S
        while True:
            lines: list[list[str]] = []
            for process in self.tree():
                with contextlib.suppress(psutil.Error):
                    lines.append(process.cmdline())
                    if has_role(lines[-1], role) and process.pid != self.process.pid:
                        return process.pid
            assert self.process.poll() is None and time.monotonic() < deadline, f"no {role} among {lines}"
            time.sleep(0.01)

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        pid = self.pid(role)
        os.kill(pid, number)
        return pid

    def status(self) -> dict:
        """The control socket's answer to `status`; waits for a scheduler that is being started."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(DEADLINE_S)
                connection.connect(str(self.run_dir / "control.sock"))
                connection.sendall(b'{"v": 1, "cmd": "status"}\n')
                line = connection.makefile().readline()
                if line:
                    return json.loads(line)
            assert self.process.poll() is None and time.monotonic() < deadline, "nobody answers on the control socket"
            time.sleep(0.01)

    def wait_until_web_knows(self) -> None:
        """The web worker hears of what the report says a moment later."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/ready", timeout=DEADLINE_S):
                return

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        return self.process.wait(DEADLINE_S)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait()


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: str, cwd: Path | None = None, command: list[str] | None = None, **extra: str
) -> Iterator[Service]:
    """Starts a service, waits until it is ready, stops it at the end, and fails when it leaves anything behind."""
    port = free_port()
    started = launch(folder, port, [*(command or helexa("serve")), *arguments, "--port", str(port)], cwd, **extra)
    try:
        started.wait_for(" ready ")
        started.wait_until_web_knows()
        yield started
    finally:
        tree = started.tree()
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGTERM)
            started.process.send_signal(signal.SIGTERM)
        try:
            started.wait()
        finally:
            for process in tree:
                with contextlib.suppress(psutil.Error):
                    process.kill()
    assert_nothing_left(started)


def helexa(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "helexa.cli", *arguments]


def launch(folder: Path, port: int, command: list[str], cwd: Path | None = None, **extra: str) -> Service:
    """Starts a command whose report is read in the background."""
    process = subprocess.Popen(
        command,
        cwd=cwd or folder,
        env=environment(folder, **extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    service = Service(process, port, folder / "helexa" / str(port), [], threading.Condition())

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with service._lines:
                service.report.append(line)
                service._lines.notify_all()
        with service._lines:
            service.report.append("<end>")
            service._lines.notify_all()

    threading.Thread(target=read, daemon=True).start()
    return service


def wait_until_gone(pids: list[int], seconds: float = DEADLINE_S) -> list[int]:
    """Those of `pids` that still live after so many seconds; waits for their pidfds, does not poll."""
    poller, fds = select.poll(), {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            fds[fd] = pid
            poller.register(fd, select.POLLIN)
    while fds:
        ready = poller.poll(seconds * 1e3)
        if not ready:
            break
        for fd, _ in ready:
            poller.unregister(fd)
            os.close(fd)
            del fds[fd]
    return list(fds.values())


def processes_of(run_dir: Path, port: int) -> list[list[str]]:
    """Command lines of living processes that belong to the run directory or port."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        mine = any(str(run_dir) in word for word in line)
        with contextlib.suppress(psutil.Error):
            mine = mine or (
                any("gunicorn" in word or "helexa.supervisor" in word for word in line)
                and str(run_dir.parent.parent) == process.environ().get("XDG_RUNTIME_DIR")
            )
        if mine and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def assert_nothing_left(service: Service) -> None:
    """No process, no run directory, nothing in shared memory."""
    assert processes_of(service.run_dir, service.port) == []
    assert not service.run_dir.exists(), list(service.run_dir.iterdir())
    shared = Path("/dev/shm")
    assert not [entry for entry in (shared.iterdir() if shared.is_dir() else []) if "helexa" in entry.name]
