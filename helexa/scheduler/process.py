"""The scheduler process: `python -P -m helexa.scheduler.process`. It binds every socket and owns no device.

One loop: wait for a message or a deadline, hand messages to the engines, plan a step for each worker that is free, send what
became due. Nothing in it blocks but the wait.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec
import zmq

from helexa import config as configuration
from helexa import logs
from helexa.config import Config
from helexa.errors import RequestError
from helexa.metrics import Metrics
from helexa.scheduler import control
from helexa.scheduler.engine import Engine
from helexa.scheduler.sequence import Sequence
from helexa.watching import LONGEST_SLEEP_S, Silence, WatchedTime
from ipc import codec, endpoints, installation, messages, sockets
from ipc.codec import BadMessage
from ipc.sockets import Closed, Link

log = logging.getLogger("scheduler")

CLIENT_HIGH_WATER = 1000  # messages held for a client that does not read
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 15000
RETRY_SEND_MS = 20  # while a client's pipe is full
CLIENT_MESSAGES_A_TURN = 256
CONTROL_CONNECTIONS = 32


class SchedulerProcess:
    def __init__(self, config: Config, run_dir: Path, leash: Link) -> None:
        self.config = config
        self.leash = leash
        self.incarnation = secrets.randbits(48) | 1
        self.metrics = Metrics()
        self.engines = self.metrics.engines
        self.clients: set[bytes] = set()
        self.links: dict[int, tuple[Link, str | None]] = {}  # by descriptor: connection, and its model once registered
        self.control: dict[int, tuple[socket.socket, bytearray]] = {}
        self.planned_at: dict[str, float] = {}
        self.watched = WatchedTime(time.monotonic())
        self.steps = Silence()  # of models whose worker computes
        self.blocked = False  # some client's pipe is full
        self.context = zmq.Context()
        self.router = self._bind_router(endpoints.requests(run_dir))
        self.workers = sockets.listen(str(endpoints.workers_socket(run_dir)))
        self.operators = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control_path = endpoints.control_socket(run_dir)
        control_path.unlink(missing_ok=True)
        self.operators.bind(str(control_path))
        self.operators.listen(16)
        self.poller = zmq.Poller()
        for readable in (self.router, self.leash.fileno(), self.workers.fileno(), self.operators.fileno()):
            self.poller.register(readable, zmq.POLLIN)

    def _bind_router(self, endpoint: str) -> zmq.Socket[bytes]:
        router = self.context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.MAXMSGSIZE, codec.MAX_CLIENT_BYTES)
        router.setsockopt(zmq.SNDHWM, CLIENT_HIGH_WATER)
        router.setsockopt(zmq.RCVHWM, CLIENT_HIGH_WATER)
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        router.bind(endpoint)
        return router

    def run(self) -> None:
        """Until the supervisor says Stop; raises Closed when it is gone."""
        while True:
            ready = dict(self.poller.poll(self._timeout_ms(time.monotonic())))
            now = time.monotonic()
            self.leash.offer(messages.Beat())
            if self.router in ready:
                self._read_clients(now)
            if self.leash.fileno() in ready and not self._read_leash():
                return
            if self.workers.fileno() in ready:
                self._accept_worker()
            for fd in [fd for fd in ready if fd in self.links]:
                self._read_worker(fd, now)
            if self.operators.fileno() in ready:
                self._accept_operator()
            for fd in [fd for fd in ready if fd in self.control]:
                self._read_operator(fd)
            self._watch(self.watched.at(now))
            self._expire(now)
            self._interrupt()
            self._plan(now)
            self._flush()

    def _timeout_ms(self, now: float) -> int:
        deadlines = [engine.scheduler.next_deadline() for engine in self.engines.values() if engine.scheduler is not None]
        waits = [max(0.0, deadline - now) * 1e3 for deadline in deadlines if deadline is not None]
        if self.blocked:
            waits.append(RETRY_SEND_MS)
        return int(min([*waits, LONGEST_SLEEP_S * 1e3])) + 1

    # clients

    def _read_clients(self, now: float) -> None:
        for _ in range(CLIENT_MESSAGES_A_TURN):
            try:
                client, *frames = self.router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = codec.decode_client(frames[0] if len(frames) == 1 else b"")
            except BadMessage as error:
                req_id = _claimed_req_id(frames)
                log.warning("a client sent what is no message: %s", error)
                self._refuse(client, req_id, RequestError("invalid_value", f"not a message of this protocol: {error}"))
                continue
            self._on_client(client, message, now)

    def _on_client(self, client: bytes, message: object, now: float) -> None:
        if isinstance(message, messages.Hello):
            self.clients.add(client)
            self._send(client, messages.Welcome(self.incarnation, messages.PROTOCOL_VERSION, self._models()))
        elif isinstance(message, messages.Embed):
            self._refuse(client, message.req_id, RequestError("embeddings_unsupported", "no served model makes embeddings"))
        elif isinstance(message, messages.Generate):
            self._on_generate(client, message, now)
        elif isinstance(message, messages.Abort | messages.Credit | messages.FinishAck):
            for engine in self.engines.values():
                engine.handle(client, message, now)
            if isinstance(message, messages.Abort) and message.reason == "cancel":
                logs.event(log, "aborted", req_id=message.req_id, choice=message.choice)

    def _on_generate(self, client: bytes, message: messages.Generate, now: float) -> None:
        engine = self.engines.get(message.model)
        try:
            if engine is None:
                served = ", ".join(self.engines) or "none yet"
                raise RequestError("model_not_found", f"model `{message.model}` is not served; served: {served}", "model")
            engine.handle(client, message, now)
        except RequestError as error:
            self._refuse(client, message.req_id, error)
            return
        logs.event(log, "accepted", req_id=message.req_id, prompt_tokens=len(message.prompt_ids), resumed=message.resumed)
        self._send(client, messages.Accepted(self.incarnation, message.req_id))

    def _refuse(self, client: bytes, req_id: str, error: RequestError) -> None:
        logs.event(log, "refused", req_id=req_id, code=error.code)
        self._send(client, messages.Refused(self.incarnation, req_id, error.code, error.message, error.retry_after))

    def _send(self, client: bytes, message: msgspec.Struct) -> bool:
        """Whether the client's pipe took it. A client that is gone is dropped."""
        try:
            self.router.send_multipart([client, codec.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self.blocked = True
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drop(client)
            return False
        return True

    def _drop(self, client: bytes) -> None:
        self.clients.discard(client)
        for engine in self.engines.values():
            engine.drop_client(client, time.monotonic())

    def _models(self) -> list[messages.ModelInfo]:
        return [engine.info() for engine in self.engines.values()]

    def _announce(self) -> None:
        update = messages.Models(self.incarnation, self._models())
        for client in list(self.clients):
            self._send(client, update)

    # the supervisor

    def _read_leash(self) -> bool:
        """False when told to stop."""
        message = self.leash.receive()
        if isinstance(message, messages.Stop):
            return False
        if isinstance(message, messages.ServeModel):
            engine = self.engines.get(message.name)
            if engine is None:
                engine = Engine(
                    message.name,
                    message.source,
                    message.files,
                    self.config,
                    self.incarnation,
                    int(time.time()),
                    message.was_ready,
                )
                self.engines[message.name] = engine
            engine.files = message.files
            if message.error:
                engine.fail(message.error, time.monotonic())
                self._refuse_given_up(engine)
            self._announce()
        return True

    # workers

    def _accept_worker(self) -> None:
        connection, _ = self.workers.accept()
        link = Link(connection, codec.decode_from_worker)
        self.links[link.fileno()] = (link, None)
        self.poller.register(link.fileno(), zmq.POLLIN)

    def _read_worker(self, fd: int, now: float) -> None:
        link, model = self.links[fd]
        try:
            message = link.receive()
            if isinstance(message, messages.Register):
                self._on_register(fd, link, message)
            elif model is not None:
                self._on_worker(link, self.engines[model], message, now)
        except (Closed, BadMessage) as error:
            if isinstance(error, BadMessage):
                log.error("a worker of %s sent what is no message: %s", model, error)
            self._lose_worker(fd)

    def _on_register(self, fd: int, link: Link, message: messages.Register) -> None:
        engine = self.engines.get(message.model)
        known = any(model == message.model for _, model in self.links.values())
        if engine is None or message.protocol != messages.PROTOCOL_VERSION or message.pid != link.peer_pid() or known:
            log.error("a worker of %s (pid %d) is not expected here", message.model, message.pid)
            raise Closed("not expected")
        self.links[fd] = (link, message.model)
        for answer in engine.on_register():
            link.send(answer)

    def _on_worker(self, link: Link, engine: Engine, message: object, now: float) -> None:
        before = engine.state
        if isinstance(message, messages.Result) and engine.name in self.planned_at:
            self.metrics.step_seconds.labels(engine.name).observe(now - self.planned_at.pop(engine.name))
        if isinstance(message, messages.Result):
            self._heard_of_step(engine.name, message.last)
        elif isinstance(message, messages.Fault):
            log.error("the worker of %s ends by a %s fault: %s", engine.name, message.kind, message.message)
        for answer in engine.on_message(message, now):
            link.send(answer)
        for line in engine.progress:
            self.leash.send(line)
        engine.progress.clear()
        self._refuse_given_up(engine)
        if engine.state != before:
            self._announce()
            if engine.state == "ready":
                self.leash.send(messages.ModelReady(engine.name))
            elif engine.state == "failed":
                log.error("%s: %s", engine.name, engine.error)
                self.leash.send(messages.ModelLost(engine.name, engine.error))

    def _refuse_given_up(self, engine: Engine) -> None:
        for given_up in engine.refusals:
            self._refuse(given_up.client, given_up.req_id, given_up.error)
        engine.refusals.clear()

    def _lose_worker(self, fd: int) -> None:
        link, model = self.links.pop(fd)
        self.poller.unregister(fd)
        link.close()
        if model is not None:
            engine = self.engines[model]
            log.warning(
                "the worker of %s is gone; %d sequences wait for the next",
                model,
                len(engine.scheduler.running) if engine.scheduler else 0,
            )
            self.planned_at.pop(model, None)
            self.steps.forget(model)
            engine.on_worker_lost(time.monotonic())
            self._announce()

    def _plan(self, now: float) -> None:
        for fd, (link, model) in list(self.links.items()):
            plan = self.engines[model].plan_step(now) if model is not None else None
            if plan is not None and model is not None:
                self.planned_at[model] = now
                self._heard_of_step(model, last=False)
                try:
                    link.send(plan)
                except Closed:
                    self._lose_worker(fd)

    def _heard_of_step(self, model: str, last: bool) -> None:
        """The worker took a plan or answered a step, and owes another answer unless that was the last."""
        if last:
            self.steps.forget(model)
        else:
            self.steps.expect(model, self.config.watch.step_s, self.watched.at(time.monotonic()))

    def _watch(self, seconds: float) -> None:
        """A worker that does not answer is ended by the supervisor; it could not hear a word of ours."""
        for name in self.steps.overdue(seconds):
            link = next(link for link, model in self.links.values() if model == name)
            error = f"the worker of {name} has not answered a step for {self.config.watch.step_s:g} s (a hang)"
            log.error("%s; it is ended", error)
            self.engines[name].on_worker_hung(error)
            self.leash.send(messages.WorkerHung(name, link.peer_pid(), error))

    def _interrupt(self) -> None:
        """A worker that runs several steps by itself is called back when somebody waits, or its sequence has ended."""
        for fd, (link, model) in list(self.links.items()):
            scheduler = self.engines[model].scheduler if model is not None else None
            if scheduler is not None and scheduler.wants_worker_back():
                try:
                    link.send(messages.Yield(scheduler.incarnation))
                except Closed:
                    self._lose_worker(fd)

    # output

    def _expire(self, now: float) -> None:
        for engine in self.engines.values():
            if engine.scheduler is not None:
                for given_up in engine.scheduler.expire(now):
                    self._refuse(given_up.client, given_up.req_id, given_up.error)

    def _flush(self) -> None:
        """One message a client with all that became due; what its pipe does not take stays due."""
        self.blocked = False
        for engine in self.engines.values():
            if engine.scheduler is None:
                continue
            due: dict[bytes, _Batch] = {}
            for sequence, start, end, finish in engine.scheduler.outbox.due():
                due.setdefault(sequence.request.client, _Batch(self.incarnation)).add(sequence, start, end, finish)
            for client, batch in due.items():
                if self._send(client, batch.deltas):
                    for sequence, end, finish in batch.parts:
                        self._note_sent(engine, sequence, end, finish)

    def _note_sent(self, engine: Engine, sequence: Sequence, end: int, finish: messages.Finish | None) -> None:
        assert engine.scheduler is not None
        if sequence.num_sent == 0 and end > 0:
            wait = time.monotonic() - sequence.request.arrived
            self.metrics.time_to_first_token.labels(engine.name).observe(wait)
        engine.scheduler.outbox.sent(sequence, end, finish)
        if finish is not None:
            logs.event(
                log,
                "done" if finish.reason in ("stop", "length") else "failed",
                req_id=sequence.request.req_id,
                choice=sequence.choice,
                reason=finish.reason,
                prompt_tokens=finish.prompt_tokens,
                output_tokens=finish.output_tokens,
                seconds=round(time.monotonic() - sequence.request.arrived, 3),
                **({"error": finish.error} if finish.error else {}),
            )

    # operators

    def _accept_operator(self) -> None:
        connection, _ = self.operators.accept()
        if len(self.control) >= CONTROL_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        self.control[connection.fileno()] = (connection, bytearray())
        self.poller.register(connection.fileno(), zmq.POLLIN)

    def _read_operator(self, fd: int) -> None:
        connection, pending = self.control[fd]
        try:
            data = connection.recv(control.MAX_LINE_BYTES)
            pending += data
            while b"\n" in pending:
                line, _, rest = bytes(pending).partition(b"\n")
                pending[:] = rest
                state = control.State(self.incarnation, self.engines, self.metrics, len(self.clients))
                _send_whole(connection, control.answer(line, state))
            keep = bool(data) and len(pending) <= control.MAX_LINE_BYTES
        except OSError:
            keep = False
        if not keep:
            self.poller.unregister(fd)
            del self.control[fd]
            connection.close()

    def close(self) -> None:
        self.router.close()
        self.context.term()


class _Batch:
    """Deltas for one client, and what they say of which sequence."""

    def __init__(self, incarnation: int) -> None:
        self.deltas = messages.Deltas(incarnation, [], [], [], [])
        self.parts: list[tuple[Sequence, int, messages.Finish | None]] = []

    def add(self, sequence: Sequence, start: int, end: int, finish: messages.Finish | None) -> None:
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
        if sequence.hashes:
            deltas.hashes[index] = sequence.hashes[start:end]
        self.parts.append((sequence, end, finish))


_NO_LOGPROBS = messages.TokenLogprobs(0.0, [], [])


def _send_whole(connection: socket.socket, data: bytes) -> None:
    """An answer fits a fresh connection's buffer; a peer that reads none of its answers is cut off."""
    if connection.send(data) != len(data):
        raise OSError("the peer does not read")


def _claimed_req_id(frames: list[bytes]) -> str:
    """The req_id of a message that is otherwise wrong, so that its sender can be told; empty where there is none."""
    try:
        value = msgspec.msgpack.decode(frames[0]) if len(frames) == 1 else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return ""
    req_id = value.get("req_id") if isinstance(value, dict) else None
    return req_id[:128] if isinstance(req_id, str) else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="helexa.scheduler.process", description="The scheduler; the supervisor starts it.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--leash-fd", type=int, required=True)
    options = parser.parse_args()
    installation.folder()
    config = configuration.read_generation(options.config)
    logs.set_up("scheduler", config.logging.level, config.logging.format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leash = sockets.from_fd(options.leash_fd, codec.decode_to_child)
    try:
        process = SchedulerProcess(config, options.config.parent, leash)
        leash.send(messages.ChildReady(f"pid {os.getpid()}"))
        process.run()
        process.close()
    except Closed:
        log.warning("the supervisor is gone; ending")
        return 1
    except Exception as error:
        log.exception("the scheduler failed")
        try:
            leash.send(messages.LastWords(f"scheduler: {type(error).__name__}: {error}"))
        except Closed:
            pass
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
