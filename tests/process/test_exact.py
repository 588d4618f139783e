"""X1 through the whole pool: concurrent streams equal their solo runs, ids and logits digests."""

from __future__ import annotations

import pytest
from digests import Seen, ragged_prompts, submit, together
from service import serving

from helexa.client import Client

pytestmark = pytest.mark.process


def alone(client: Client, asked: list[list[int]], model: str, tokens: int) -> list[Seen]:
    return [
        [(token.id, token.hash) for token in submit(client, prompt, model, tokens + index % 5)]
        for index, prompt in enumerate(asked)
    ]


def check(folder, model_path, name: str, vocab: int, tokens: int, *flags: str) -> None:
    with serving(folder, str(model_path), "--name", name, *flags) as service, Client(service.run_dir) as client:
        asked = ragged_prompts(vocab)
        batched = together(client, asked, name, tokens)
        steps = service.status()["models"][0]["counters"]["steps"]
        assert alone(client, asked, name, tokens) == batched
        solo_steps = service.status()["models"][0]["counters"]["steps"] - steps
        assert steps < solo_steps / 2, "the streams did not share steps"
        assert all(digest for stream in batched for _, digest in stream)


@pytest.mark.parametrize("ops", ["reference", "auto"])
def test_sixteen_ragged_streams_equal_their_solo_runs(tmp_path, tiny_model_path, ops):
    """Greedy ids and the digest of every sampled row's logits."""
    check(tmp_path, tiny_model_path, "tiny", 259, 40, "--ops", ops)


@pytest.mark.model
def test_sixteen_ragged_streams_of_the_default_model_equal_their_solo_runs(tmp_path, default_model_path):
    """The same with a real model, and the ops a newcomer gets."""
    check(tmp_path, default_model_path, "smollm2", 49152, 6)
