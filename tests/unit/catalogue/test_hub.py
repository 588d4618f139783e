"""The huggingface source, against a small Hub on loopback that speaks its protocol."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from helexa import catalogue
from helexa.catalogue.cache import place, staging
from helexa.config import Config
from helexa.errors import ModelSourceError

COMMIT = "c0ffee" * 6 + "c0de"


class Hub:
    """Two servers: the Hub, which knows repositories, and a store that large files are redirected to."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.licence: str | None = "apache-2.0"
        self.status = 200
        self.error_code = ""
        self.cut_at: int | None = None  # the store ends its answer there, and answers nothing to who asks for the rest
        self.requests: list[tuple[str, str, str, dict[str, str]]] = []  # server, method, path, headers
        self.stores: Callable[[Any], None] = self._answer_store
        self.servers = [self._server("hub", self._answer_hub), self._server("store", lambda handler: self.stores(handler))]

    def _server(self, name: str, answer: Callable[[Any], None]) -> http.server.ThreadingHTTPServer:
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.requests.append((name, self.command, self.path, {key.lower(): value for key, value in self.headers.items()}))
                answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def url(self, index: int = 0) -> str:
        return f"http://127.0.0.1:{self.servers[index].server_address[1]}"

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    @staticmethod
    def _send(handler: Any, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
        handler.send_response(status)
        for key, value in ({"Content-Length": str(len(body) if length is None else length)} | headers).items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)

    def _answer_hub(self, handler: Any) -> None:
        path = handler.path.partition("?")[0]
        if self.status != 200:
            self._send(handler, self.status, b"{}", {"X-Error-Code": self.error_code})
        elif path.startswith("/api/models/org/repo"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "lfs": {"sha256": self._sha256(data), "size": len(data), "pointerSize": 130},
                }
                for name, data in self.files.items()
            ]
            info = {"id": "org/repo", "sha": COMMIT, "siblings": siblings, "cardData": {"license": self.licence}, "tags": []}
            self._send(handler, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif path.startswith(f"/org/repo/resolve/{COMMIT}/"):
            name = path.split("/", 5)[5]
            data = self.files[name]
            headers = {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Size": str(len(data)),
                "X-Linked-Etag": f'"{self._sha256(data)}"',
                "ETag": '"pointer"',
                "Location": f"{self.url(1)}/{name}",
            }
            self._send(handler, 302, b"", headers)
        else:
            self._send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    @staticmethod
    def _sha256(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    def _answer_store(self, handler: Any) -> None:
        data = self.files[handler.path[1:]]
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        body = data[start:]
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{self._sha256(data)}"'}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if self.cut_at is not None and start:
            handler.close_connection = True  # no answer at all
            return
        if self.cut_at is not None:
            self._send(handler, 200, body[: self.cut_at], headers, len(body))
            handler.close_connection = True
            return
        self._send(handler, 206 if start else 200, body, headers)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, write_gguf: Callable[..., Path], tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the library reads the variable once, at import
    hub = Hub()
    hub.files = {
        "README.md": b"hello",
        "tiny-Q4_0.gguf": write_gguf(tmp_path / "a.gguf").read_bytes(),
        "sub/tiny-Q8_0.gguf": write_gguf(tmp_path / "b.gguf", licence=None, columns=100_000).read_bytes(),
    }
    yield hub
    hub.close()


@pytest.fixture
def hub_config(hub: Hub, config: Config) -> Config:
    return dataclasses.replace(config, hub=dataclasses.replace(config.hub, endpoint=hub.url(), auth_env="MY_TOKEN"))


def fetch(name: str, config: Config) -> catalogue.ModelFiles:
    return catalogue.fetch(catalogue.parse(name, config), config, print)


def refused(name: str, config: Config) -> str:
    with pytest.raises(ModelSourceError) as caught:
        fetch(name, config)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_fetch_by_quantisation(hub: Hub, hub_config: Config) -> None:
    """The file of that quantisation comes, at the commit that was listed, and lies alone in its folder with the manifest."""
    files = fetch("huggingface:org/repo:q4_0", hub_config)
    source = catalogue.parse("huggingface:org/repo:q4_0", hub_config)
    assert Path(files.files["gguf"]).read_bytes() == hub.files["tiny-Q4_0.gguf"] and files.licence == "mit"
    assert sorted(path.name for path in place(source, hub_config).iterdir()) == ["manifest.json", "tiny-Q4_0.gguf"]
    before = len(hub.requests)
    assert catalogue.find(source, hub_config) == files == fetch("huggingface:org/repo:q4_0", hub_config)
    assert len(hub.requests) == before, "what is at hand costs no request"
    assert fetch("org/repo:sub/tiny-Q8_0.gguf", hub_config).licence == "apache-2.0", "the file states none, the repository does"
    assert len(catalogue.cached(hub_config)) == 2


def test_several_files_are_listed(hub_config: Config) -> None:
    """With sizes; and so when none fits."""
    message = refused("huggingface:org/repo", hub_config)
    assert "2 models; add :FILE or :QUANT" in message and "sub/tiny-Q8_0.gguf (400.2 kB)" in message
    assert "none fits Q2_K" in refused("huggingface:org/repo:Q2_K", hub_config)


def test_safetensors(hub: Hub, hub_config: Config, write_folder: Callable[..., Path], tmp_path: Path) -> None:
    """All files of the model come, of one commit, and nothing else of the repository; they open as a folder."""
    made = write_folder(tmp_path / "made", shards=2)
    hub.files = {path.name: path.read_bytes() for path in made.iterdir()} | {"README.md": b"x", "onnx/model.onnx": b"y"}
    files = fetch("huggingface:org/repo", hub_config)
    folder = place(catalogue.parse("huggingface:org/repo", hub_config), hub_config)
    assert files.files == {"safetensors": str(folder)} and files.licence == "apache-2.0"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"} == {
        path.name: path.read_bytes() for path in made.iterdir()
    }
    assert catalogue.find(catalogue.parse("huggingface:org/repo", hub_config), hub_config) == files
    assert files.bytes == sum(path.stat().st_size for path in made.iterdir())
    (folder / "tokenizer.json").write_bytes(b"{}")
    assert catalogue.find(catalogue.parse("huggingface:org/repo", hub_config), hub_config) is None, "not as it was fetched"
    assert "#sha256= names one file, and this model has" in refused(f"huggingface:org/repo#sha256={'0' * 64}", hub_config)


def test_safetensors_are_resumed_file_by_file(
    hub: Hub, hub_config: Config, write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """A fetch that ended between two files asks only for those that have not come."""
    made = write_folder(tmp_path / "made", shards=2)
    hub.files = {path.name: path.read_bytes() for path in made.iterdir()}
    last = hub.files.pop("tokenizer.json")
    hub.files["tokenizer.json"] = last
    answer, hub._answer_store = hub._answer_store, lambda handler: hub._send(handler, 404, b"", {})  # type: ignore[method-assign]
    asked: list[str] = []

    def some(handler: Any) -> None:
        asked.append(handler.path)
        (answer if len(asked) <= 3 else hub._answer_store)(handler)

    hub.stores = some
    assert "did not give it" in refused("huggingface:org/repo", hub_config)
    came = list(asked[:3])
    asked.clear()
    hub.stores = lambda handler: (asked.append(handler.path), answer(handler))[1]
    fetch("huggingface:org/repo", hub_config)
    assert not set(asked) & set(came) and len(came) + len(asked) == len(hub.files)


def test_the_token_goes_to_the_hub_alone(hub: Hub, hub_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configured variable's token is sent to the endpoint, and not to the store it redirects to."""
    monkeypatch.setenv("MY_TOKEN", "secret-token")
    monkeypatch.setenv("HF_TOKEN", "another")
    fetch("huggingface:org/repo:Q4_0", hub_config)
    sent = {(server, headers.get("authorization")) for server, _, _, headers in hub.requests}
    assert sent == {("hub", "Bearer secret-token"), ("store", None)}


def test_no_other_token_is_sent(hub: Hub, hub_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the configured variable is empty, no token of another origin takes its place."""
    monkeypatch.delenv("MY_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN", "another")
    fetch("huggingface:org/repo:Q4_0", hub_config)
    assert {headers.get("authorization") for _, _, _, headers in hub.requests} == {None}


def test_a_broken_download_is_resumed(hub: Hub, hub_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come stays, and the next fetch asks for the rest."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client library waits between its own tries
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.cut_at = 150_000
    name = "huggingface:org/repo:Q8_0"
    assert "check the network, then try again" in refused(name, hub_config)
    source = catalogue.parse(name, hub_config)
    assert catalogue.find(source, hub_config) is None and staging(place(source, hub_config)).exists()
    hub.cut_at = None
    hub.requests.clear()
    assert Path(fetch(name, hub_config).files["gguf"]).read_bytes() == hub.files["sub/tiny-Q8_0.gguf"]
    ranges = [headers.get("range") for server, method, _, headers in hub.requests if server == "store" and method == "GET"]
    assert ranges and all(asked and int(asked[6:-1]) >= 140_000 for asked in ranges)
    assert not staging(place(source, hub_config)).exists()


def test_wrong_digest(hub_config: Config) -> None:
    """A digest in the name that is not the file's."""
    assert "expected" in refused(f"huggingface:org/repo:Q4_0#sha256={'0' * 64}", hub_config)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "RepoNotFound", "no such repository, or it is private; check the name, or put your token in $MY_TOKEN"),
        (401, "RepoNotFound", "no such repository"),
        (403, "GatedRepo", "gated; accept its terms"),
        (404, "RevisionNotFound", "no revision v9"),
        (500, "", "did not give it"),
    ],
)
def test_refusals(hub: Hub, hub_config: Config, status: int, code: str, expected: str) -> None:
    """Each of the Hub's refusals in words, with the remedy; nothing is left behind."""
    hub.status, hub.error_code = status, code
    assert expected in refused("huggingface:org/repo:Q4_0@v9", hub_config)
    assert not list(Path(hub_config.paths.cache).glob("models/*/*"))


def test_no_server(hub_config: Config) -> None:
    """An endpoint that cannot be reached is named."""
    config = dataclasses.replace(hub_config, hub=dataclasses.replace(hub_config.hub, endpoint="http://127.0.0.1:9"))
    assert "http://127.0.0.1:9 did not give it" in refused("huggingface:org/repo:Q4_0", config)


def test_offline(hub: Hub, hub_config: Config) -> None:
    """No request is made."""
    assert "offline is set" in refused("huggingface:org/repo:Q4_0", dataclasses.replace(hub_config, offline=True))
    assert hub.requests == []


def test_the_librarys_own_offline_switch(hub: Hub, hub_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """$HF_HUB_OFFLINE counts too, and is named."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "$HF_HUB_OFFLINE forbids the network" in refused("huggingface:org/repo:Q4_0", hub_config)
    assert hub.requests == []


def test_disk_is_checked_first(hub: Hub, hub_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than the free disk is not asked for."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert "400.2 kB are needed" in refused("huggingface:org/repo:Q8_0", hub_config)
    assert {server for server, _, _, _ in hub.requests} == {"hub"}
