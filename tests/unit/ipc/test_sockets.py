"""Messages over SEQPACKET pairs: whole, whatever their size."""

from __future__ import annotations

import socket
import threading

import pytest

from ipc.codec import MAX_TO_WORKER_BYTES, MAX_WORKER_BYTES, BadMessage, decode_to_worker
from ipc.messages import Plan, SamplingParams, SeatJoin
from ipc.sockets import Closed, Link


def plan(history: int) -> Plan:
    """A plan whose one sequence joins with a history of so many bytes."""
    join = SeatJoin(0, 1, 2, SamplingParams(max_tokens=5), bytes(index % 251 for index in range(history)))
    return Plan(1, 2, 1, [], [join], [0], [3], [1], [1], [True], [7], [], [])


@pytest.fixture
def links():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    links = Link(ours, decode_to_worker, MAX_TO_WORKER_BYTES), Link(theirs, decode_to_worker)
    yield links
    for link in links:
        link.close()


def carried(links: tuple[Link, Link], message: Plan) -> object:
    """What arrives. The sender is another thread: it waits while the reader's buffer is full."""
    sender = threading.Thread(target=links[0].send, args=(message,))
    sender.start()
    received = links[1].receive()
    sender.join()
    return received


@pytest.mark.parametrize("history", [0, 100_000, MAX_WORKER_BYTES, 2 * MAX_WORKER_BYTES, 3_000_000])
def test_a_message_of_any_size_arrives_whole(links, history):
    """One datagram or many; the next message is read by itself."""
    assert carried(links, plan(history)) == plan(history)
    assert carried(links, plan(4)) == plan(4)


def test_the_size_at_which_a_message_is_parted(links):
    """One byte on either side of a datagram's limit, and of a whole number of datagrams."""
    for edge in (MAX_WORKER_BYTES, 2 * (MAX_WORKER_BYTES - 2)):
        around = edge - len_without_history(edge)
        for history in range(around - 2, around + 3):
            assert carried(links, plan(history)) == plan(history)


def len_without_history(edge: int) -> int:
    from ipc.codec import encode

    return len(encode(plan(edge))) - edge


def test_what_is_too_large_is_refused_by_the_sender(links):
    """A link that was not opened for large messages sends one datagram at most; the others have a limit too."""
    with pytest.raises(BadMessage, match="at most"):
        links[1].send(plan(MAX_WORKER_BYTES))
    with pytest.raises(BadMessage, match="at most"):
        links[0].send(plan(MAX_TO_WORKER_BYTES))


def test_broken_parts_are_no_message():
    """A missing last part, and more parts than any message has, are BadMessage; an end between parts is Closed."""
    for rest, error in (([b"\x90"], BadMessage), ([], Closed), ([b"\xc1\x01" + bytes(150_000)] * 120, BadMessage)):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link = Link(theirs, decode_to_worker)

        def send(sock: socket.socket = ours, rest: list[bytes] = rest) -> None:
            try:
                for data in [b"\xc1\x01abc", *rest]:
                    sock.send(data)
            except ConnectionError:
                pass
            sock.close()

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(error):
            link.receive()
        link.close()
        sender.join()
