"""The scheduler's socket for clients: a ROUTER that never blocks, and the batches that go out over it.

What a client's pipe does not take is reported as not sent, and `blocked` says so; a client that is gone is reported once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec
import zmq

from helexa.scheduler.sequence import Sequence
from ipc import codec, messages
from ipc.codec import BadMessage

log = logging.getLogger("scheduler")

HIGH_WATER = 1000  # messages held for a client that does not read
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 15000
MESSAGES_A_TURN = 256

# (sequence, start, end, finish): the output ids [start, end) that are due, and the end when they reach it
Due = tuple[Sequence, int, int, messages.Finish | None]


class Refusal(Exception):
    """Bytes that are no message; `req_id` is the one they claim, or empty."""

    def __init__(self, req_id: str, message: str) -> None:
        super().__init__(message)
        self.req_id = req_id


class ClientSocket:
    """`clients` are those who said Hello; `on_gone` is told of one that cannot be reached any more."""

    def __init__(self, endpoint: str, on_gone: Callable[[bytes], None]) -> None:
        self.clients: set[bytes] = set()
        self.blocked = False  # some client's pipe is full
        self._on_gone = on_gone
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.ROUTER_HANDOVER, 1),
            (zmq.MAXMSGSIZE, codec.MAX_CLIENT_BYTES),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        ):
            self.socket.setsockopt(option, value)
        self.socket.bind(endpoint)

    def receive(self) -> Iterator[tuple[bytes, object]]:
        """(client, message or Refusal) of those that wait, a turn's worth."""
        for _ in range(MESSAGES_A_TURN):
            try:
                client, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield client, codec.decode_client(frames[0] if len(frames) == 1 else b"")
            except BadMessage as error:
                yield client, Refusal(_claimed_req_id(frames), str(error))

    def send(self, client: bytes, message: msgspec.Struct) -> bool:
        """Whether the client's pipe took it."""
        try:
            self.socket.send_multipart([client, codec.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self.blocked = True
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.clients.discard(client)
            self._on_gone(client)
            return False
        return True

    def announce(self, message: msgspec.Struct) -> None:
        for client in list(self.clients):
            self.send(client, message)

    def send_due(self, incarnation: int, due: Iterable[Due]) -> Iterator[Due]:
        """One message a client with all that is due; yields the parts that its pipe took. The others stay due."""
        batches: dict[bytes, _Batch] = {}
        for part in due:
            batches.setdefault(part[0].request.client, _Batch(incarnation)).add(part)
        for client, batch in batches.items():
            if self.send(client, batch.deltas):
                yield from batch.parts

    def close(self) -> None:
        self.socket.close()
        self._context.term()


class _Batch:
    """Deltas for one client, and what they say of which sequence."""

    def __init__(self, incarnation: int) -> None:
        self.deltas = messages.Deltas(incarnation, [], [], [], [])
        self.parts: list[Due] = []

    def add(self, part: Due) -> None:
        sequence, start, end, finish = part
        deltas, index, prompt = self.deltas, len(self.deltas.req_ids), sequence.request.prompt_len
        deltas.req_ids.append(sequence.request.req_id)
        deltas.choices.append(sequence.choice)
        deltas.starts.append(start)
        deltas.ids.append(sequence.tokens[prompt + start : prompt + end])
        if finish is not None:
            deltas.finishes[index] = finish
        if sequence.logprobs:
            deltas.logprobs[index] = [item or _NO_LOGPROBS for item in sequence.logprobs[start:end]]
        if sequence.prompt_logprobs and start == 0:
            deltas.prompt_logprobs[index] = sequence.prompt_logprobs
        if sequence.pooled and start == 0:
            deltas.pooled[index] = sequence.pooled
        if sequence.hashes:
            deltas.hashes[index] = sequence.hashes[start:end]
        self.parts.append(part)


_NO_LOGPROBS = messages.TokenLogprobs(0.0, [], [])


def _claimed_req_id(frames: list[bytes]) -> str:
    """The req_id of a message that is otherwise wrong, so that its sender can be told; empty where there is none."""
    try:
        value = msgspec.msgpack.decode(frames[0]) if len(frames) == 1 else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return ""
    req_id = value.get("req_id") if isinstance(value, dict) else None
    return req_id[:128] if isinstance(req_id, str) else ""
