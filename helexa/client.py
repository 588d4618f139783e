"""A synchronous client of the scheduler, with no HTTP in between: pyzmq and msgpack are all it needs.

    with Client(run_dir) as client:
        for token in client.generate([1, 2, 3], max_tokens=16):
            print(token.id)

It keeps the promise of the web tier: a scheduler that dies is a pause. Every generation is asked for again from the next one, and
its ids come once each. One client may hold many generations: `submit` them, then `poll`. A client belongs to one thread.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgpack
import zmq
from zmq.utils.monitor import parse_monitor_message

from helexa.errors import RequestError
from ipc import endpoints
from ipc.receiver import Gap, HeldOutput

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CONNECT_WAIT_S = 5.0

Message = dict[str, Any]


@dataclass(frozen=True)
class Token:
    """One output token. `index` counts from 0 in its choice; `top` is [(id, logprob)] of the likeliest, where asked for."""

    id: int
    index: int
    choice: int = 0
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    hash: int | None = None  # of the logits the token was drawn from, with hash_logits


@dataclass(frozen=True)
class Finish:
    """How a choice ended: `stop`, `length`, `abort` or `error`."""

    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    stop_token: int | None = None
    error: str = ""


@dataclass
class _Choice:
    held: HeldOutput
    logprobs: dict[int, Any] = field(default_factory=dict)
    hashes: dict[int, int] = field(default_factory=dict)
    prompt_logprobs: list[Any] = field(default_factory=list)
    pooled: bytes = b""
    taken: int = 0
    finish: Finish | None = None

    def untaken(self) -> range:
        return range(self.taken, len(self.held.ids))


class Generation:
    """One request: iterate it for its tokens, of all choices as they come. `finish` is set once it has ended."""

    def __init__(self, client: Client, request: Message, credit: int) -> None:
        self._client = client
        self._request = request
        self.req_id: str = request["req_id"]
        self._choices = [_Choice(HeldOutput(credit)) for _ in request["seeds"]]
        self._accepted = False
        self._refused: RequestError | None = None

    @property
    def finishes(self) -> list[Finish | None]:
        """One a choice."""
        return [choice.finish for choice in self._choices]

    @property
    def finish(self) -> Finish | None:
        """The first choice's."""
        return self._choices[0].finish

    @property
    def ended(self) -> bool:
        return self._refused is not None or None not in self.finishes

    def ids(self, choice: int = 0) -> list[int]:
        """Every output id that is here, taken or not."""
        return list(self._choices[choice].held.ids)

    def prompt_logprobs(self, choice: int = 0) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
        """Of each prompt token but the first, once there is output and where they were asked for: (logprob, [(id, logprob)])."""
        scores = self._choices[choice].prompt_logprobs
        return [(logprob, tuple(zip(ids, values, strict=True))) for logprob, ids, values in scores]

    def take(self) -> list[Token]:
        """The tokens that came since the last call; the engine may then make as many more. Raises RequestError when refused."""
        self._client._news.pop(self.req_id, None)
        if self._refused is not None:
            raise self._refused
        tokens = [self._token(number, choice, at) for number, choice in enumerate(self._choices) for at in choice.untaken()]
        for number, choice in enumerate(self._choices):
            choice.taken = len(choice.held.ids)
            upto = choice.held.consumed(choice.taken)
            if upto is not None:
                self._client._send({"type": "credit", "req_id": self.req_id, "choice": number, "upto": upto})
        return tokens

    def __iter__(self) -> Iterator[Token]:
        while True:
            ended = self.ended
            yield from self.take()
            if ended:
                return
            self._client._wait_for(self)

    def cancel(self) -> None:
        """Frees everything the generation holds; what came stays here."""
        self._client._cancel(self)

    def _token(self, number: int, choice: _Choice, at: int) -> Token:
        logprob, ids, values = choice.logprobs.pop(at, (None, (), ()))
        return Token(choice.held.ids[at], at, number, logprob, tuple(zip(ids, values, strict=True)), choice.hashes.pop(at, None))

    # what the client does with it

    def _end(self) -> list[int]:
        """Ends the choices that are open, as cancelled; returns which."""
        ended = [number for number, choice in enumerate(self._choices) if choice.finish is None]
        for number in ended:
            choice = self._choices[number]
            choice.finish, choice.held.finished = Finish("abort", len(self._request["prompt_ids"]), 0, len(choice.held.ids)), True
        return ended

    def _submission(self) -> list[Message]:
        """Asks for all that is not here; see ipc/README.md."""
        still_open = [choice.held.upto for choice in self._choices if choice.finish is None]
        credit = min(still_open)
        outputs = [choice.held.ids for choice in self._choices]
        resumed = self._accepted or any(outputs)
        messages: list[Message] = [{**self._request, "output_ids": outputs, "credit": credit, "resumed": resumed}]
        for number, choice in enumerate(self._choices):
            if choice.finish is not None:
                messages.append({"type": "abort", "req_id": self.req_id, "choice": number, "reason": "cancel"})
            elif choice.held.upto > credit:
                messages.append({"type": "credit", "req_id": self.req_id, "choice": number, "upto": choice.held.upto})
        return messages

    def _merge(self, message: Message, entry: int) -> bool:
        """Takes one entry of a Deltas; returns whether an end is to be acknowledged. Raises Gap."""
        self._accepted = True
        choice = self._choices[message["choices"][entry]]
        start, ids, finish = message["starts"][entry], message["ids"][entry], message["finishes"].get(entry)
        logprobs, hashes = message["logprobs"].get(entry), message["hashes"].get(entry)
        choice.prompt_logprobs = message["prompt_logprobs"].get(entry, choice.prompt_logprobs)
        choice.pooled = message["pooled"].get(entry, choice.pooled)
        dropped = choice.held.merge(start, ids)
        new = range(dropped, len(ids))
        choice.logprobs.update({start + i: logprobs[i] for i in new} if logprobs else {})
        choice.hashes.update({start + i: hashes[i] for i in new} if hashes else {})
        if finish is None:
            return False
        if choice.finish is None:
            choice.finish, choice.held.finished = Finish(**finish), True
        return True


