"""The web worker's connection to the scheduler: one DEALER, opened after the fork, driven by the event loop. No polling.

What is sent and how answers merge is decided in streams.py; this file moves bytes and wakes consumers. ZeroMQ's descriptor is
edge-triggered, so after every send and every receive both directions are looked at until neither moves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from helexa.errors import RequestError
from helexa.web.streams import LiveRequest, Reaction, Streams, Update
from ipc import codec, endpoints
from ipc.messages import PROTOCOL_VERSION, ClientMessage, Generate, Hello, ModelInfo, Want

log = logging.getLogger("helexa.web.engine")

ADMISSION_WAIT_S = 10.0  # a new request waits so long for a scheduler to take it, then 503 scheduler_down
LOADING_WAIT_S = 1.0  # a new request waits so long for a model that loads, then 503 model_loading
RESTART_WAIT_S = 10.0  # a new request waits so long for a model that answered before and lost its worker, then 503 no_worker
HEARTBEAT_S = 2.0
RECONNECT_MS = (50, 1000)
HIGH_WATER = 10_000  # messages queued in each direction before sends wait here, or the scheduler waits there


class Stream:
    """One live request as its consumer sees it. `news` is set whenever `read` or `refusal` may have something new."""

    def __init__(self, engine: EngineClient, request: LiveRequest, news: asyncio.Event) -> None:
        self._engine = engine
        self._request = request
        self.news = news

    @property
    def accepted(self) -> bool:
        return self._request.accepted

    @property
    def firm(self) -> bool:
        """It will not be refused any more."""
        return self._request.firm

    @property
    def refusal(self) -> RequestError | None:
        refused = self._request.refused
        return None if refused is None else RequestError(refused.code, refused.message, retry_after=refused.retry_after)

    def read(self) -> list[Update]:
        return self._request.read()

    def consumed(self, choice: int, count: int) -> None:
        """The client has been sent what the first `count` tokens of the choice became."""
        self._engine.react(self._engine.streams.consumed(self._request, choice, count))

    def stop(self, choice: int, keep: int) -> None:
        """A stop string was completed by the choice's output token number `keep`."""
        self._engine.react(self._engine.streams.stop(self._request, choice, keep))

    def close(self) -> None:
        """Cancels what is open; safe to call again."""
        self._engine.forget(self._request)


