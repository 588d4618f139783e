"""A client's side of the protocol without its sockets: what to send, and how what comes is merged. Pure.

`Streams` holds every live request of one connection. Its methods take what happened and return a `Reaction`: messages to send and
requests that have news. Nothing is sent before a scheduler has said Welcome and named what it serves: the state here is what is
asked for then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ipc.messages import (
    PROTOCOL_VERSION,
    Abort,
    AbortReason,
    Accepted,
    ClientMessage,
    Credit,
    Deltas,
    Finish,
    FinishAck,
    Generate,
    ModelInfo,
    Models,
    Refused,
    SchedulerMessage,
    Seated,
    TokenLogprobs,
    Welcome,
)
from ipc.receiver import Gap, HeldOutput

log = logging.getLogger("helexa.web.streams")


@dataclass(frozen=True)
class Update:
    """What a choice's consumer has not read yet: ids from index `start` of its output; `logprobs` is keyed by that index.
    `prompt_logprobs` comes once, with the first output."""

    choice: int
    start: int
    ids: list[int]
    logprobs: dict[int, TokenLogprobs]
    finish: Finish | None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: bytes = b""  # the prompt's embedding, from a model that makes them


@dataclass
class Choice:
    held: HeldOutput
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: bytes = b""
    finish: Finish | None = None
    read: int = 0  # ids the consumer has
    finish_read: bool = False


class LiveRequest:
    """One request: its prompt, and per choice the output held. `generate` is as first submitted."""

    def __init__(self, generate: Generate) -> None:
        self.generate = generate
        self.req_id = generate.req_id
        self.choices = [Choice(HeldOutput(generate.credit)) for _ in generate.seeds]
        self.sent = False
        self.accepted = False
        self.firm = False  # it will not be refused any more: a choice ran, or a lost scheduler had accepted it
        self.refused: Refused | None = None

    @property
    def ended(self) -> bool:
        """Nothing more comes: refused, or every choice's finish is held."""
        return self.refused is not None or all(choice.finish is not None for choice in self.choices)

    def read(self) -> list[Update]:
        """The news of every choice, marked as read."""
        updates = []
        for index, choice in enumerate(self.choices):
            ids = choice.held.ids[choice.read :]
            finish = None if choice.finish_read else choice.finish
            if not ids and finish is None:
                continue
            logprobs = {at: choice.logprobs.pop(at) for at in range(choice.read, len(choice.held.ids)) if at in choice.logprobs}
            scores, choice.prompt_logprobs = choice.prompt_logprobs, []
            updates.append(Update(index, choice.read, ids, logprobs, finish, scores, choice.pooled))
            choice.read, choice.finish_read = len(choice.held.ids), choice.finish is not None
        return updates

    def submission(self) -> list[ClientMessage]:
        """Asks for all that is not held; idempotent. Says `resumed` once a scheduler has taken the request.

        A pending stop is sent again. A choice that is already held to its end is not wanted again.
        """
        started = self.accepted or any(choice.held.ids for choice in self.choices)
        self.firm = self.firm or started
        open_uptos = [choice.held.upto for choice in self.choices if choice.finish is None]
        credit = min(open_uptos)
        first = self.generate
        messages: list[ClientMessage] = [
            Generate(
                req_id=first.req_id,
                model=first.model,
                prompt_ids=first.prompt_ids,
                output_ids=[list(choice.held.ids) for choice in self.choices],
                seeds=first.seeds,
                params=first.params,
                credit=credit,
                resumed=started,
                priority=first.priority,
                key=first.key,
                cache_salt=first.cache_salt,
                instance=first.instance,
            )
        ]
        for index, choice in enumerate(self.choices):
            if choice.finish is not None:
                messages.append(Abort(self.req_id, index, "cancel"))
            elif choice.held.keep is not None:
                messages.append(Abort(self.req_id, index, "stop", choice.held.keep))
            elif choice.held.upto > credit:
                messages.append(Credit(self.req_id, index, choice.held.upto))
        self.sent = True
        return messages

    def merge(self, message: Deltas, entry: int) -> list[ClientMessage]:
        """Takes entry `entry` of a Deltas. Raises Gap."""
        index = message.choices[entry]
        if not 0 <= index < len(self.choices):
            log.error("%s: a delta for choice %d of %d is dropped", self.req_id, index, len(self.choices))
            return []
        self.accepted = self.firm = True
        choice = self.choices[index]
        ids, logprobs = message.ids[entry], message.logprobs.get(entry)
        dropped = choice.held.merge(message.starts[entry], ids)
        if logprobs is not None:
            first = message.starts[entry]
            choice.logprobs.update({first + i: logprobs[i] for i in range(dropped, min(len(ids), len(logprobs)))})
        if dropped == 0 and message.starts[entry] == 0:
            choice.prompt_logprobs = message.prompt_logprobs.get(entry, [])
            choice.pooled = message.pooled.get(entry, b"")
        finish = message.finishes.get(entry)
        if finish is None:
            return []
        if choice.finish is None:
            choice.finish, choice.held.finished = finish, True
        return [FinishAck(self.req_id, index)]

    def consumed(self, index: int, count: int) -> list[ClientMessage]:
        upto = self.choices[index].held.consumed(count)
        return [] if upto is None else [Credit(self.req_id, index, upto)]

    def stop(self, index: int, keep: int) -> list[ClientMessage]:
        """A stop string was completed by output token `keep` (a count)."""
        held = self.choices[index].held
        held.stop(keep)
        return [] if held.finished else [Abort(self.req_id, index, "stop", keep)]

    def abort(self, reason: AbortReason) -> list[ClientMessage]:
        """Ends every choice that is still open."""
        if self.refused is not None or not self.sent:
            return []
        return [Abort(self.req_id, index, reason) for index, choice in enumerate(self.choices) if choice.finish is None]


