"""A test peer that speaks the scheduler's side of the client protocol on a real socket. It is no part of the product.

It owns a thread with a ROUTER; tests reach into that thread by calling its methods, which wait for their turn there. A reply is a
pure function of the request, so a second peer with another incarnation goes on where the first was killed.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import zmq

from ipc import codec, endpoints
from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    Credit,
    Deltas,
    Finish,
    FinishAck,
    Generate,
    Hello,
    ModelInfo,
    Models,
    Refused,
    SchedulerMessage,
    Seated,
    TokenLogprobs,
    Welcome,
)

T = TypeVar("T")
EVERYTHING = 2**31

# (prompt_ids, seed, max_tokens) -> (output ids, finish reason, stop token)
Reply = Callable[[list[int], int, int], tuple[list[int], str, int | None]]


def model_info(name: str = "m", **changes: Any) -> ModelInfo:
    values: dict[str, Any] = {
        "name": name,
        "state": "ready",
        "source": "file:test",
        "files": {"gguf": "/nowhere/model.gguf"},
        "created": 1_700_000_000,
        "context": 256,
        "vocab": 260,
        "seats": 4,
        "fingerprint": "fp-test",
        "ops": "reference",
    }
    return ModelInfo(**{**values, **changes})


def echo_reply(prompt_ids: list[int], seed: int, max_tokens: int) -> tuple[list[int], str, int | None]:
    """The prompt again, until max_tokens or, after it, the end of sequence (id 256)."""
    ids = [*prompt_ids, 256]
    return (ids, "stop", 256) if len(ids) <= max_tokens else (ids[:max_tokens], "length", None)


@dataclass
class _Sequence:
    client: bytes
    request: Generate
    choice: int
    ids: list[int]
    finish: Finish
    sent: int
    credit: int
    finish_sent: bool = False


class FakeScheduler:
    def __init__(
        self,
        run_dir: Path,
        *,
        incarnation: int = 1,
        models: list[ModelInfo] | None = None,
        reply: Reply = echo_reply,
        allowed: int = EVERYTHING,
        per_delta: int = 1,
        overlap: int = 0,
        refuse: tuple[str, str, float | None] | None = None,
        silent: bool = False,
        full: bool = False,
    ) -> None:
        """`allowed` tokens of each choice are made at once, more by `allow`. Each delta has `per_delta` new ids after
        `overlap` old ones. `refuse` is (code, message, retry_after) for every new request. `silent`: nothing is accepted.
        `full`: requests are accepted, and wait for a seat until they are given up."""
        self.incarnation = incarnation
        self.models = [model_info()] if models is None else models
        self.draining = False
        self.pooled: Callable[[list[int]], bytes] | None = None  # a prompt's embedding, from a model that makes them
        self.received: list[Any] = []
        self._reply, self._allowed, self._per_delta, self._overlap = reply, allowed, per_delta, overlap
        self._refuse, self._silent, self._full = refuse, silent, full
        self._sequences: dict[tuple[bytes, str, int], _Sequence] = {}
        self._clients: set[bytes] = set()
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._wake, self._woken = socket.socketpair()
        self._arrived = threading.Condition()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(endpoints.requests(run_dir))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> FakeScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # from tests

    def kill(self) -> None:
        """Ends at once, as a crash would: what was sent may arrive, nothing more is."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._wake.send(b"x")
            self._thread.join()
            self._context.term()
            self._wake.close()
            self._woken.close()

    def give_up(self, code: str, message: str, retry_after: float) -> None:
        """Refuses all that was accepted."""

        def call() -> None:
            for client, req_id in {(client, req_id) for client, req_id, _ in self._sequences}:
                self._send(client, Refused(self.incarnation, req_id, code, message, retry_after))
            self._sequences.clear()

        self.call(call)

    def allow(self, tokens: int) -> None:
        """Makes up to `tokens` of each choice."""

        def call() -> None:
            self._allowed = tokens
            self._send_due()

        self.call(call)

    def fail(self, reason: str, error: str) -> None:
        """Every open choice ends with what was sent of it."""

        def call() -> None:
            for sequence in self._sequences.values():
                sequence.ids = sequence.ids[: sequence.sent]
                sequence.finish = self._finish(sequence.request, reason, sequence.sent, None, error)
            self._send_due()

        self.call(call)

    def sent(self) -> list[int]:
        """How many tokens of each open choice were sent."""
        return self.call(lambda: [sequence.sent for sequence in self._sequences.values()])

    def change_models(self, models: list[ModelInfo]) -> None:
        def call() -> None:
            self.models = models
            for client in self._clients:
                self._send(client, Models(self.incarnation, models, self.draining))

        self.call(call)

    def send_raw(self, data: bytes) -> None:
        def call() -> None:
            for client in self._clients:
                self._socket.send_multipart([client, data])

        self.call(call)

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` in the peer's thread."""
        answer: queue.Queue[T] = queue.Queue()
        self._calls.put(lambda: answer.put(function()))
        self._wake.send(b"x")
        return answer.get(timeout=10)

    def wait_for(self, kind: type[T], count: int = 1, where: Callable[[T], bool] = lambda _: True) -> list[T]:
        """Waits until so many messages of the kind came; returns them."""

        def found() -> list[T]:
            return [message for message in self.received if isinstance(message, kind) and where(message)]

        with self._arrived:
            if not self._arrived.wait_for(lambda: len(found()) >= count, timeout=10):
                raise AssertionError(f"{len(found())} of {count} {kind.__name__} came; received: {self.received}")
        return found()

    # in the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._woken.recv(1)
                call = self._calls.get()
                if call is None:
                    self._socket.close(0)
                    return
                call()
            if self._socket in ready:
                client, data = self._socket.recv_multipart()
                message = codec.decode_client(data)
                self._take(client, message)
                with self._arrived:
                    self.received.append(message)
                    self._arrived.notify_all()

    def _take(self, client: bytes, message: object) -> None:
        if isinstance(message, Hello):
            self._clients.add(client)
            self._send(client, Welcome(self.incarnation, PROTOCOL_VERSION, self.models, self.draining))
        elif isinstance(message, Generate) and not self._silent:
            self._generate(client, message)
        elif isinstance(message, Credit):
            sequence = self._sequences.get((client, message.req_id, message.choice))
            if sequence is not None:
                sequence.credit = max(sequence.credit, message.upto)
        elif isinstance(message, Abort):
            self._abort(client, message)
        elif isinstance(message, FinishAck):
            self._sequences.pop((client, message.req_id, message.choice), None)
        self._send_due()

    def _generate(self, client: bytes, message: Generate) -> None:
        if self._refuse is not None:
            code, text, retry_after = self._refuse
            self._send(client, Refused(self.incarnation, message.req_id, code, text, retry_after))
            return
        for choice, (held, seed) in enumerate(zip(message.output_ids, message.seeds, strict=True)):
            ids, reason, stop_token = self._reply(message.prompt_ids, seed, message.params.max_tokens)
            assert ids[: len(held)] == held, "a client gave back ids that it was never sent"
            finish = self._finish(message, reason, len(ids), stop_token, "")
            self._sequences[client, message.req_id, choice] = _Sequence(
                client, message, choice, ids, finish, len(held), message.credit
            )
        self._send(client, Accepted(self.incarnation, message.req_id))
        if self._full:
            self._allowed = 0
            return
        self._send(client, Seated(self.incarnation, [message.req_id]))

    def _abort(self, client: bytes, message: Abort) -> None:
        key = (client, message.req_id, message.choice)
        sequence = self._sequences.get(key)
        if sequence is None or sequence.finish_sent:
            return
        if message.reason == "cancel":
            del self._sequences[key]
        elif message.reason == "stop" and message.keep is not None:
            sequence.ids = sequence.ids[: message.keep]
            sequence.sent = min(sequence.sent, message.keep)
            sequence.finish = self._finish(sequence.request, "stop", message.keep, None, "")

    def _finish(self, request: Generate, reason: str, count: int, stop_token: int | None, error: str) -> Finish:
        return Finish(reason, len(request.prompt_ids), 0, count, stop_token, error)  # type: ignore[arg-type]

    def _send_due(self) -> None:
        """One delta a choice at a time, in turn, until none may send more."""
        moved = True
        while moved:
            moved = sum(self._send_delta(sequence) for sequence in list(self._sequences.values())) > 0

    def _send_delta(self, sequence: _Sequence) -> bool:
        end = min(len(sequence.ids), sequence.credit, self._allowed, sequence.sent + self._per_delta)
        ends = end == len(sequence.ids)
        if sequence.finish_sent or (end <= sequence.sent and not ends):
            return False
        start = max(0, sequence.sent - self._overlap)
        ids = sequence.ids[start:end]
        message = Deltas(self.incarnation, [sequence.request.req_id], [sequence.choice], [start], [ids])
        if sequence.request.params.logprobs >= 0:
            message.logprobs[0] = [TokenLogprobs(-0.5, [id, 65], [-0.5, -1.5]) for id in ids]
        if sequence.request.params.prompt_logprobs >= 0 and start == 0:
            message.prompt_logprobs[0] = [TokenLogprobs(-0.25, [id], [-0.25]) for id in sequence.request.prompt_ids[1:]]
        if sequence.request.params.hash_logits:
            message.hashes[0] = [id * 7 for id in ids]
        if self.pooled and message.starts[0] == 0:
            message.pooled[0] = self.pooled(sequence.request.prompt_ids)
        if ends:
            message.finishes[0] = sequence.finish
            sequence.finish_sent = True
        sequence.sent = end
        return self._send(sequence.client, message)

    def _send(self, client: bytes, message: SchedulerMessage) -> bool:
        try:
            self._socket.send_multipart([client, codec.encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            for key in [key for key in self._sequences if key[0] == client]:
                del self._sequences[key]
            self._clients.discard(client)
            return False
        return True