class EngineClient:
    """`any_name`: where one model is served, every name is its own. `load_wait_s`, `load_depth`: how long requests wait for a model
    that is loaded because they ask, and how many may."""

    def __init__(self, run_dir: Path, any_name: bool = False, load_wait_s: float = 30.0, load_depth: int = 256) -> None:
        self.streams = Streams()
        self._load_wait_s, self._load_depth = load_wait_s, load_depth
        self._num_waiting = 0
        self._any_name = any_name
        self._endpoint = endpoints.requests(run_dir)
        self._news: dict[str, asyncio.Event] = {}
        self._outbox: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._pumping = False

    # life

    def open(self) -> None:
        """Connects in the background; call within a running loop, after any fork."""
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, f"web-{os.getpid()}-{secrets.token_hex(8)}".encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues for a scheduler that is not there: the next Welcome asks again
        socket.setsockopt(zmq.MAXMSGSIZE, codec.MAX_CLIENT_BYTES)
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_S * 3000))
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        self._monitor = socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.fileno(), self._pump)
        self._loop.add_reader(self._monitor.fileno(), self._read_monitor)
        socket.connect(self._endpoint)
        self._read_monitor()

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    # what consumers use

    @property
    def connected(self) -> bool:
        return self.streams.connected

    @property
    def models(self) -> dict[str, ModelInfo]:
        return self.streams.models

    async def registry(self) -> dict[str, ModelInfo]:
        """What is served. Waits a little for a scheduler that restarts and names its models; RequestError when there is none."""
        try:
            async with asyncio.timeout(ADMISSION_WAIT_S):
                while not (self.connected and self.models):
                    await self.models_changed()
        except TimeoutError:
            if not self.connected:
                raise scheduler_down() from None
        return self.models

    async def model(self, given: str | None) -> ModelInfo:
        """The served model of that name, or the error that says why not. None: the only one."""
        name = self._served_name(given, await self.registry())
        if self.streams.draining:
            raise RequestError("shutting_down", "the server is shutting down; ask another instance, or again when it is back")
        await self._summoned(name)
        await self._loaded(name)
        info = await self._restarted(name)
        if info is None:
            raise model_not_found(name, self.models)
        if info.state == "failed":
            raise RequestError(
                "model_failed",
                f"model `{name}` could not be loaded: {info.error or 'no reason given'}. {info.remedy}".rstrip(),
                "model",
            )
        if info.state == "loading":
            raise RequestError("model_loading", f"model `{name}` is loading; ask again shortly", "model")
        return info

    def _served_name(self, given: str | None, models: dict[str, ModelInfo]) -> str:
        if len(models) == 1 and (given is None or self._any_name):
            return next(iter(models))
        if given is None:
            raise RequestError("invalid_value", f"`model` is required: one of {', '.join(models) or 'none'}", "model")
        return given

    async def _summoned(self, name: str) -> None:
        """Has a model loaded that is there on request only, and waits for it."""
        if not self._is_awaited(name):
            return
        if self._num_waiting >= max(1, self._load_depth):
            raise RequestError("queue_full", f"{self._num_waiting} requests wait for models to be loaded; try again later")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._load_wait_s):
                while self._is_awaited(name):
                    if self.models[name].state == "unloaded":
                        self._post([Want(name)])
                    await self.models_changed()
        except TimeoutError:
            message = f"model `{name}` could not be loaded within {self._load_wait_s:g} s, as others run; ask again shortly"
            raise RequestError("model_loading", message, "model") from None
        finally:
            self._num_waiting -= 1

    def _is_awaited(self, name: str) -> bool:
        info = self.models.get(name)
        return info is not None and info.on_request and info.state in ("unloaded", "loading")

    async def _loaded(self, name: str) -> None:
        """Waits a moment for a model that loads: the service may have said that it is ready before this process heard of it."""
        try:
            async with asyncio.timeout(LOADING_WAIT_S):
                while (info := self.models.get(name)) is not None and info.state == "loading":
                    await self.models_changed()
        except TimeoutError:
            pass  # it takes longer

    async def _restarted(self, name: str) -> ModelInfo | None:
        """The model of that name, once a worker or scheduler that was lost is back."""
        try:
            async with asyncio.timeout(RESTART_WAIT_S):
                while (info := self.models.get(name)) is not None and info.state == "restarting":
                    await self.models_changed()
        except TimeoutError:
            raise RequestError("no_worker", f"model `{name}` is being restarted; ask again shortly", "model") from None
        return info

    def submit(self, generate: Generate, news: asyncio.Event) -> Stream:
        request, reaction = self.streams.open(generate)
        self._news[request.req_id] = news
        self.react(reaction)
        return Stream(self, request, news)

    def forget(self, request: LiveRequest) -> None:
        if self._news.pop(request.req_id, None) is not None:
            self.react(self.streams.close(request))

    # reactions

    def react(self, reaction: Reaction) -> None:
        for request in reaction.news:
            self._news[request.req_id].set()
        if reaction.models_changed:
            self._changed.set()
            self._changed = asyncio.Event()
        self._post(reaction.send)

    async def models_changed(self) -> None:
        """Waits for the next word of the scheduler on what it serves."""
        await self._changed.wait()

    # bytes

    def _post(self, messages: list[ClientMessage]) -> None:
        self._outbox.extend(codec.encode(message) for message in messages)
        if messages:
            self._pump()

    def _pump(self) -> None:
        """Receives and sends until neither moves."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._receive_one() or self._send_one():
                pass
        finally:
            self._pumping = False

    def _receive_one(self) -> bool:
        try:
            data = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            message = codec.decode_scheduler(data)
        except codec.BadMessage as error:
            log.error("a message of the scheduler is dropped: %s", error)
            return True
        self.react(self.streams.receive(message))  # type: ignore[arg-type]
        return True

    def _send_one(self) -> bool:
        if not self._outbox:
            return False
        try:
            self._socket.send(self._outbox[0], zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._outbox.popleft()
        return True

    def _read_monitor(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            if event["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._disconnected()
                self._post([Hello(PROTOCOL_VERSION, client="web")])
            else:
                self._disconnected()

    def _disconnected(self) -> None:
        """What waits to be sent belongs to a connection that is gone; the next Welcome asks for everything again."""
        if self.connected:
            log.warning("the scheduler's connection is lost; running streams wait for the next one")
        self.streams.disconnected()
        self._outbox.clear()


def model_not_found(name: str, served: Iterable[str]) -> RequestError:
    names = ", ".join(f"`{known}`" for known in served) or "none"
    return RequestError("model_not_found", f"model `{name[:128]}` is not served here; served: {names}", "model")


def scheduler_down() -> RequestError:
    return RequestError(
        "scheduler_down", f"no scheduler took the request within {ADMISSION_WAIT_S:g} s; it is being restarted, ask again"
    )
