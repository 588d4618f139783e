"""Sends hostile input to a running service: every HTTP route and field, raw HTTP, ZeroMQ frames, worker datagrams, control lines.

    python tools/fuzz.py RUN_DIRECTORY [--target http ...] [--count 100000] [--seed 0]

Everything is drawn from the seed, so a finding can be repeated. A finding is an answer of 500, an error without its envelope, a
service that does not answer, or processes that are not the same afterwards. Exit code 1 when there is one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import zmq

ANSWER_WAIT_S = 60.0
QUIET_MS = 10  # after so long nothing that was accepted still runs, or it waits for credit
RAW_WAIT_S = 0.02  # for what may be no whole request
Value = Any

NUMBERS: list[Value] = [-1, 0, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**40]
NUMBERS += [-0.0, 0.5, 1.5, -1e308, 1e308, 5e-324, math.nan, math.inf, -math.inf]
TEXTS: list[Value] = [
    "",
    " ",
    "0",
    "null",
    "é",
    "\x00",
    "\ud800",
    "\U0001f600" * 50,
    "a" * 10_000,
    "../../etc/passwd",
    "%2e%2e%2f",
]
TEXTS += ["/etc/passwd", "file:///etc/passwd", "{{''.__class__}}", "<|im_end|>", "<|endoftext|>", "(a+)+b", "[" * 500, "\r\nx: y"]
OTHERS: list[Value] = [None, True, False, [], {}, [[]], [None], [{}], {"": None}, [1, "a", None], [-1], [2**31], [10**9] * 20]


class Finding(Exception):
    """What the service should not have done, and the input that made it."""


def deep(random_: random.Random) -> Value:
    """A value nested deeper than anything meant."""
    value: Value = 1
    for _ in range(random_.choice([10, 64, 500])):
        value = [value] if random_.random() < 0.5 else {"a": value}
    return value


def hostile(random_: random.Random) -> Value:
    kind = random_.random()
    if kind < 0.02:
        return deep(random_)
    if kind < 0.1:
        return {random_.choice(TEXTS): hostile(random_) for _ in range(random_.randrange(4))}
    if kind < 0.2:
        return [hostile(random_) for _ in range(random_.randrange(4))]
    return random_.choice(random_.choice([NUMBERS, TEXTS, OTHERS]))


def mutated(value: Value, random_: random.Random, names: list[str]) -> Value:
    """The value with something in it replaced, left out, or added under one of the names."""
    if isinstance(value, dict) and value and random_.random() < 0.9:
        changed = dict(value)
        key = random_.choice([*changed, *names]) if names else random_.choice(list(changed))
        if key in changed and random_.random() < 0.5:
            changed[key] = mutated(changed[key], random_, [])
        elif key in changed and random_.random() < 0.2:
            del changed[key]
        else:
            changed[key] = hostile(random_)
        return changed
    if isinstance(value, list) and value and random_.random() < 0.8:
        at = random_.randrange(len(value))
        return [*value[:at], mutated(value[at], random_, []), *value[at + 1 :]]
    return hostile(random_)


def scrambled(data: bytes, random_: random.Random) -> bytes:
    """Bytes cut, repeated, flipped, or nothing of the kind at all."""
    kind, at = random_.randrange(5), random_.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at // 2 :]
    if kind == 2 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([random_.randrange(256)]) + data[at + 1 :]
    if kind == 3:
        return random_.randbytes(random_.choice([1, 2, 10, 100, 5000]))
    return data * random_.choice([2, 3])


class HttpTarget:
    """JSON bodies on every route, with the fields that /openapi.json names."""

    def __init__(self, run_dir: Path) -> None:
        self.port = int(run_dir.name)
        self.statuses: Counter[int] = Counter()
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WAIT_S)
        model = json.loads(self._ask("GET", "/v1/models", b"")[1])["data"][0]["id"]
        words = [{"role": "user", "content": "hello"}]
        self.bodies: dict[str, Value] = {
            "/v1/completions": {"model": model, "prompt": "hello", "max_tokens": 3},
            "/v1/chat/completions": {"model": model, "messages": words, "max_tokens": 3},
            "/v1/responses": {"model": model, "input": words, "max_output_tokens": 3},
            "/v1/messages": {"model": model, "messages": words, "max_tokens": 3},
            "/v1/messages/count_tokens": {"model": model, "messages": words},
            "/v1/embeddings": {"model": model, "input": "hello"},
            "/tokenize": {"model": model, "prompt": "hello"},
            "/detokenize": {"model": model, "tokens": [5, 6]},
        }
        described = json.loads(self._ask("GET", "/openapi.json", b"")[1])
        self.names = {path: sorted(_property_names(described, path)) for path in self.bodies}

    def send(self, random_: random.Random) -> None:
        path = random_.choice(list(self.bodies))
        body: Value = self.bodies[path]
        if random_.random() < 0.3:
            body = {**body, "stream": True}
        for _ in range(random_.choice([0, 1, 1, 1, 2, 3])):
            body = mutated(body, random_, self.names[path])
        data = json.dumps(body).encode()
        if random_.random() < 0.1:
            data = scrambled(data, random_)
        if random_.random() < 0.05:
            path = random_.choice(["/v1/models/", "/v1/", "/", "//"]) + _path_text(random_)
        status, answer = self._ask(random_.choice(["POST"] * 20 + ["GET", "PUT", "DELETE", "PATCH"]), path, data)
        self.statuses[status] += 1
        if status >= 500 and status != 503:
            raise Finding(f"{status} {answer[:500]!r} for {path} {data[:2000]!r}")
        if status >= 400 and not _is_envelope(answer):
            raise Finding(f"{status} without an envelope: {answer[:500]!r} for {path} {data[:2000]!r}")

    def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        for attempt in (1, 2):
            try:
                self._connection.request(method, path, body, {"Content-Type": "application/json"})
                response = self._connection.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, ConnectionError) as error:
                self._connection.close()  # the server may close a connection that was idle, but a new one it answers
                if attempt == 2:
                    raise Finding(f"{type(error).__name__}: {error} for {method} {path} {body[:2000]!r}") from None
            except TimeoutError:
                raise Finding(f"no answer to {method} {path} {body[:2000]!r}") from None
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


def _is_envelope(answer: bytes) -> bool:
    try:
        return "error" in json.loads(answer)
    except (ValueError, TypeError):
        return False


def _property_names(described: Value, path: str) -> Iterator[str]:
    def walk(node: Value) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                target = described
                for part in node["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
                yield from target.get("properties", {})
            yield from node.get("properties", {}) if isinstance(node.get("properties"), dict) else ()
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    yield from set(walk(described["paths"].get(path, {}).get("post", {}).get("requestBody", {})))


def _path_text(random_: random.Random) -> str:
    text = random_.choice(
        ["../x", "%2e%2e%2f" * 3, "%00", "/etc/passwd", "a" * 3000, "?a=%zz", "..%5c..", "%ff", ";a=b", "x" * 20]
    )
    return "".join(character for character in text if character > " ")


class RawHttpTarget:
    """Bytes that are no request, or hardly: the answer is an error, or the connection closes."""

    def __init__(self, run_dir: Path) -> None:
        self.port = int(run_dir.name)

    def send(self, random_: random.Random) -> None:
        body = b'{"model": "x", "prompt": "a"}'
        head = [
            random_.choice(
                [b"POST /v1/completions HTTP/1.1", b"GET /health HTTP/1.1", b"GET / HTTP/9.9", b"X" * 9000, b"PRI * HTTP/2.0"]
            ),
            b"Host: 127.0.0.1",
            random_.choice(
                [b"Content-Length: %d" % len(body), b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 99999999"]
            ),
            random_.choice(
                [
                    b"X: y",
                    b"Transfer-Encoding: chunked",
                    b"Transfer-Encoding: xchunked",
                    b"X" * 70_000 + b": y",
                    b": y",
                    b"\0: \0",
                ]
            ),
            random_.choice(
                [b"Content-Type: application/json", b"Content-Encoding: gzip", b"Expect: 100-continue", b"Upgrade: websocket"]
            ),
        ]
        data = random_.choice([b"\r\n", b"\r\n", b"\r\n", b"\n"]).join([*head, b"", body])
        if random_.random() < 0.5:
            data = scrambled(data, random_)
        with socket.create_connection(("127.0.0.1", self.port), RAW_WAIT_S) as connection:
            answer = b""
            try:
                connection.sendall(data)
                while (part := connection.recv(65536)) and len(answer) < 10**6:
                    answer += part
            except OSError:  # the server waits for the rest of it, or need not hear all of it
                pass
        if answer.startswith(b"HTTP/1.1 500"):
            raise Finding(f"{answer[:500]!r} for {data[:2000]!r}")

    def close(self) -> None:
        pass


# what the protocol allows, at its edges: the engine has to live with all of it
EDGES: dict[str, list[Value]] = {
    "max_tokens": [1, 2, 30, 120],
    "min_tokens": [0, 1, 3, 200, 2**31 - 1],
    "temperature": [0.0, 1e-30, 0.5, 100.0],
    "top_k": [0, 1, 300, 2**31 - 1],
    "top_p": [1e-30, 0.5, 1.0],
    "min_p": [0.0, 1e-30, 1.0],
    "repetition_penalty": [1e-30, 1.5, 100.0],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2.0],
    "logit_bias": [{258: 100.0}, dict.fromkeys(range(259), -100.0), dict.fromkeys(range(259), 100.0)],
    "stop_token_ids": [[5] * 64, list(range(64)), [258]],
    "ignore_eos": [True, False],
    "logprobs": [-1, 0, 20],
    "prompt_logprobs": [-1, 0, 20],
    "hash_logits": [True],
    "grammar": [
        "start: /a+/",
        'start: "a"',
        "start: /(a+)+b/",
        "x",
        "start: start",
        "start: /[a-z]{1000000}/",
        "\0",
        "(" * 30_000,
    ],
    "thinking_budget": [-1, 0, 1, 5, 2**31 - 1],
    "thinking_open": [[], [5], [5, 6]],
    "thinking_close": [[], [6], [6] * 64, [0]],
    "thinking_inside": [True, False],
}


class ZmqTarget:
    """Messages of the client protocol, wrong in every way; what is accepted runs."""

    def __init__(self, run_dir: Path) -> None:
        self._endpoint = f"ipc://{run_dir / 'requests.ipc'}"
        self._context = zmq.Context()
        self._open()
        self._sent = 0
        self.answers: Counter[str] = Counter()
        self.finishes: Counter[str] = Counter()
        params = {"max_tokens": 3, "temperature": 0.5, "top_k": 5, "logit_bias": {5: 1.0}, "stop_token_ids": [7], "logprobs": 2}
        generate = {"type": "generate", "req_id": "a", "model": self._model(), "prompt_ids": [5, 6, 7], "output_ids": [[]]}
        self._messages: list[Value] = [
            {**generate, "seeds": [1], "params": params, "credit": 100},
            {"type": "hello", "protocol": 1, "client": "fuzz"},
            {"type": "abort", "req_id": "a", "choice": 0, "reason": "stop", "keep": 1},
            {"type": "credit", "req_id": "a", "choice": 0, "upto": 10},
            {"type": "finish_ack", "req_id": "a", "choice": 0},
            {"type": "embed", "req_id": "a", "model": "x", "prompt_ids": [1]},
            {"type": "want", "model": "x"},
        ]
        self._names = ["type", "req_id", "choice", "resumed", "priority", "key", "cache_salt", "output_ids", "seeds", "x"]

    def _open(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._endpoint)

    def _model(self) -> str:
        self._socket.send(msgpack.packb({"type": "hello", "protocol": 1}))
        while self._socket.poll(ANSWER_WAIT_S * 1000):
            answer = msgpack.unpackb(self._socket.recv(), strict_map_key=False)
            if answer["type"] == "welcome":
                return str(answer["models"][0]["name"])
        raise Finding("no welcome")

    def send(self, random_: random.Random) -> None:
        message = random_.choice([self._messages[0], random_.choice(self._messages)])
        if "req_id" in message and random_.random() < 0.8:
            message = {**message, "req_id": str(random_.randrange(1000))}
        if "params" in message and random_.random() < 0.6:
            edges = random_.sample(sorted(EDGES), random_.randrange(1, 6))
            params = {**message["params"], **{name: random_.choice(EDGES[name]) for name in edges}}
            prompt = [random_.randrange(259) for _ in range(random_.choice([1, 15, 16, 17, 100]))]
            seeds = [random_.getrandbits(63) for _ in range(random_.choice([1, 1, 2, 5]))]
            message = {**message, "params": params, "prompt_ids": prompt, "seeds": seeds, "output_ids": [[] for _ in seeds]}
        else:
            for _ in range(random_.choice([0, 1, 1, 2, 3])):
                message = mutated(message, random_, self._names)
        data = _packed(message)
        if random_.random() < 0.15:
            data = random_.choice([scrambled(data, random_), b"\x91" * 100_000, b"\x81\xa1a" * 20_000, b"\xc7\x05\x01abcde", b""])
        frames = [data] if random_.random() < 0.95 else [data, random_.randbytes(5), b""]
        self._socket.send_multipart(frames)
        self._sent += 1
        if self._sent % 25 == 0:  # what was accepted runs, or is dropped with its client
            self._read(message)
        if self._sent % 500 == 0:
            self._socket.close()
            self._open()

    def _read(self, message: Value) -> None:
        """Takes what is answered until everything that was accepted has ended, or says nothing any more."""
        self._socket.send(msgpack.packb({"type": "hello", "protocol": 1}))
        welcome = False
        while self._socket.poll(ANSWER_WAIT_S * 1000 if not welcome else QUIET_MS):
            answer = msgpack.unpackb(self._socket.recv(), strict_map_key=False)
            welcome = welcome or answer["type"] == "welcome"
            self.answers[answer["type"]] += 1
            if answer["type"] == "deltas":
                self.finishes.update(finish["reason"] for finish in answer["finishes"].values())
            if answer["type"] == "refused" and answer["code"] == "internal_error":
                raise Finding(f"{answer} after {message}")
        if not welcome:
            raise Finding(f"no welcome after {message}")

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def _packed(value: Value) -> bytes:
    try:
        return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
    except (OverflowError, ValueError):  # a number that msgpack has no form for, or a depth
        return b"\xcf" + b"\xff" * 8


class WorkerTarget:
    """Datagrams on the socket of device workers, from one that is none."""

    def __init__(self, run_dir: Path) -> None:
        self._path = str(run_dir / "workers.sock")
        self._messages: list[Value] = [
            ["register", "tiny", 0, 1, 1, 1],
            ["loaded", 2**40, "", 0, 1, 512, 259, [2], [[1, 1.0]], 0.1, "x", "x", "", "x", 0.1],
            ["ready", 1],
            ["result", 1, 1, 0, True, [0], [5], {}, {}, 1.0],
            ["row_error", 1, 1, 0, "x", "row"],
            ["prompt_logprobs", 1, 1, 0, 0, []],
            ["fault", "device", "x"],
        ]

    def send(self, random_: random.Random) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self._path)
            connection.settimeout(ANSWER_WAIT_S)
            for _ in range(random_.choice([1, 1, 2, 4])):
                data = _packed(mutated(random_.choice(self._messages), random_, []))
                data = scrambled(data, random_) if random_.random() < 0.2 else data
                try:
                    connection.send(data[:150_000] or b"x")
                except ConnectionError:
                    return

    def close(self) -> None:
        pass


class ControlTarget:
    """Lines on the operators' socket; none that an operator could have meant."""

    def __init__(self, run_dir: Path) -> None:
        self._path = str(run_dir / "control.sock")
        self._commands: list[Value] = [
            {"v": 1, "cmd": "status"},
            {"v": 1, "cmd": "metrics"},
            {"v": 1, "cmd": "load", "model": "file:/nowhere/x.gguf"},
            {"v": 1, "cmd": "unload", "model": "nothing"},
            {"v": 1, "cmd": "abort", "id": "nothing"},
            {"v": 1, "cmd": "flush-cache", "model": "nothing"},
            {"v": 1, "cmd": "log-level", "level": "loud"},
        ]

    def send(self, random_: random.Random) -> None:
        commands = (
            self._commands if random_.random() < 0.05 else self._commands[:2] + self._commands[3:]
        )  # a load starts processes
        command = mutated(random_.choice(commands), random_, ["v", "cmd", "model", "name", "level", "x"])
        line = json.dumps(command).encode()
        if random_.random() < 0.2:
            line = random_.choice([scrambled(line, random_), b"[" * 30_000, b"x" * 70_000, b"\xff\xfe"])
        if b'"pause"' in line or b'"drain"' in line or b'"reload"' in line:
            return
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            connection.settimeout(ANSWER_WAIT_S)
            try:
                connection.sendall(line + b"\n")
                answer = connection.makefile("rb").readline()
            except ConnectionError:
                return
            except TimeoutError:
                raise Finding(f"no answer to {line[:1000]!r}") from None
        if answer and "ok" not in json.loads(answer):
            raise Finding(f"{answer!r} for {line[:1000]!r}")

    def close(self) -> None:
        pass


