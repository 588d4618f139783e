"""The door: who may ask, from where, in how many bytes, and where one request ends and the next begins."""

from __future__ import annotations

import ast
import gzip
import json
import socket
from pathlib import Path

import gunicorn
import pytest
from service import DEADLINE_S, serving

from helexa.keys import key_file

pytestmark = pytest.mark.process

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SMUGGLING = {
    "length and chunks": POST
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "chunks and length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a tab in the name": POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "a negative length": POST + b"Content-Length: -5\r\n\r\nhello",
    "a length in hex": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a list of lengths": POST + b"Content-Length: 5, 6\r\n\r\nhello",
    "a bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: b\r\n\r\n",
    "line feeds alone": b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
    "a folded header": HEALTH + b"X-A: a\r\n b\r\n\r\n",
    "a header without a name": HEALTH + b": a\r\n\r\n",
    "a header with a NUL": HEALTH + b"X-A: a\0b\r\n\r\n",
    "a huge header": HEALTH + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n",
    "a thousand headers": HEALTH + b"".join(b"X-%d: a\r\n" % index for index in range(1000)) + b"\r\n",
    "a huge request line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "an unknown version": b"GET /health HTTP/3.7\r\nHost: 127.0.0.1\r\n\r\n",
}


def responses(port: int, data: bytes) -> list[int]:
    """The statuses of all that is answered to these bytes until the connection closes."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:
            pass
    return [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def check_smuggling(port: int) -> None:
    assert responses(port, HEALTH + b"Connection: close\r\n\r\n") == [200]
    for name, data in SMUGGLING.items():
        statuses = responses(port, data)
        assert len(statuses) <= 1 and all(400 <= status < 600 and status != 500 for status in statuses), (name, statuses)
    assert responses(port, HEALTH + b"Connection: close\r\n\r\n") == [200]


def test_one_message_is_one_request(attacked):
    """Every way to make two parsers disagree on where a request ends: at most one answer, an error, and the connection closes."""
    check_smuggling(attacked.service.port)


@pytest.mark.parametrize("parser", ["python", "fast"])
def test_both_parsers_of_gunicorn_agree(tmp_path, tiny_model_path, parser):
    """The one in Python, and the one in C, which is used where it is installed."""
    if parser == "fast":
        pytest.importorskip("gunicorn_h1c")
    with serving(tmp_path, str(tiny_model_path), GUNICORN_CMD_ARGS=f"--http-parser {parser}") as service:
        check_smuggling(service.port)


def test_gunicorn_is_recent_enough():
    """Earlier ones misparse requests."""
    assert tuple(int(part) for part in gunicorn.__version__.split(".")[:3]) >= (27, 0, 1)


def test_bodies_are_bounded_and_plain(attacked):
    """Too many bytes, however they are framed, nesting, compression and other types: refused before they are parsed."""
    large = b'{"model": "tiny", "prompt": "' + b"a" * (9 * 2**20) + b'"}'
    assert attacked.ask("/v1/completions", large).status == 413
    chunked = b"".join(b"10000\r\n" + b"a" * 65536 + b"\r\n" for _ in range(200)) + b"0\r\n\r\n"
    statuses = responses(attacked.service.port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
    assert statuses in ([413], [])  # the server may hang up before it is heard
    assert attacked.refused("/v1/completions", b"[" * 100_000)["code"] == "invalid_json"
    assert attacked.refused("/v1/completions", b'{"a":' * 100_000)["code"] == "invalid_json"
    bomb = gzip.compress(b'{"model": "tiny", "prompt": "' + b"a" * 10**7 + b'"}')
    assert attacked.ask("/v1/completions", bomb, Content_Encoding="gzip").status in (400, 415)
    assert attacked.ask("/v1/completions", b"model=tiny", Content_Type="application/x-www-form-urlencoded").status == 415
    for text in (b"NaN", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1, "a": 2}', b"\xff", b'"\\ud800"', b"", b"null", b"[]", b"1"):
        assert attacked.ask("/v1/completions", text).status == 400, text
    assert attacked.ask("/v1/completions", b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 100_000 + b"}").status == 400


def test_a_page_of_elsewhere_cannot_ask(attacked):
    """DNS rebinding: on loopback a Host that is no loopback name gets a 403; a foreign Origin gets no leave to read."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "169.254.169.254"):
        assert attacked.ask("/v1/models", Host=host).status == 403
        assert attacked.ask("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}, Host=host).status == 403
    for host in ("localhost", "127.0.0.1", "[::1]:8000"):
        assert attacked.ask("/v1/models", Host=host).status == 200
    answer = attacked.ask("/v1/models", Origin="http://evil.example")
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    preflight = {"Origin": "http://evil.example", "Access_Control_Request_Method": "POST"}
    assert "access-control-allow-origin" not in {
        name.lower() for name in attacked.ask("/v1/completions", None, "OPTIONS", **preflight).headers
    }


@pytest.mark.parametrize("optimised", ["", "1"], ids=["plain", "python-O"])
def test_no_header_gets_around_the_key(tmp_path, tiny_model_path, optimised):
    """With keys, only a key lets in: neither Host, nor forwarding headers, nor spellings of the path, nor almost a key."""
    entry, token = key_file.make("one")
    key_file.save(tmp_path / "keys.json", [entry])
    (tmp_path / "helexa.toml").write_text('[keys]\nfile = "keys.json"\n')
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    with serving(tmp_path, str(tiny_model_path), PYTHONOPTIMIZE=optimised) as service:

        def status(path: str = "/v1/completions", headers: bytes = b"", host: bytes = b"127.0.0.1") -> int:
            head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n"
            return responses(service.port, head % (path.encode(), host, headers, len(body)) + body)[0]

        assert status(headers=f"Authorization: Bearer {token}\r\n".encode()) == 200
        assert status(headers=f"x-api-key: {token}\r\n".encode()) == 200
        wrong = [token[:-1], token + "a", token.swapcase(), entry.digest, entry.id, "", "null", "undefined", "a" * 10_000, "*"]
        for given in wrong:
            assert status(headers=f"Authorization: Bearer {given}\r\n".encode()) in (401, 431), given
        for headers in (
            b"X-Forwarded-For: 127.0.0.1\r\n",
            b"X-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
            b"X-Original-URL: /health\r\nX-Rewrite-URL: /health\r\n",
            b"X-Api-Key: %s\r\n" % entry.digest.encode(),
            b"X_Api_Key: %s\r\n" % token.encode(),
            b"Authorization: Basic %s\r\n" % token.encode(),
            b"Cookie: key=%s\r\n" % token.encode(),
        ):
            assert status(headers=headers) == 401, headers
        for host in (b"localhost", b"127.0.0.1/health", b"127.0.0.1?/health", b"127.0.0.1#", b"127.0.0.1:80/../health"):
            assert status(host=host) in (400, 401, 403), host
        for path in (
            "/v1//completions",
            "//v1/completions",
            "/v1/completions/",
            "/health/../v1/completions",
            "/health;/v1/completions",
        ):
            assert status(path) in (401, 404, 405), path
        assert status("/v1/completions?key=" + token) == 401


def test_keys_are_compared_in_constant_time():
    """In the one place where a key is looked up, and nowhere else is a digest compared."""
    source = Path(key_file.__file__).read_text()
    find = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "find")
    calls = [ast.unparse(node.func) for node in ast.walk(find) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
    assert not [node for node in ast.walk(find) if isinstance(node, ast.Compare)]
    package = Path(key_file.__file__).parents[1]
    for path in [*(package / "keys").glob("*.py"), package / "web" / "auth.py"]:
        compares = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Compare)]
        assert not [text for text in compares if "==" in text and ("digest" in text or "token" in text)], path


def test_a_slow_request_holds_nobody_up(attacked):
    """Half a request on twenty connections, kept open: others are served at once."""
    held = [socket.create_connection(("127.0.0.1", attacked.service.port)) for _ in range(20)]
    for number, connection in enumerate(held):
        connection.sendall((HEALTH if number % 2 else POST + b"Content-Length: 100\r\n\r\n{")[: -(number % 3) or None])
    assert attacked.complete().status == 200
    for connection in held:
        connection.close()
