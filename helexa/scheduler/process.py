"""The scheduler process: `python -P -m helexa.scheduler.process`. It binds every socket and owns no device.

One loop: wait for a message or a deadline, hand messages to the engines, plan a step for the worker whose turn it is, send what
became due. Nothing in it blocks but the wait.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import zmq

from helexa import config as configuration
from helexa import logs
from helexa.config import Config
from helexa.errors import RequestError
from helexa.keys.key_book import KeyBook
from helexa.keys.key_limits import KeyLimits
from helexa.metrics import Metrics
from helexa.scheduler import control
from helexa.scheduler.client_socket import ClientSocket, Due, Refusal
from helexa.scheduler.engine import Engine
from helexa.scheduler.operator_socket import OperatorSocket
from helexa.scheduler.residency import Residency
from helexa.scheduler.roster import Roster
from helexa.scheduler.waits import WaitReports
from helexa.scheduler.worker_links import WorkerLinks
from helexa.watching import WatchedTime, beat_every
from ipc import codec, embedding, endpoints, installation, leash_messages, messages, sockets
from ipc.sockets import Closed, Link
from workers import machine

log = logging.getLogger("scheduler")

RETRY_SEND_MS = 20  # while a client's pipe is full


class SchedulerProcess:
    def __init__(self, config: Config, run_dir: Path, leash: Link) -> None:
        self.config = config
        self.generation = 0
        self.leash = leash
        self.incarnation = secrets.randbits(48) | 1
        self.draining = False
        self.paused: list[str] = []
        self.roster = Roster()
        self.residency = Residency(self.roster)
        self.metrics = Metrics(self.roster)
        self.keys = KeyBook(config.keys.file)
        self.limits = KeyLimits()
        self.metrics.count_keys(self.limits.usage)
        self.waits = WaitReports()
        self.watched = WatchedTime(time.monotonic())
        self._accepted: dict[tuple[bytes, str], None] = {}  # requests whose clients have not been told yet
        self.asked: dict[int, int] = {}  # operators' commands that the supervisor has: id -> descriptor
        self.clients = ClientSocket(endpoints.requests(run_dir), self._drop)
        workers = endpoints.workers_socket(run_dir)
        self.poller = zmq.Poller()
        told = (leash.send, self._after_worker, self.poller.unregister)
        self.workers = WorkerLinks(workers, self.roster, self.metrics, self.watched, *told)
        self.operators = OperatorSocket(endpoints.control_socket(run_dir))
        for readable in (self.clients.socket, leash.fileno(), self.workers.fileno(), self.operators.fileno()):
            self.poller.register(readable, zmq.POLLIN)

    def run(self) -> None:
        """Until the supervisor says Stop; raises Closed when it is gone."""
        while True:
            ready = dict(self.poller.poll(self._timeout_ms(time.monotonic())))
            now = time.monotonic()
            self.leash.offer(leash_messages.Beat())
            if self.clients.socket in ready:
                for client, message in self.clients.receive():
                    self._on_client(client, message, now)
            while self.leash.has_message():  # all of it: a worker's first words come after the supervisor's about its model
                if not self._read_leash(now):
                    self._report_left()
                    return
            self._read_workers(ready, now)
            self._read_operators(ready, now)
            self.watched.at(now)
            self.workers.watch(now)
            self._expire(now)
            self._review(now)
            self.workers.call_back(now)
            self.workers.plan(now)
            self._tell_taken()
            self._flush()

    def _timeout_ms(self, now: float) -> int:
        deadlines = [self.residency.next_deadline(), *(engine.next_deadline() for engine in self.roster)]
        waits = [max(0.0, deadline - now) * 1e3 for deadline in deadlines if deadline is not None]
        if self.clients.blocked:
            waits.append(RETRY_SEND_MS)
        return int(min([*waits, beat_every(self.config.watch.heartbeat_s) * 1e3])) + 1

    # clients

    def _on_client(self, client: bytes, message: object, now: float) -> None:
        if isinstance(message, Refusal):
            log.warning("a client sent what is no message: %s", message)
            self._refuse(client, message.req_id, RequestError("invalid_value", f"not a message of this protocol: {message}"))
        elif isinstance(message, messages.Hello):
            self.clients.clients.add(client)
            welcome = messages.Welcome(self.incarnation, messages.PROTOCOL_VERSION, self.roster.infos(), self.draining)
            self.clients.send(client, welcome)
        elif isinstance(message, messages.Embed):
            self._on_embed(client, message, now)
        elif isinstance(message, messages.Generate):
            self._on_generate(client, message, now)
        elif isinstance(message, messages.Want):
            self._on_want(message, now)
        elif isinstance(message, messages.Abort | messages.Credit | messages.FinishAck):
            for engine in self.roster:
                engine.handle(client, message, now)
            if isinstance(message, messages.Abort) and message.reason == "cancel":
                logs.event(log, "aborted", req_id=message.req_id, choice=message.choice)

    def _on_embed(self, client: bytes, message: messages.Embed, now: float) -> None:
        engine = self.roster.current().get(message.model)
        pooling = engine.pooling if engine is not None else ""
        if engine is None or pooling:
            self._on_generate(client, embedding.request(message.req_id, message.model, message.prompt_ids, pooling), now)
        elif engine.state == "ready":
            error = f"model `{message.model}` generates text and makes no embeddings"
            self._refuse(client, message.req_id, RequestError("embeddings_unsupported", error, "model"))
        else:
            engine.want(now)
            loading = RequestError("model_loading", f"model `{message.model}` is not ready; ask again shortly", "model")
            self._refuse(client, message.req_id, loading)

    def _on_generate(self, client: bytes, message: messages.Generate, now: float) -> None:
        try:
            engine = self.roster.for_request(message)
            new = not message.resumed and not engine.knows(client, message.req_id)
            if new:
                self._admit(message, now)
            engine.handle(client, message, now)
        except RequestError as error:
            self._refuse(client, message.req_id, error)
            return
        if new and message.key:
            self.limits.took(message.key, len(message.prompt_ids))
        logs.event(log, "accepted", req_id=message.req_id, prompt_tokens=len(message.prompt_ids), resumed=message.resumed)
        self._accepted[client, message.req_id] = None

    def _on_want(self, message: messages.Want, now: float) -> None:
        engine = self.roster.current().get(message.model)
        if engine is not None and not self.draining:
            engine.want(now)

    def _admit(self, message: messages.Generate, now: float) -> None:
        """Raises RequestError while the service drains, and where the key's limits are used up."""
        if self.draining:
            raise RequestError("shutting_down", "the server takes no new requests; ask another instance, or again later")
        key = self.keys.named(message.key) if message.key else None
        if key is not None:
            self.limits.admit(key, sum(engine.num_open_of(key.id) for engine in self.roster), now)
            for engine in self.roster:
                engine.set_weight(key.id, key.weight)

    def _refuse(self, client: bytes, req_id: str, error: RequestError) -> None:
        logs.event(log, "refused", req_id=req_id, code=error.code)
        self.clients.send(client, messages.Refused(self.incarnation, req_id, error.code, error.message, error.retry_after))

    def _refuse_given_up(self, engine: Engine) -> None:
        for given_up in engine.take_refusals():
            self._refuse(given_up.client, given_up.req_id, given_up.error)

    def _drop(self, client: bytes) -> None:
        for engine in self.roster:
            engine.drop_client(client, time.monotonic())

    def _announce(self) -> None:
        self.clients.announce(messages.Models(self.incarnation, self.roster.infos(), self.draining))

    # the supervisor

    def _read_leash(self, now: float) -> bool:
        """False when told to stop."""
        message = self.leash.receive()
        if isinstance(message, leash_messages.Stop):
            return False
        if isinstance(message, leash_messages.ServeModel):
            self._serve(message, now)
        elif isinstance(message, leash_messages.RetireModel):
            self.roster.retire(message.instance, now)
        elif isinstance(message, leash_messages.Summon | leash_messages.Dismiss):
            self._call(message, now)
        elif isinstance(message, leash_messages.Settings):
            self._settle(message, now)
        elif isinstance(message, leash_messages.OperatorAnswer):
            reply = {"ok": False, "error": message.error} if message.error else {"ok": True, "note": message.note}
            self._answer(self.asked.pop(message.id, -1), control.encode(reply))
            return True
        self._announce()
        return True

    def _serve(self, message: leash_messages.ServeModel, now: float) -> None:
        engine = self.roster.get(message.instance)
        if engine is None:
            engine = Engine(message, self.config, self.incarnation, int(time.time()))
            engine.pause(self._is_paused(engine.name), now)
            self.roster.add(engine)
        engine.served = message
        if message.error:
            engine.fail(message.error, now)
            self._refuse_given_up(engine)
        if message.parked:
            engine.park(now)

    def _call(self, message: leash_messages.Summon | leash_messages.Dismiss, now: float) -> None:
        """An operator wants a model in memory, or out of it."""
        engine = self.roster.get(message.instance)
        if engine is not None and isinstance(message, leash_messages.Dismiss):
            engine.presence.leave(dismissed=True)
        elif engine is not None:
            engine.presence.failed_at = None
            engine.state = "unloaded" if engine.state == "failed" else engine.state
            engine.want(now)
            engine.presence.asked_at = None  # an operator waits as long as it takes

    def _settle(self, message: leash_messages.Settings, now: float) -> None:
        """Takes over a configuration, and what an operator wants."""
        self.config = config = configuration.read_generation(Path(message.config))
        self.generation = int(Path(message.config).name.split(".")[1])
        logs.set_level(config.logging.level)
        if config.keys.file != self.keys.file:
            self.keys = KeyBook(config.keys.file)
        begins_drain = message.draining and not self.draining
        self.draining, self.paused = message.draining, message.paused
        for engine in self.roster:
            engine.configure(config)
            engine.pause(self._is_paused(engine.name), now)
            for given_up in engine.turn_away(now) if begins_drain else []:
                self._refuse(given_up.client, given_up.req_id, given_up.error)
            self._refuse_given_up(engine)

    def _is_paused(self, model: str) -> bool:
        return model in self.paused or "*" in self.paused

    def _report_left(self) -> None:
        for engine in self.roster:
            for req_id in engine.open_requests():
                log.warning("still open when the scheduler was told to stop", extra={"fields": {"req_id": req_id}})

    # workers

    def _read_workers(self, ready: dict[object, int], now: float) -> None:
        if self.workers.fileno() in ready:
            self.poller.register(self.workers.accept(), zmq.POLLIN)
        for fd in ready:
            if isinstance(fd, int) and fd in self.workers:  # or gone by now, with another rank
                self.workers.read(fd, now)

    def _after_worker(self, engine: Engine, before: str) -> None:
        for line in engine.progress:
            self.leash.send(line)
        engine.progress.clear()
        self._refuse_given_up(engine)
        if engine.state == before:
            return
        self._announce()  # first: who is told that it is ready may ask at once
        if engine.state == "ready":
            self.leash.send(engine.ready_message())
        elif engine.state == "failed":
            log.error("%s: %s", engine.name, engine.error)
            self.leash.send(leash_messages.ModelLost(engine.name, engine.error, engine.instance))

    # models in memory

    def _review(self, now: float) -> None:
        """Loads who is asked for, and lets others leave for it."""
        if not self.residency.has_work:
            return
        before = [engine.state for engine in self.roster]
        stayed = [engine for engine in self.roster if engine.state == "ready" and not engine.presence.leaving]
        memory = self.config.memory.limit_mib
        weights = sum(engine.weight_bytes for engine in self.roster)
        limit = machine.memory_limit(Path("/"), weights, 0 if memory == "auto" else memory * 2**20)
        words = self.residency.review(limit.bytes, now)
        for engine in stayed:
            if engine.presence.leaving or engine.state == "unloaded":
                log.info("%s leaves memory, once its requests have ended", engine.name)
        for word in words:
            if isinstance(word, leash_messages.UnloadModel):
                self.workers.disconnect(word.instance)
            self.leash.send(word)
        for engine in self.roster:
            self._refuse_given_up(engine)
        if before != [engine.state for engine in self.roster]:
            self._announce()

    # time and output

    def _expire(self, now: float) -> None:
        for engine in self.roster:
            for given_up in engine.expire(now):
                self._refuse(given_up.client, given_up.req_id, given_up.error)
        waiting = [sequence for engine in self.roster if engine.scheduler is not None for sequence in engine.scheduler.waiting]
        for sequence, seconds in self.waits.due(waiting, now):
            logs.event(log, "waits for a seat", req_id=sequence.request.req_id, seconds=round(seconds, 1))
        for engine in self.roster.take_idle(now):
            self.workers.disconnect(engine.instance)
            self.leash.send(leash_messages.Retired(engine.instance))
            self._announce()

    def _tell_taken(self) -> None:
        """What waits is accepted; what got a seat at once, or later, is seated, which says both."""
        seated: dict[bytes, dict[str, None]] = {}
        for engine in self.roster:
            for request in engine.take_newcomers():
                seated.setdefault(request.client, {})[request.req_id] = None
                self._accepted.pop((request.client, request.req_id), None)
        for client, req_id in self._accepted:
            self.clients.send(client, messages.Accepted(self.incarnation, req_id))
        self._accepted.clear()
        for client, req_ids in seated.items():
            self.clients.send(client, messages.Seated(self.incarnation, list(req_ids)))

    def _flush(self) -> None:
        """What its client's pipe does not take stays due."""
        self.clients.blocked = False
        for engine in self.roster:
            if engine.scheduler is None:
                continue
            for part in self.clients.send_due(self.incarnation, engine.scheduler.outbox.due()):
                self._note_sent(engine, part)

    def _note_sent(self, engine: Engine, part: Due) -> None:
        assert engine.scheduler is not None
        sequence, start, end, finish = part
        request, now = sequence.request, time.monotonic()
        if start == 0 and end > 0:
            self.metrics.time_to_first_token.labels(engine.name).observe(now - request.arrived)
        elif end > start:
            self.metrics.between_tokens.labels(engine.name).observe((now - sequence.sent_at) / (end - start))
        sequence.sent_at = now
        if request.key:
            self.limits.sent(request.key, end - start)
        engine.scheduler.outbox.sent(sequence, end, finish)
        if finish is None:
            return
        self.metrics.note_end(engine.name, finish.reason, now - request.arrived)
        logs.event(
            log,
            "done" if finish.reason in ("stop", "length") else "failed",
            req_id=request.req_id,
            choice=sequence.choice,
            reason=finish.reason,
            prompt_tokens=finish.prompt_tokens,
            output_tokens=finish.output_tokens,
            seconds=round(now - request.arrived, 3),
            **({"error": finish.error} if finish.error else {}),
        )

    # operators

    def _read_operators(self, ready: dict[object, int], now: float) -> None:
        if self.operators.fileno() in ready:
            accepted = self.operators.accept()
            if accepted is not None:
                self.poller.register(accepted, zmq.POLLIN)
        for fd in [fd for fd in ready if isinstance(fd, int) and fd in self.operators]:
            try:
                for line in self.operators.read(fd):
                    self._obey(fd, line, now)
            except ConnectionError:
                self._hang_up(fd)

    def _obey(self, fd: int, line: bytes, now: float) -> None:
        state = control.State(
            self.incarnation,
            self.roster,
            self.metrics,
            len(self.clients.clients),
            self.limits.usage,
            self.draining,
            self.generation,
            now,
        )
        answer = control.answer(line, state)
        for engine in self.roster:
            self._refuse_given_up(engine)
        if isinstance(answer, bytes):
            self.operators.answer(fd, answer)
            return
        id = secrets.randbits(48)
        self.asked[id] = fd
        self.leash.send(leash_messages.OperatorAsks(id, answer.command, answer.arguments))

    def _answer(self, fd: int, line: bytes) -> None:
        if fd in self.operators:
            try:
                self.operators.answer(fd, line)
            except ConnectionError:
                self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        self.poller.unregister(fd)
        self.operators.close(fd)
        self.asked = {id: other for id, other in self.asked.items() if other != fd}


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
        leash.send(leash_messages.ChildReady(f"pid {os.getpid()}"))
        process.run()
        process.clients.close()
    except Closed:
        log.warning("the supervisor is gone; ending")
        return 1
    except Exception as error:
        log.exception("the scheduler failed")
        try:
            leash.send(leash_messages.LastWords(f"scheduler: {type(error).__name__}: {error}"))
        except Closed:
            pass
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