TARGETS: dict[str, Callable[[Path], Any]] = {
    "http": HttpTarget,
    "raw": RawHttpTarget,
    "zmq": ZmqTarget,
    "worker": WorkerTarget,
    "control": ControlTarget,
}


def fuzz(run_dir: Path, target: str, count: int, seed: int) -> Any:
    """Sends `count` inputs; returns the target. Raises Finding, with the seed of the input."""
    aim = TARGETS[target](run_dir)
    try:
        for number in range(count):
            one = f"{seed}/{target}/{number}"
            try:
                aim.send(random.Random(one))
            except Finding as finding:
                raise Finding(f"{one}: {finding}") from None
    finally:
        aim.close()
    return aim


def pids(run_dir: Path) -> dict[str, Value]:
    """The scheduler's pid and incarnation, and how often workers were lost; the same before and after."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_WAIT_S)
        connection.connect(str(run_dir / "control.sock"))
        connection.sendall(b'{"v": 1, "cmd": "status"}\n')
        status = json.loads(connection.makefile().readline())
    losses = [model["counters"]["worker_losses"] for model in status["models"] if "counters" in model]
    return {"scheduler": status["pid"], "incarnation": status["incarnation"], "losses": losses}


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends hostile input to a running service; use one that nobody else needs.")
    parser.add_argument("run_dir", type=Path, help="its run directory, as its start-up report names it")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="may be repeated; default: all")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    before = pids(options.run_dir)
    for target in options.target or TARGETS:
        started = time.monotonic()
        try:
            fuzz(options.run_dir, target, options.count, options.seed)
        except Finding as finding:
            print(f"{target}: {finding}")
            return 1
        print(f"{target}: {options.count} inputs in {time.monotonic() - started:.1f} s", flush=True)
    after = pids(options.run_dir)
    if after != before:
        print(f"before: {before}; after: {after}")
    return int(after != before)


if __name__ == "__main__":
    sys.exit(main())
