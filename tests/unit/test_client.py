"""The ZeroMQ client, against a peer that speaks the scheduler's side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_scheduler import FakeScheduler, model_info

from helexa.client import Client, Generation
from helexa.errors import RequestError
from ipc.messages import Abort, Credit, FinishAck, Generate, Hello

ROOT = Path(__file__).parents[2]
PROMPT = list(range(40))


def test_tokens_come_once_and_in_order(tmp_path: Path) -> None:
    """Overlapping deltas, a small credit: the iterator gives each token once, with its logprob and hash, then the end."""
    with FakeScheduler(tmp_path, overlap=3) as peer, Client(tmp_path, name="t", credit=8) as client:
        generation = client.generate(PROMPT, max_tokens=100, seed=5, logprobs=2, hash_logits=True)
        tokens = list(generation)
        assert [token.id for token in tokens] == [*PROMPT, 256] == generation.ids()
        assert [token.index for token in tokens] == list(range(41))
        assert all(token.logprob == -0.5 and token.top[0] == (token.id, -0.5) and token.hash == token.id * 7 for token in tokens)
        assert generation.finish is not None and generation.finish.reason == "stop" and generation.finish.output_tokens == 41
        peer.wait_for(FinishAck)
        assert peer.wait_for(Hello)[0].client == "t" and peer.wait_for(Generate)[0].seeds == [5]
        assert peer.wait_for(Credit)[0].upto <= 16


def test_a_dead_scheduler_is_a_pause(tmp_path: Path) -> None:
    """Killed in the middle of two generations: both end with the ids they would have had."""
    with Client(tmp_path) as client:
        with FakeScheduler(tmp_path, allowed=7):
            generations = [client.submit([*PROMPT, number], max_tokens=100) for number in range(2)]
            seen: dict[str, list[int]] = {generation.req_id: [] for generation in generations}
            while min(map(len, seen.values())) < 7:
                collect(client.poll(), seen)
        with FakeScheduler(tmp_path, incarnation=2, overlap=4) as second:
            while not all(generation.ended for generation in generations):
                collect(client.poll(), seen)
            for number, generation in enumerate(generations):
                assert seen[generation.req_id] == [*PROMPT, number, 256]
            assert all(request.resumed and request.output_ids == [PROMPT[:7]] for request in second.wait_for(Generate, 2))


def collect(news: list[Generation], seen: dict[str, list[int]]) -> None:
    for generation in news:
        seen[generation.req_id] += [token.id for token in generation.take()]


def test_several_choices(tmp_path: Path) -> None:
    """`seeds` has one a choice; tokens say which choice they are of."""
    with FakeScheduler(tmp_path), Client(tmp_path) as client:
        generation = client.generate([1, 2], seeds=[7, 8], max_tokens=2)
        tokens = list(generation)
        assert sorted((token.choice, token.index, token.id) for token in tokens) == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2)]
        assert [finish.reason for finish in generation.finishes if finish] == ["length", "length"]


def test_cancel(tmp_path: Path) -> None:
    """What came stays; the engine is told; iterating on ends."""
    with FakeScheduler(tmp_path, allowed=3) as peer, Client(tmp_path) as client:
        generation = client.generate(PROMPT)
        iterator = iter(generation)
        assert [next(iterator).id for _ in range(3)] == PROMPT[:3]
        generation.cancel()
        assert list(iterator) == [] and generation.finish is not None and generation.finish.reason == "abort"
        assert peer.wait_for(Abort)[0].reason == "cancel"
        assert client.poll(0) == []


def test_a_refusal_is_an_error(tmp_path: Path) -> None:
    with FakeScheduler(tmp_path, refuse=("queue_full", "too many wait", 1.5)), Client(tmp_path) as client:
        with pytest.raises(RequestError) as caught:
            list(client.generate([1], model="m"))
        assert caught.value.code == "queue_full" and caught.value.retry_after == 1.5


def test_models(tmp_path: Path) -> None:
    """The only model needs no name; with several one must be named; with no scheduler there is an error in time."""
    with FakeScheduler(tmp_path, models=[model_info("a"), model_info("b")]), Client(tmp_path) as client:
        assert [model["name"] for model in client.models()] == ["a", "b"]
        with pytest.raises(RequestError, match="a, b"):
            client.generate([1])
    with Client(tmp_path) as client, pytest.raises(RequestError) as caught:
        client.models(wait_s=0.05)
    assert caught.value.code == "scheduler_down"


def test_it_needs_nothing_but_pyzmq_and_msgpack() -> None:
    """Importing the client imports no msgspec, no HTTP and no numpy."""
    unwanted = ("msgspec", "falcon", "gunicorn", "numpy", "tokenizers")
    code = f"import sys, helexa.client; print([name for name in {unwanted} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
