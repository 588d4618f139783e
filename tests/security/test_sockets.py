"""Nothing that arrives on a socket is run, believed or shown to another: unpickling servers, open sockets, forged handles."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from service import DEADLINE_S

from helexa.client import Client
from ipc import messages

ROOT = Path(__file__).parent.parent.parent
SOURCES = [path for folder in ("helexa", "workers", "ipc", "kernels_cupy", "tools") for path in (ROOT / folder).rglob("*.py")]
RUNS_DATA = {"pickle", "cPickle", "_pickle", "marshal", "dill", "cloudpickle", "shelve", "joblib", "jsonpickle"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "os.system", "os.popen"}
RUNS_CALLED = {"recv_pyobj", "send_pyobj", "load_module", "allow_pickle", "weights_only", "trust_remote_code", "shell"}


def test_no_source_runs_data():
    """No pickle or its kin, no eval, no torch.load, no yaml.load, no shell, no module that a value names alone: nowhere in the tree."""
    assert len(SOURCES) > 150
    offences = [f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in offending_lines(path.read_text())]
    assert offences == []
    assert list(offending_lines("import numpy\nfrom pickle import loads\nx = eval(y)\nrun(z, shell=True)\nnumpy.load(f)")) == [
        2,
        3,
        4,
    ]


def offending_lines(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found = {alias.name.split(".")[0] for alias in node.names} & RUNS_DATA
        elif isinstance(node, ast.ImportFrom):
            found = {(node.module or "").split(".")[0]} & RUNS_DATA
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            words = {called, called.rpartition(".")[2], *(str(keyword.arg) for keyword in node.keywords)}
            named = called == "importlib.import_module" and not isinstance(node.args[0], ast.Constant | ast.JoinedStr)
            found = words & RUNS_CALLED or ({called} if called in RUNS_TEXT or named else set())
        else:
            continue
        if found:
            yield node.lineno


@pytest.mark.process
def test_a_pickle_sent_to_every_socket_runs_nowhere(attacked, tmp_path):
    """HTTP, ZeroMQ, the workers' socket, the operators' socket: each refuses it or hangs up."""
    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(mark),))

    bombs = [pickle.dumps(Bomb(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    run_dir = attacked.service.run_dir
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"ipc://{run_dir / 'requests.ipc'}")
        for bomb in bombs:
            dealer.send(bomb)
            assert dealer.poll(DEADLINE_S * 1e3)
            assert msgspec.msgpack.decode(dealer.recv())["code"] == "invalid_value"
    for bomb in bombs:
        attacked.refused("/v1/completions", bomb)
        attacked.refused("/v1/completions", bomb, 415, Content_Type="application/x-pickle")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
            worker.connect(str(run_dir / "workers.sock"))
            worker.send(bomb)
            assert worker.recv(10) == b""
        with socket.socket(socket.AF_UNIX) as operator:
            operator.connect(str(run_dir / "control.sock"))
            operator.sendall(bomb.replace(b"\n", b"") + b"\n")
            assert json.loads(operator.makefile().readline())["ok"] is False
    assert not mark.exists()


@pytest.mark.process
def test_only_loopback_and_the_private_folder_are_listened_on(attacked):
    """Of all its processes: one TCP port, on 127.0.0.1; unix sockets in a folder that is its owner's alone."""
    inodes = {}
    for process in attacked.service.tree():
        for connection in process.net_connections("all"):
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                    assert connection.laddr == ("127.0.0.1", attacked.service.port)
            elif connection.laddr:
                inodes[connection.laddr] = process.pid
    run_dir = attacked.service.run_dir
    assert {path for path in inodes if not path.startswith("\0")} >= {
        str(run_dir / name) for name in ("requests.ipc", "workers.sock", "control.sock")
    }
    assert all(Path(path).parent == run_dir for path in inodes), inodes
    for folder in (run_dir, run_dir.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for entry in run_dir.iterdir():
        assert stat.S_ISSOCK(entry.stat().st_mode) or stat.S_IMODE(entry.stat().st_mode) == 0o600, entry


@pytest.mark.process
def test_one_client_can_neither_see_nor_touch_anothers_requests(attacked):
    """Another client that knows the id of a request, and resubmits, stops, cancels, credits and acknowledges it: each goes on."""
    run_dir = attacked.service.run_dir
    with Client(run_dir, name="victim", credit=8) as victim, Client(run_dir, name="thief") as thief:
        options = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.9, "seed": 5}
        calm = [token.id for token in victim.generate([5, 6, 7], **options)]
        stream = victim.submit([5, 6, 7], **options)
        victim.poll(DEADLINE_S)
        own = thief.submit([9, 9], max_tokens=40, ignore_eos=True, temperature=0)
        for kind, fields in (
            ("abort", {"choice": 0, "reason": "cancel"}),
            ("abort", {"choice": 0, "reason": "stop", "keep": 0}),
            ("credit", {"choice": 0, "upto": 1}),
            ("finish_ack", {"choice": 0}),
        ):
            thief._send({"type": kind, "req_id": stream.req_id, **fields})
        thief._send({**stream._request, "output_ids": [[]], "credit": 0, "prompt_ids": [1]})
        thief._send({"type": "abort", "req_id": stream.req_id, "choice": 0, "reason": "cancel"})
        assert len([token.id for token in own]) == 40
        assert [token.id for token in stream] == calm
        assert stream.req_id not in {generation.req_id for generation in thief.poll(0.01)}


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["nothing", "../tiny", "file:/etc/passwd", "huggingface:a/b", "/etc/passwd", "", "x" * 4096, "\0"]
)
def test_a_client_has_nothing_loaded_that_is_not_listed(attacked, name):
    """Who wants a model names one of the registry, or nothing happens: no file is looked at, no process is started."""
    children = {process.pid for process in attacked.service.tree()}
    with Client(attacked.service.run_dir) as client:
        client._send({"type": "want", "model": name})
        assert len(list(client.generate([5, 6, 7], max_tokens=2))) == 2
    assert [model["name"] for model in attacked.service.status()["models"]] == ["tiny"]
    assert {process.pid for process in attacked.service.tree()} == children


