"""The codec: what is encoded comes back, and no bytes raise anything but BadMessage."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc import codec, messages
from ipc.codec import BadMessage

DECODERS = [codec.decode_client, codec.decode_scheduler, codec.decode_to_worker, codec.decode_from_worker, codec.decode_to_child]
ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(st.text(min_size=1, max_size=20), ids, st.lists(ids, min_size=1, max_size=3), st.integers(1, 1000), st.floats(0, 100))
def test_a_request_comes_back_as_it_went(req_id, prompt, output, max_tokens, temperature):
    """Typed round trip, and the same through the plain msgpack package."""
    params = messages.SamplingParams(max_tokens=max_tokens, temperature=temperature)
    message = messages.Generate(req_id, "m", prompt, output, [1] * len(output), params, 5)
    data = codec.encode(message)
    assert codec.decode_client(data) == message
    assert codec.decode_client(msgpack.packb(msgpack.unpackb(data))) == message


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    """Random bytes: a message, or BadMessage."""
    for decode in DECODERS:
        try:
            decode(data)
        except BadMessage:
            pass


@pytest.mark.parametrize(
    "value",
    [
        {"type": "hello", "protocol": 1, "more": 1},
        {"type": "launch"},
        {"type": "credit", "req_id": "a", "choice": -1, "upto": 1},
        {"type": "credit", "req_id": "a", "choice": 0, "upto": float("nan")},
        {"type": "credit", "req_id": "", "choice": 0, "upto": 1},
        {"type": "credit", "req_id": "a" * 129, "choice": 0, "upto": 1},
        {"type": "hello", "protocol": msgpack.ExtType(5, b"x")},
        {"type": "hello", "protocol": msgpack.Timestamp(1)},
        [1, 2],
        None,
    ],
    ids=str,
)
def test_what_is_not_of_the_protocol_is_refused(value):
    """Unknown fields and types, negative and non-finite numbers, extensions."""
    with pytest.raises(BadMessage):
        codec.decode_client(msgpack.packb(value))


def test_a_pickle_is_just_bytes():
    """Nothing runs: a pickle is refused like any other noise."""
    import pickletools

    payload = b"cos\nsystem\n(S'touch /tmp/never'\ntR."
    assert list(pickletools.genops(payload))
    for decode in DECODERS:
        with pytest.raises(BadMessage):
            decode(payload)


def test_a_message_too_large_is_refused_before_it_is_read():
    """By its length alone."""
    with pytest.raises(BadMessage, match="at most"):
        codec.decode_from_worker(b"\x90" * (codec.MAX_WORKER_BYTES + 1))
    with pytest.raises(BadMessage, match="at most"):
        codec.decode_to_worker(b"\x90" * (codec.MAX_TO_WORKER_BYTES + 1))
