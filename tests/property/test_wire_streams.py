"""A reply arrives once and in order, whatever happens between the scheduler and its client."""

from __future__ import annotations

import random
from collections.abc import Iterable

from fake_scheduler import model_info
from hypothesis import given
from hypothesis import strategies as st

from helexa.web.streams import LiveRequest, Streams
from ipc.messages import (
    Abort,
    Accepted,
    ClientMessage,
    Credit,
    Deltas,
    Finish,
    FinishAck,
    Generate,
    SamplingParams,
    TokenLogprobs,
    Welcome,
)

WINDOW = 6


class Engine:
    """A scheduler of one incarnation: its replies are fixed, its deltas overlap and repeat at random."""

    def __init__(self, incarnation: int, replies: list[list[int]], chance: random.Random) -> None:
        self.incarnation = incarnation
        self.replies = replies
        self.chance = chance
        self.sent: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.acknowledged: set[int] = set()

    def take(self, messages: Iterable[ClientMessage]) -> list[Accepted]:
        answers = []
        for message in messages:
            if isinstance(message, Generate):
                for choice, held in enumerate(message.output_ids):
                    assert self.replies[choice][: len(held)] == held, "the client invented ids"
                    self.sent[choice] = len(held)
                    self.credit[choice] = max(self.credit.get(choice, 0), message.credit)
                answers.append(Accepted(self.incarnation, message.req_id))
            elif isinstance(message, Credit):
                self.credit[message.choice] = max(self.credit.get(message.choice, 0), message.upto)
            elif isinstance(message, Abort):
                self.sent.pop(message.choice, None)
            elif isinstance(message, FinishAck):
                self.acknowledged.add(message.choice)
        return answers

    def deltas(self) -> Deltas | None:
        """Some more of some choices, in one message, beginning anywhere below what was sent."""
        message = Deltas(self.incarnation, [], [], [], [])
        for choice in list(self.sent):
            reply = self.replies[choice]
            end = min(len(reply), self.credit[choice], self.sent[choice] + self.chance.randint(0, 3))
            start = self.chance.randint(0, self.sent[choice])
            entry = len(message.req_ids)
            message.req_ids.append("r")
            message.choices.append(choice)
            message.starts.append(start)
            message.ids.append(reply[start:end])
            message.logprobs[entry] = [TokenLogprobs(-float(id), [], []) for id in reply[start:end]]
            if end == len(reply):
                message.finishes[entry] = Finish("stop", 3, 0, len(reply))
            self.sent[choice] = end
        return message if message.req_ids else None


def read(request: LiveRequest, seen: list[list[int]], ends: list[int]) -> None:
    for update in request.read():
        assert update.start == len(seen[update.choice])
        seen[update.choice] += update.ids
        assert [update.logprobs[update.start + i].logprob for i in range(len(update.ids))] == [-float(id) for id in update.ids]
        ends[update.choice] += update.finish is not None


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=20), min_size=1, max_size=3), st.integers(0, 2**32))
def test_each_id_is_seen_once(replies: list[list[int]], seed: int) -> None:
    """Deltas overlap, repeat and come late from dead schedulers; connections break, schedulers die, consumers are slow.

    The consumer still gets exactly the engine's ids, each with its logprob, and each end once; the engine keeps to its credit.
    """
    chance = random.Random(seed)
    streams, engine = Streams(), Engine(1, replies, chance)
    generate = Generate(
        "r",
        "m",
        [1, 2, 3],
        [[] for _ in replies],
        list(range(len(replies))),
        SamplingParams(max_tokens=99, logprobs=0),
        credit=WINDOW,
    )
    request, reaction = streams.open(generate)
    assert reaction.send == [], "nothing is sent before Welcome"
    stale: list[Deltas] = []
    seen: list[list[int]] = [[] for _ in replies]
    ends = [0 for _ in replies]
    for _ in range(2000):
        if request.ended and not chance.randint(0, 3):
            break
        happening = chance.choice(["deltas"] * 6 + ["read"] * 4 + ["stale", "break", "die"])
        if not streams.connected:
            engine.take(streams.receive(Welcome(engine.incarnation, 1, [model_info()])).send)
        elif happening == "deltas":
            message = engine.deltas()
            if message is not None:
                assert all(
                    start + len(ids) <= engine.credit[choice]
                    for choice, start, ids in zip(message.choices, message.starts, message.ids, strict=True)
                )
                stale.append(message)
                engine.take(streams.receive(message).send)
        elif happening == "read":
            read(request, seen, ends)
            for choice, ids in enumerate(seen):
                engine.take(streams.consumed(request, choice, len(ids)).send)
        elif happening == "stale" and stale:
            engine.take(streams.receive(chance.choice(stale)).send)
        elif happening == "break":
            streams.disconnected()
        elif happening == "die":
            streams.disconnected()
            engine = Engine(engine.incarnation + 1, replies, chance)
    assert request.ended, "2000 happenings are enough for 20 tokens"
    read(request, seen, ends)
    assert seen == replies and ends == [1] * len(replies)


@given(st.integers(0, 12), st.integers(0, 2**32))
def test_a_stop_survives_the_scheduler(keep: int, seed: int) -> None:
    """A stop string's cut is part of what is resubmitted: the next scheduler is told of it with the request."""
    chance = random.Random(seed)
    reply = list(range(12))
    streams = Streams()
    streams.receive(Welcome(1, 1, [model_info()]))
    generate = Generate("r", "m", [1], [[]], [1], SamplingParams(max_tokens=99), credit=99)
    request, _ = streams.open(generate)
    held = chance.randint(keep, 12)
    streams.receive(Deltas(1, ["r"], [0], [0], [reply[:held]]))
    assert streams.stop(request, 0, keep).send == [Abort("r", 0, "stop", keep)]
    streams.disconnected()
    first, second = streams.receive(Welcome(2, 1, [model_info()])).send
    assert isinstance(first, Generate) and first.output_ids == [reply[:keep]]
    assert second == Abort("r", 0, "stop", keep)
    streams.receive(Deltas(2, ["r"], [0], [keep], [[]], {0: Finish("stop", 1, 0, keep)}))
    updates = request.read()
    assert [id for update in updates for id in update.ids] == reply[:keep] and updates[-1].finish is not None