def test_no_message_of_a_client_names_memory_or_a_file():
    """A handle, a descriptor or a path from a client would select what is read: there is no field for one."""
    fields = {
        (kind.__name__, item.name)
        for kind in (*messages.ClientMessage.__args__, messages.SamplingParams)
        for item in msgspec.structs.fields(kind)
    }
    assert not [item for item in fields if re.search(r"path|file|fd|handle|addr|memory|module|class|url", item[1])]


@pytest.mark.process
@pytest.mark.parametrize(
    "register",
    [
        ["register", "tiny", 0, 1, 1, 1],
        ["register", "tiny", 0, os.getpid(), 1, 1],
        ["register", "tiny", 0, os.getpid(), 1, 2],
        ["register", "other", 0, os.getpid(), 1, 1],
        ["register", "tiny", 0, os.getpid(), 99, 1],
        ["result", 1, 1, 0, True, [0], [5], {}, {}, 1.0],
        ["fault", "device", "x"],
    ],
    ids=str,
)
def test_a_forged_worker_is_hung_up_on(attacked, register):
    """One that gives another's pid, a model that has its worker, or speaks without an introduction."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        worker.settimeout(DEADLINE_S)
        worker.connect(str(attacked.service.run_dir / "workers.sock"))
        worker.send(msgspec.msgpack.encode(register))
        if register[0] == "register":
            assert worker.recv(10) == b""
        assert attacked.complete().status == 200


@pytest.mark.process
def test_management_is_no_route(attacked):
    """Neither ours nor the names that other servers had open: 404, for whatever method."""
    names = (
        "load",
        "unload",
        "reload",
        "drain",
        "pause",
        "resume",
        "abort",
        "shutdown",
        "stop",
        "kill",
        "status",
        "control",
        "ctl",
    )
    names += (
        "v1/load",
        "update_weights",
        "update_weights_from_tensor",
        "update_weights_from_disk",
        "flush_cache",
        "sleep",
        "wake_up",
    )
    names += (
        "api/pull",
        "api/create",
        "api/push",
        "api/delete",
        "api/blobs/x",
        "collective_rpc",
        "start_profile",
        "slots",
        "lora",
    )
    names += (
        "v1/files",
        "v1/load_lora_adapter",
        "server_info",
        "set_internal_state",
        "init_broadcaster",
        "props",
        "debug",
        "docs",
    )
    for name in names:
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert attacked.ask(f"/{name}", None if method == "GET" else {"model": "x"}, method).status == 404, name
