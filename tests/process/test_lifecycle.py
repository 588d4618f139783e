"""Starting and stopping the real service, with nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from service import (
    DEADLINE_S,
    assert_nothing_left,
    environment,
    free_port,
    helexa,
    launch,
    processes_of,
    serving,
    wait_until_gone,
)

pytestmark = pytest.mark.process


def open_stream(port: int, model: str = "tiny", **fields: object) -> http.client.HTTPResponse:
    """A streaming completion that has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    body = {"model": model, "prompt": "abc", "stream": True, "max_tokens": 400, "ignore_eos": True, "temperature": 0, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    while not response.readline().startswith(b"data: "):
        pass
    return response


def test_ctrl_c_in_a_terminal_drains_and_ends_with_0(tmp_path, tiny_model_path):
    """The terminal sends SIGINT to every process of the group at once; the open stream still ends whole."""
    port = free_port()
    command = helexa("serve", str(tiny_model_path), "--port", str(port))
    terminal = pexpect.spawn(
        command[0], command[1:], env=environment(tmp_path), cwd=str(tmp_path), timeout=DEADLINE_S, encoding="utf-8"
    )
    terminal.expect(" ready ")
    stream = open_stream(port)
    terminal.sendintr()
    rest = stream.read().decode()
    assert rest.rstrip().endswith("data: [DONE]")
    stream.close()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) == (0, None), terminal.before
    run_dir = tmp_path / "helexa" / str(port)
    assert processes_of(run_dir, port) == [] and not run_dir.exists()


def test_a_second_signal_stops_at_once(tmp_path, tiny_model_path):
    """An open stream that nobody reads would hold a drain up; the second Ctrl-C does not wait for it."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        stream = open_stream(service.port, max_tokens=500)
        service.process.send_signal(signal.SIGINT)
        service.process.send_signal(signal.SIGINT)
        assert service.wait() == 0
        stream.close()
        assert_nothing_left(service)


@pytest.mark.parametrize("role", ["arbiter", "supervisor"])
@pytest.mark.parametrize("streaming", [False, True], ids=["idle", "streaming"])
def test_a_killed_arbiter_or_supervisor_takes_everything_along(tmp_path, tiny_model_path, role, streaming):
    """No orphan, no run directory; a dead supervisor is said, and the exit code is 1."""
    with serving(tmp_path, str(tiny_model_path)) as service:
        stream = open_stream(service.port) if streaming else None
        pids = [process.pid for process in service.tree()]
        service.kill(role)
        code = service.wait()
        assert wait_until_gone(pids) == []
        if stream is not None:
            stream.close()
        assert code == (-signal.SIGKILL if role == "arbiter" else 1)
        if role == "supervisor":
            service.wait_for("the supervisor died")
        assert_nothing_left(service)


def test_what_everybodys_death_leaves_is_swept_by_the_next_start(tmp_path, tiny_model_path):
    """All killed at once, the run directory stays; the next service on the port takes it over."""
    port = free_port()
    first = launch(tmp_path, port, helexa("serve", str(tiny_model_path), "--port", str(port)))
    first.wait_for(" ready ")
    pids = [process.pid for process in first.tree()]
    for pid in [first.pid("supervisor"), *pids]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    first.wait()
    assert wait_until_gone(pids) == []
    second = launch(tmp_path, port, helexa("serve", str(tiny_model_path), "--port", str(port)))
    second.wait_for(" ready ")
    assert second.stop() == 0
    assert_nothing_left(second)


def test_plain_gunicorn_is_the_same_service(tmp_path, tiny_model_path):
    """`gunicorn -c python:helexa.web.gunicorn_conf` serves, and stops like `helexa serve`."""
    flags = json.dumps({"model.source": f"file:{tiny_model_path}", "server.port": (port := free_port())})
    command = [str(Path(sys.executable).parent / "gunicorn"), "-c", "python:helexa.web.gunicorn_conf"]
    service = launch(tmp_path, port, command, HELEXA_FLAGS=flags)
    service.wait_for(" ready ")
    assert open_stream(port).read().rstrip().endswith(b"[DONE]")
    assert service.stop() == 0
    assert_nothing_left(service)


def hostile_folder(folder: Path) -> Path:
    """A folder whose modules, if imported, leave a mark and end the process."""
    evil = "import pathlib, os; pathlib.Path(__file__).with_suffix('.ran').touch(); os._exit(66)\n"
    for name in ("ipc.py", "helexa.py", "kernels_cupy.py", "falcon.py", "zmq.py"):
        (folder / name).write_text(evil)
    (folder / "workers").mkdir()
    (folder / "workers" / "__init__.py").write_text(evil)
    (folder / "workers" / "process.py").write_text(evil)
    return folder


def test_a_folder_with_hostile_modules_is_harmless(tmp_path, tiny_model_path):
    """Served from a folder that holds workers/, ipc.py and helexa.py: ours run."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    hostile_folder(hostile)
    script = Path(sys.executable).parent / "helexa"
    command = [str(script), "serve"] if script.exists() else helexa("serve")
    with serving(tmp_path, str(tiny_model_path), cwd=hostile, command=command) as service:
        assert open_stream(service.port).read().rstrip().endswith(b"[DONE]")
    assert not list(hostile.rglob("*.ran"))