@dataclass
class Reaction:
    send: list[ClientMessage] = field(default_factory=list)
    news: list[LiveRequest] = field(default_factory=list)
    models_changed: bool = False


class Streams:
    """Every live request of one client, and what is known of the scheduler."""

    def __init__(self) -> None:
        self.connected = False
        self._submitted = False  # on this connection
        self.incarnation: int | None = None
        self.models: dict[str, ModelInfo] = {}
        self.draining = False
        self.live: dict[str, LiveRequest] = {}

    def open(self, generate: Generate) -> tuple[LiveRequest, Reaction]:
        request = LiveRequest(generate)
        self.live[request.req_id] = request
        return request, self._outgoing(request.submission() if self._submitted else [])

    def close(self, request: LiveRequest) -> Reaction:
        """The consumer is gone or done: what is still open is cancelled, and nothing more of it is taken."""
        self.live.pop(request.req_id, None)
        return self._outgoing(request.abort("cancel"))

    def consumed(self, request: LiveRequest, choice: int, count: int) -> Reaction:
        return self._outgoing(request.consumed(choice, count))

    def stop(self, request: LiveRequest, choice: int, keep: int) -> Reaction:
        return self._outgoing(request.stop(choice, keep))

    def disconnected(self) -> None:
        self.connected = self._submitted = False

    def receive(self, message: SchedulerMessage) -> Reaction:
        if isinstance(message, Welcome):
            return self._welcome(message)
        if message.incarnation != self.incarnation:
            return Reaction()
        if isinstance(message, Deltas):
            return self._deltas(message)
        if isinstance(message, Models):
            return self._serves(message)
        if isinstance(message, Seated):
            return self._seated(message)
        return self._answer(message)

    def _outgoing(self, messages: list[ClientMessage]) -> Reaction:
        return Reaction(send=messages if self._submitted else [])

    def _welcome(self, message: Welcome) -> Reaction:
        """Each Welcome follows a handshake, so messages may have been lost before it: everything is asked again."""
        if message.protocol != PROTOCOL_VERSION:
            log.error("the scheduler speaks protocol %d, this client %d: restart the service", message.protocol, PROTOCOL_VERSION)
            return Reaction()
        self.connected, self._submitted, self.incarnation = True, False, message.incarnation
        return self._serves(message)

    def _serves(self, message: Welcome | Models) -> Reaction:
        """A scheduler that has just started may not know its models yet, and would refuse everything."""
        self.models, self.draining = {info.name: info for info in message.models}, message.draining
        reaction = Reaction(models_changed=True)
        if self.models and not self._submitted:
            self._submitted = True
            for request in self.live.values():
                if not request.ended:
                    reaction.send += request.submission()
        return reaction

    def _answer(self, message: Accepted | Refused) -> Reaction:
        request = self.live.get(message.req_id)
        if request is None:
            return Reaction()
        if isinstance(message, Refused):
            request.refused = message
        else:
            request.accepted = True
        return Reaction(news=[request])

    def _seated(self, message: Seated) -> Reaction:
        requests = [self.live[req_id] for req_id in message.req_ids if req_id in self.live]
        for request in requests:
            request.accepted = request.firm = True
        return Reaction(news=requests)

    def _deltas(self, message: Deltas) -> Reaction:
        reaction = Reaction()
        columns = (message.choices, message.starts, message.ids)
        if any(len(column) != len(message.req_ids) for column in columns):
            log.error("a Deltas with columns of unequal length is dropped")
            return reaction
        changed: dict[str, LiveRequest] = {}
        for entry, req_id in enumerate(message.req_ids):
            request = self.live.get(req_id)
            if request is None:
                reaction.send.append(_unwanted(message, entry))
                continue
            try:
                reaction.send += request.merge(message, entry)
            except Gap as gap:
                log.error("%s, choice %d: %s; asking again", req_id, message.choices[entry], gap)
                reaction.send += request.submission()
            changed[req_id] = request
        reaction.news = list(changed.values())
        return reaction


def _unwanted(message: Deltas, entry: int) -> ClientMessage:
    """Output of a request that was closed here: acknowledged if it ended, else cancelled (the first Abort was lost)."""
    req_id, choice = message.req_ids[entry], message.choices[entry]
    if entry in message.finishes:
        return FinishAck(req_id, choice)
    return Abort(req_id, choice, "cancel")
