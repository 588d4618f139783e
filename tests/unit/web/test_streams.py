"""The pure side of the protocol: what is sent when, and what is dropped."""

from __future__ import annotations

from fake_scheduler import model_info

from helexa.web.streams import LiveRequest, Streams
from ipc.messages import Abort, Accepted, Credit, Deltas, Finish, FinishAck, Generate, Models, Refused, SamplingParams, Welcome


def generate(req_id: str = "r", choices: int = 1) -> Generate:
    return Generate(req_id, "m", [1], [[] for _ in range(choices)], list(range(choices)), SamplingParams(max_tokens=9), credit=4)


def opened(choices: int = 1) -> tuple[Streams, LiveRequest]:
    streams = Streams()
    streams.receive(Welcome(1, 1, [model_info()]))
    request, reaction = streams.open(generate(choices=choices))
    assert [type(message) for message in reaction.send] == [Generate]
    return streams, request


def delta(incarnation: int, start: int, ids: list[int], choice: int = 0, finish: Finish | None = None) -> Deltas:
    return Deltas(incarnation, ["r"], [choice], [start], [ids], {} if finish is None else {0: finish})


def test_nothing_is_sent_before_welcome() -> None:
    """A request opened while no scheduler is there goes out with the first Welcome, as a new one."""
    streams = Streams()
    _, reaction = streams.open(generate())
    assert reaction.send == []
    (sent,) = streams.receive(Welcome(1, 1, [model_info()])).send
    assert isinstance(sent, Generate) and not sent.resumed


def test_nothing_is_sent_before_models_are_named() -> None:
    """A scheduler that has just started says Welcome before it knows what it serves: it is asked once it does, once."""
    streams, _ = opened()
    assert streams.receive(Welcome(2, 1, [])).send == []
    _, reaction = streams.open(generate("s"))
    assert reaction.send == []
    sent = streams.receive(Models(2, [model_info(state="restarting")])).send
    assert [message.req_id for message in sent if isinstance(message, Generate)] == ["r", "s"]
    assert streams.receive(Models(2, [model_info()])).send == []


def test_only_a_request_that_was_taken_is_resumed() -> None:
    """`resumed` passes the queue's bound, so a request that no scheduler ever accepted does not claim it."""
    streams, request = opened()
    (again,) = streams.receive(Welcome(2, 1, [model_info()])).send
    assert isinstance(again, Generate) and not again.resumed
    streams.receive(Accepted(2, "r"))
    (third,) = streams.receive(Welcome(3, 1, [model_info()])).send
    assert isinstance(third, Generate) and third.resumed and request.accepted


def test_messages_of_another_incarnation_are_dropped() -> None:
    """Deltas, answers and model lists of a scheduler that is gone change nothing."""
    streams, request = opened()
    for message in (delta(7, 0, [1]), Accepted(7, "r"), Refused(7, "r", "queue_full", "full"), Models(7, [])):
        reaction = streams.receive(message)
        assert reaction.news == [] and reaction.send == [] and not reaction.models_changed
    assert request.read() == [] and not request.accepted and request.refused is None


def test_resubmission_carries_what_is_held() -> None:
    """Ids so far, credit, a pending stop; a choice that is complete is not wanted again."""
    streams, request = opened(choices=3)
    streams.receive(delta(1, 0, [5, 6]))
    streams.receive(delta(1, 0, [7], choice=1, finish=Finish("stop", 1, 0, 1)))
    streams.receive(delta(1, 0, [8, 9], choice=2))
    assert streams.consumed(request, 0, 2).send == [Credit("r", 0, 6)]
    streams.stop(request, 2, 1)
    again, *rest = streams.receive(Welcome(2, 1, [model_info()])).send
    assert isinstance(again, Generate) and again.output_ids == [[5, 6], [7], [8]] and again.credit == 4 and again.resumed
    assert rest == [Credit("r", 0, 6), Abort("r", 1, "cancel"), Abort("r", 2, "stop", 1)]


def test_ends_are_acknowledged_each_time_they_come() -> None:
    """A repeated finish means that the acknowledgement was lost; the first one counts."""
    streams, request = opened()
    end = Finish("length", 1, 0, 1)
    assert streams.receive(delta(1, 0, [5], finish=end)).send == [FinishAck("r", 0)]
    assert streams.receive(delta(1, 0, [5], finish=Finish("error", 1, 0, 1))).send == [FinishAck("r", 0)]
    (update,) = request.read()
    assert update.ids == [5] and update.finish == end
    assert streams.receive(Welcome(2, 1, [model_info()])).send == [], "an ended request is not asked for again"


def test_a_gap_is_asked_for_again() -> None:
    """Ids missing in between are not guessed: the request is sent again with what is held."""
    streams, request = opened()
    streams.receive(delta(1, 0, [5]))
    (again,) = streams.receive(delta(1, 3, [8])).send
    assert isinstance(again, Generate) and again.output_ids == [[5]]
    assert request.read()[0].ids == [5]


def test_output_of_a_closed_request_is_cancelled() -> None:
    """Its Abort may have been lost with a connection; an end of it is acknowledged."""
    streams, request = opened()
    assert streams.close(request).send == [Abort("r", 0, "cancel")]
    assert streams.receive(delta(1, 0, [5])).send == [Abort("r", 0, "cancel")]
    assert streams.receive(delta(1, 0, [5], finish=Finish("length", 1, 0, 1))).send == [FinishAck("r", 0)]


def test_a_refusal_ends_the_request() -> None:
    streams, request = opened()
    assert streams.receive(Refused(1, "r", "queue_timeout", "waited", 2.0)).news == [request]
    assert request.ended and streams.close(request).send == []
    assert streams.receive(Welcome(2, 1, [model_info()])).send == []


def test_odd_deltas_are_dropped() -> None:
    """Columns of unequal length, and a choice that the request does not have, do no harm."""
    streams, request = opened()
    streams.receive(Deltas(1, ["r"], [0], [], [[1]]))
    streams.receive(delta(1, 0, [1], choice=5))
    assert request.read() == []


def test_another_protocol_is_not_spoken() -> None:
    streams = Streams()
    streams.receive(Welcome(1, 99, []))
    assert not streams.connected