def start_and_fail(folder: Path, *arguments: str, port: int | None = None, **extra: str) -> tuple[int, str]:
    port = port or free_port()
    done = subprocess.run(
        [*helexa("serve"), *arguments, "--port", str(port)],
        cwd=folder,
        env=environment(folder, **extra),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    run_dir = folder / "helexa" / str(port)
    assert processes_of(run_dir, port) == []
    return done.returncode, done.stderr


def test_a_failed_start_says_why_in_one_line(tmp_path, tiny_model_path):
    """Exit code 1, the process that failed has the last word, and it names the remedy."""
    code, report = start_and_fail(tmp_path, str(tmp_path / "missing.gguf"))
    assert code == 1 and "missing.gguf" in report.splitlines()[-1]
    (tmp_path / "damaged.gguf").write_bytes(tiny_model_path.read_bytes()[:5000])
    code, report = start_and_fail(tmp_path, str(tmp_path / "damaged.gguf"))
    assert code == 1 and "damaged.gguf" in report.splitlines()[-1] and "Traceback" not in report
    (tmp_path / "odd.gguf").write_bytes(tiny_model_path.read_bytes().replace(b"smollm", b"smollx"))
    code, report = start_and_fail(tmp_path, str(tmp_path / "odd.gguf"))
    assert code == 1 and "tokenizer.ggml.pre is 'smollx', which is not served; served are" in report.splitlines()[-1]
    assert "worker" not in report, "found out before there is one"


def test_a_port_in_use_is_said_before_anything_starts(tmp_path, tiny_model_path):
    """Another program's port, and another helexa's, each with its own words."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        code, report = start_and_fail(tmp_path, str(tiny_model_path), port=other.getsockname()[1])
        assert code == 1 and "in use by another program" in report and "--port" in report
    with serving(tmp_path, str(tiny_model_path)) as service:
        done = subprocess.run(
            [*helexa("serve"), str(tiny_model_path), "--port", str(service.port)],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 1 and "another helexa" in done.stderr
        assert service.status()["ok"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nprot = 1\n", "did you mean `server.port`"),
        ("[server]\nweb_workers = 'x'\n", "expected a whole number"),
        ("[admission]\nseats = 0\n", "between 1 and 256"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(tmp_path, text, expected):
    """Before anything starts, naming the key and the nearest right one."""
    (tmp_path / "helexa.toml").write_text(text)
    code, report = start_and_fail(tmp_path)
    assert code == 2 and expected in report and len(report.splitlines()) == 1
