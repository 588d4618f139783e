"""The protocol of ipc/README.md, spoken with nothing but pyzmq and msgpack: what it promises is what the service does."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgpack
import pytest
import zmq
from service import serving
from tiny_model import write_tiny_model

pytestmark = pytest.mark.process

PARAMS = {"max_tokens": 24, "temperature": 1.0, "ignore_eos": True}
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def service(tmp_path_factory, tiny_model_path):
    with serving(tmp_path_factory.mktemp("zmq"), str(tiny_model_path)) as running:
        yield running


class Peer:
    """A DEALER that sends maps and reads them; `said` of each kind are what came, in order."""

    def __init__(self, run_dir: Any) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, f"test-{secrets.token_hex(8)}".encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        self.socket.connect(f"ipc://{run_dir}/requests.ipc")

    def send(self, type: str, **fields: Any) -> None:
        self.socket.send(msgpack.packb({"type": type, **fields}))

    def receive(self) -> dict[Any, Any]:
        return msgpack.unpackb(self.socket.recv(), strict_map_key=False)

    def wait_for(self, type: str) -> dict[Any, Any]:
        while True:
            message = self.receive()
            if message["type"] == type:
                return message

    def hello(self) -> dict[Any, Any]:
        self.send("hello", protocol=1, client="test")
        return self.wait_for("welcome")

    def generate(self, req_id: str, **fields: Any) -> None:
        request = {
            "model": "tiny",
            "prompt_ids": [10, 20, 30],
            "output_ids": [[]],
            "seeds": [7],
            "params": PARAMS,
            "credit": 1000,
        }
        self.send("generate", req_id=req_id, **{**request, **fields})

    def collect(
        self, req_id: str, choices: int = 1, held: list[list[int]] | None = None
    ) -> list[tuple[list[int], dict[str, Any]]]:
        """Each choice's ids and end; checks that what comes follows what is held."""
        ids = [list(part) for part in held or [[] for _ in range(choices)]]
        ends: dict[int, dict[str, Any]] = {}
        while len(ends) < choices:
            message = self.wait_for("deltas")
            for entry, name in enumerate(message["req_ids"]):
                if name != req_id:
                    continue
                choice, start = message["choices"][entry], message["starts"][entry]
                assert start <= len(ids[choice]), "a gap"
                ids[choice][start:] = message["ids"][entry]
                if entry in message["finishes"]:
                    ends[choice] = message["finishes"][entry]
                    self.send("finish_ack", req_id=req_id, choice=choice)
        return [(ids[choice], ends[choice]) for choice in range(choices)]

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def peer(service) -> Iterator[Peer]:
    made = Peer(service.run_dir)
    yield made
    made.close()


def test_a_greeting(peer):
    """`welcome` has the incarnation, the protocol's version, and the models with all that ModelInfo names."""
    welcome = peer.hello()
    (model,) = welcome["models"]
    assert welcome["protocol"] == 1 and isinstance(welcome["incarnation"], int) and welcome["draining"] is False
    assert (model["name"], model["state"]) == ("tiny", "ready") and model["context"] > 0 and model["vocab"] > 0


def test_a_generation(peer):
    """Seated, then deltas to an end whose count is that of the ids; the same seed repeats it, choices have their own."""
    peer.hello()
    peer.generate("one", output_ids=[[], []], seeds=[7, 8])
    assert peer.wait_for("seated")["req_ids"] == ["one"]
    (first, end), (second, _) = peer.collect("one", 2)
    assert len(first) == end["output_tokens"] == 24 and end["reason"] == "length" and end["prompt_tokens"] == 3
    assert first != second
    peer.generate("two")
    assert peer.collect("two")[0][0] == first


def test_a_generation_goes_on_from_what_is_held(peer):
    """With `resumed` and the ids held, as after a lost scheduler, only the rest comes, and it is the same."""
    peer.hello()
    peer.generate("a")
    ((whole, _),) = peer.collect("a")
    peer.generate("b", output_ids=[whole[:10]], resumed=True)
    ((again, end),) = peer.collect("b", held=[whole[:10]])
    assert again == whole and end["output_tokens"] == 24


def test_credit_bounds_what_is_sent(peer):
    """Nothing beyond it comes; more credit brings the rest."""
    peer.hello()
    peer.generate("slow", credit=5)
    held: list[int] = []
    while len(held) < 5:
        held += peer.wait_for("deltas")["ids"][0]
    assert len(held) == 5
    peer.send("credit", req_id="slow", choice=0, upto=1000)
    ((ids, _),) = peer.collect("slow", held=[held])
    assert len(ids) == 24 and ids[:5] == held


