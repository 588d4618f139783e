"""The web tier behind the real server: what an ASGI client in the same process cannot show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from fake_scheduler import FakeScheduler, model_info

from ipc.messages import Abort, Generate

ROOT = Path(__file__).parents[3]
ENTRY = """
from pathlib import Path
from byte_text import load_byte_text
from helexa.config import Config
from helexa.web.app import create_app
app = create_app(Config(), Path({run_dir!r}), load_byte_text)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, FakeScheduler]]:
    """A server with one worker on a unix socket of its own port, and the peer behind it."""
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "helexa_test_entry.py").write_text(ENTRY.format(run_dir=str(tmp_path)))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "-k",
        "asgi",
        "--no-control-socket",
        "-b",
        f"fd://{listener.fileno()}",
        "--log-level",
        "warning",
    ]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(tmp_path)])
    with FakeScheduler(tmp_path, models=[model_info(files={"gguf": str(tmp_path / "model.gguf")})]) as peer:
        process = subprocess.Popen(
            [*command, "helexa_test_entry:app"], pass_fds=[listener.fileno()], env={**os.environ, "PYTHONPATH": path}
        )
        listener.close()
        try:
            yield f"http://127.0.0.1:{port}", peer
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(timeout=20)


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def test_through_the_server(server: tuple[str, FakeScheduler]) -> None:
    """The openai client gets a reply and a stream; headers leave before the first token; a closed connection cancels."""
    base, peer = server
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=5)
    messages = [{"role": "user", "content": "hello"}]
    reply = client.chat.completions.create(model="m", messages=messages, seed=1)  # type: ignore[arg-type]
    assert reply.choices[0].message.content == "hello"
    with client.chat.completions.stream(model="m", messages=messages) as stream:  # type: ignore[arg-type]
        assert [event.type for event in stream][-1] == "content.done"
        assert stream.get_final_completion().choices[0].message.content == "hello"
    with pytest.raises(openai.NotFoundError, match="`m`"):
        client.chat.completions.create(model="nope", messages=messages)  # type: ignore[arg-type]

    peer.call(lambda: setattr(peer, "_allowed", 0))
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"leave"}]}'
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
        assert b"text/event-stream" in read_until(connection, b": ok\n\n")
        waiting = peer.wait_for(Generate, where=lambda request: bytes(request.prompt_ids) == b"leave")[0]
    peer.wait_for(Abort, where=lambda abort: abort.req_id == waiting.req_id and abort.reason == "cancel")
