"""bytes <-> messages. Decoding is typed and bounded; what does not fit raises `BadMessage`, never anything else."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ipc import leash_messages, messages

MAX_CLIENT_BYTES = 16 * 1024 * 1024
MAX_WORKER_BYTES = 192 * 1024  # a SEQPACKET datagram of 256 KB fails with the default socket buffers
MAX_TO_WORKER_BYTES = 16 * 1024 * 1024  # several datagrams: a sequence that joins with a long history brings all its ids

T = TypeVar("T")


class BadMessage(ValueError):
    """The bytes are not a message of the expected direction; str() says where they stop being one."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Raises BadMessage for text that has no bytes: half of a surrogate pair."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise BadMessage(str(error)) from None


class Decoder:
    """Decodes one direction's messages.

    Extension types are refused by msgspec when the target type has none; NaN cannot pass the bounds on floats.
    """

    def __init__(self, kind: object, max_bytes: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        self._max_bytes = max_bytes

    def __call__(self, data: bytes | memoryview) -> object:
        if len(data) > self._max_bytes:
            raise BadMessage(f"{len(data)} bytes; at most {self._max_bytes} are read")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise BadMessage(str(error)) from None


decode_client = Decoder(messages.ClientMessage, MAX_CLIENT_BYTES)
decode_scheduler = Decoder(messages.SchedulerMessage, MAX_CLIENT_BYTES)
decode_to_worker = Decoder(messages.ToWorker, MAX_TO_WORKER_BYTES)
decode_from_worker = Decoder(messages.FromWorker, MAX_WORKER_BYTES)
decode_from_child = Decoder(leash_messages.FromChild, MAX_WORKER_BYTES)
decode_to_child = Decoder(leash_messages.ToChild, MAX_WORKER_BYTES)