def test_a_stop_and_a_cancel(peer):
    """`stop` ends at `keep`; of a cancelled choice nothing more comes, and its id can be used again."""
    peer.hello()
    peer.generate("s", credit=6)
    held: list[int] = []
    while len(held) < 6:
        held += peer.wait_for("deltas")["ids"][0]
    peer.send("abort", req_id="s", choice=0, reason="stop", keep=4)
    ((_, end),) = peer.collect("s", held=[held])
    assert end["reason"] == "stop" and end["output_tokens"] == 4
    peer.generate("c", credit=2)
    while peer.wait_for("deltas")["starts"] != [1]:
        pass
    peer.send("abort", req_id="c", choice=0, reason="cancel")
    peer.generate("c", seeds=[9])
    assert len(peer.collect("c")[0][0]) == 24


def test_what_else_comes_with_tokens(peer):
    """Log probabilities, of the output and of the prompt, and digests of logits; a grammar holds the output."""
    peer.hello()
    params = {**PARAMS, "max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1, "hash_logits": True}
    peer.generate("scored", params=params)
    logprobs, prompt, hashes = [], [], []
    while len(logprobs) < 3:
        message = peer.wait_for("deltas")
        logprobs += message["logprobs"].get(0, [])
        prompt += message["prompt_logprobs"].get(0, [])
        hashes += message["hashes"].get(0, [])
    assert [len(ids) for _, ids, _ in logprobs] == [2, 2, 2] and len(hashes) == 3
    assert len(prompt) == 2 and all(logprob <= 0 and len(ids) == len(values) == 1 for logprob, ids, values in prompt)
    grammar = '{"grammars": [{"lark_grammar": "start: \\"yes\\""}]}'
    peer.generate("held", params={"max_tokens": 9, "temperature": 1.0, "grammar": grammar})
    ((ids, end),) = peer.collect("held")
    assert end["reason"] == "stop" and len(ids) == 4


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "other"}, "model_not_found"),
        ({"prompt_ids": []}, "empty_prompt"),
        ({"prompt_ids": [10**6]}, "invalid_value"),
        ({"params": {"max_tokens": 10**6}}, "context_length_exceeded"),
        ({"params": {"max_tokens": 0}}, "invalid_value"),
        ({"params": {**PARAMS, "temprature": 1}}, "invalid_value"),
        ({"seeds": [1, 2]}, "invalid_value"),
        ({"colour": "red"}, "invalid_value"),
    ],
)
def test_refusals(peer, fields, code):
    """With the request's id and a code; the connection goes on."""
    peer.hello()
    peer.generate("bad", **fields)
    refused = peer.wait_for("refused")
    assert (refused["req_id"], refused["code"]) == ("bad", code) and refused["message"]
    peer.generate("good", params={"max_tokens": 1})
    assert len(peer.collect("good")[0][0]) == 1


def test_what_is_no_message_does_no_harm(peer):
    """Bytes of any kind, extension types, deep nesting: the service answers the next request."""
    peer.hello()
    hostile = [b"", b"\xc1", b"\x80\x04N.", msgpack.packb([1, 2]), msgpack.packb({"type": "load"}), msgpack.packb({"type": 3})]
    hostile += [msgpack.packb({"type": "hello", "protocol": msgpack.ExtType(5, b"x")}), b"\x91" * 5000]
    for data in hostile:
        peer.socket.send(data)
    peer.generate("after", params={"max_tokens": 1})
    assert len(peer.collect("after")[0][0]) == 1


def test_clients_are_apart(service, peer):
    """Two clients that use one id have a request each, and neither's cancel touches the other's."""
    other = Peer(service.run_dir)
    try:
        peer.hello()
        other.hello()
        peer.generate("same", credit=3)
        other.generate("same", seeds=[8])
        peer.wait_for("deltas")
        peer.send("abort", req_id="same", choice=0, reason="cancel")
        assert len(other.collect("same")[0][0]) == 24
    finally:
        other.close()


def test_embeddings(tmp_path, service):
    """`embed` is answered with one delta that holds the vector; where the model makes none, or is asked for text, by a refusal."""
    model = write_tiny_model(tmp_path / "tiny.gguf", pooling=1)
    with serving(tmp_path, str(model)) as other, closing(Peer(other.run_dir)) as peer:
        peer.hello()
        peer.send("embed", req_id="e", model="tiny", prompt_ids=[10, 20, 30])
        deltas = peer.wait_for("deltas")
        assert deltas["req_ids"] == ["e"] and len(deltas["pooled"][0]) == 4 * 64 and deltas["finishes"][0]["output_tokens"] == 1
        peer.generate("g")
        assert peer.wait_for("refused")["code"] == "generation_unsupported"
        peer.send("embed", req_id="f", model="nope", prompt_ids=[10])
        assert peer.wait_for("refused")["code"] == "model_not_found"
    with closing(Peer(service.run_dir)) as peer:
        peer.hello()
        peer.send("embed", req_id="e", model="tiny", prompt_ids=[10, 20, 30])
        assert peer.wait_for("refused")["code"] == "embeddings_unsupported"