class Client:
    """`target` is a run directory or a ZeroMQ endpoint. `credit`: tokens the engine may run ahead of whoever takes them."""

    def __init__(self, target: str | Path, *, name: str = "client", credit: int = 512) -> None:
        text = str(target)
        self.incarnation: int | None = None
        self._credit = credit
        self._name = name
        self._models: list[Message] = []
        self._connected = False
        self._submitted = False  # on this connection
        self._live: dict[str, Generation] = {}
        self._news: dict[str, Generation] = {}  # by req_id, until taken
        self._unsent: list[bytes] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, f"{name[:64]}-{os.getpid()}-{secrets.token_hex(8)}".encode()),
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.SNDHWM, 10_000),
            (zmq.RCVHWM, 10_000),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.RECONNECT_IVL, 50),
            (zmq.RECONNECT_IVL_MAX, 1000),
        ):
            self._socket.setsockopt(option, value)
        self._monitor = self._socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)
        self._socket.connect(text if "://" in text else endpoints.requests(Path(text)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what runs. The scheduler drops a client that is gone in any case."""
        for generation in list(self._live.values()):
            generation.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def models(self, wait_s: float = CONNECT_WAIT_S) -> list[Message]:
        """The served models, as maps with the keys of ModelInfo (ipc/messages.py). RequestError when no scheduler answers."""
        deadline = time.monotonic() + wait_s
        while not (self._connected and self._models) and time.monotonic() < deadline:
            self._step(deadline)
        if not self._connected:
            raise RequestError("scheduler_down", f"no scheduler answered within {wait_s:g} s; is the server running?")
        return list(self._models)

    def generate(self, prompt_ids: Iterable[int], **options: Any) -> Generation:
        """`submit`, to be iterated."""
        return self.submit(prompt_ids, **options)

    def submit(
        self,
        prompt_ids: Iterable[int],
        *,
        model: str | None = None,
        max_tokens: int = 128,
        seed: int | None = None,
        seeds: Sequence[int] | None = None,
        key: str = "",
        priority: str = "interactive",
        cache_salt: str = "",
        **params: Any,
    ) -> Generation:
        """Starts a generation and returns at once. `model`: the only one, if there is one. `seeds` has one a choice; `key` is whom
        the work is counted for, `priority` may be `background`, cached prefixes are shared under one `cache_salt`; `params` are
        those of SamplingParams (ipc/messages.py): temperature, top_k, logprobs, hash_logits, ..."""
        if seeds is None:
            seeds = [secrets.randbits(63) if seed is None else seed]
        request = {
            "type": "generate",
            "req_id": f"{self._name[:64]}-{secrets.token_hex(12)}",
            "model": self._only_model() if model is None else model,
            "prompt_ids": list(prompt_ids),
            "seeds": list(seeds),
            "params": {"max_tokens": max_tokens, **params},
            "key": key,
            "priority": priority,
            "cache_salt": cache_salt,
            "instance": 0,
        }
        request["instance"] = self._instance_of(str(request["model"]))
        generation = Generation(self, request, self._credit)
        self._live[generation.req_id] = generation
        for message in generation._submission():
            self._send(message)
        return generation

    def embed(self, prompt_ids: Iterable[int], *, model: str | None = None, **options: Any) -> list[float]:
        """The prompt's embedding as the model pooled it, of no certain length; blocks for it. `options` are those of `submit`.
        RequestError where the model makes none."""
        name = self._only_model() if model is None else model
        pooling = next((info["pooling"] for info in self.models() if info["name"] == name), "")
        if not pooling:
            raise RequestError("embeddings_unsupported", f"model `{name}` is not served, or makes no embeddings", "model")
        rows = 0 if pooling == "mean" else -1  # a mean wants all of the prompt's
        generation = self.submit(prompt_ids, model=name, max_tokens=1, seed=0, temperature=0.0, prompt_logprobs=rows, **options)
        for _ in generation:
            pass
        finish, pooled = generation.finish, generation._choices[0].pooled
        if finish is None or finish.reason == "error" or not pooled:
            raise RequestError("generation_failed", f"no embedding: {finish.error if finish else 'no reason given'}")
        return list(struct.unpack(f"<{len(pooled) // 4}f", pooled))

    def poll(self, wait_s: float | None = None) -> list[Generation]:
        """Waits until generations have news, at most `wait_s` seconds, and returns them; it stays news until taken."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while not self._news and self._live:
            self._step(deadline)
            if deadline is not None and time.monotonic() >= deadline:
                break
        return list(self._news.values())

    def _instance_of(self, model: str) -> int:
        """Which loading of a model a request is for, as far as that is known yet: it stays with that one."""
        return next((int(info["instance"]) for info in self._models if info["name"] == model), 0)

    # what Generation uses

    def _wait_for(self, generation: Generation) -> None:
        while generation.req_id in self._live and generation.req_id not in self._news:
            self._step(None)

    def _cancel(self, generation: Generation) -> None:
        self._news.pop(generation.req_id, None)
        if self._live.pop(generation.req_id, None) is not None:
            for number in generation._end():
                self._send({"type": "abort", "req_id": generation.req_id, "choice": number, "reason": "cancel"})

    def _send(self, message: Message) -> None:
        """Nothing is sent while no scheduler is there: the next one is asked for everything."""
        if self._submitted:
            self._unsent.append(msgpack.packb(message))
            self._flush()

    # the sockets

    def _only_model(self) -> str:
        names = [str(model["name"]) for model in self.models()]
        if len(names) != 1:
            raise RequestError(
                "model_not_found", f"name one of the served models: {', '.join(names) or 'there is none'}", "model"
            )
        return names[0]

    def _step(self, deadline: float | None) -> None:
        """Waits for something to happen, then takes all that has."""
        self._poller.modify(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
        wait = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000 + 0.999))
        self._poller.poll(wait)
        self._read_monitor()
        while (data := self._receive()) is not None:
            for generation in self._take(_decode(data)):
                self._news[generation.req_id] = generation
                if generation.ended:
                    self._live.pop(generation.req_id, None)
        self._flush()

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            self._connected = self._submitted = False
            self._unsent.clear()
            if event["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._unsent.append(msgpack.packb({"type": "hello", "protocol": PROTOCOL_VERSION, "client": self._name}))

    def _receive(self) -> bytes | None:
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            del self._unsent[0]

    # messages

    def _take(self, message: Message) -> list[Generation]:
        kind = message.get("type")
        if kind == "welcome":
            self._welcome(message)
            return []
        if message.get("incarnation") != self.incarnation:
            return []
        if kind == "models":
            self._serves(message["models"])
            return []
        if kind == "deltas":
            return [generation for entry in range(len(message["req_ids"])) for generation in self._take_delta(message, entry)]
        if kind == "seated":
            for req_id in message["req_ids"]:
                if req_id in self._live:
                    self._live[req_id]._accepted = True
            return []
        generation = self._live.get(str(message.get("req_id")))
        if generation is None:
            return []
        if kind == "refused":
            generation._refused = RequestError(message["code"], message["message"], retry_after=message["retry_after"])
        elif kind == "accepted":
            generation._accepted = True
        return [generation]

    def _welcome(self, message: Message) -> None:
        if message["protocol"] != PROTOCOL_VERSION:
            raise RequestError(
                "scheduler_down", f"the scheduler speaks protocol {message['protocol']}, this client {PROTOCOL_VERSION}"
            )
        self._connected, self._submitted, self.incarnation = True, False, message["incarnation"]
        self._serves(message["models"])

    def _serves(self, models: list[Message]) -> None:
        """A scheduler that has just started may not know its models yet, and would refuse everything."""
        self._models = models
        if models and not self._submitted:
            self._submitted = True
            for generation in self._live.values():
                for submission in generation._submission():
                    self._send(submission)

    def _take_delta(self, message: Message, entry: int) -> list[Generation]:
        req_id, number = message["req_ids"][entry], message["choices"][entry]
        generation = self._live.get(req_id)
        ended = {"type": "finish_ack", "req_id": req_id, "choice": number}
        if generation is None:
            unwanted = {"type": "abort", "req_id": req_id, "choice": number, "reason": "cancel"}
            self._send(ended if entry in message["finishes"] else unwanted)
            return []
        try:
            if generation._merge(message, entry):
                self._send(ended)
        except Gap:
            for submission in generation._submission():
                self._send(submission)
        return [generation]


def _decode(data: bytes) -> Message:
    """Plain msgpack: no extension types, integer keys allowed."""
    message = msgpack.unpackb(data, strict_map_key=False, ext_hook=_refuse_extension)
    if not isinstance(message, dict):
        raise RequestError("scheduler_down", "the peer does not speak this protocol")
    return message


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"msgpack extension type {code}")
