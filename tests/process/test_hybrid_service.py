"""A hybrid model through the whole pool: the same bits with its prompts in pieces, from a snapshot, and after its worker's death."""

from __future__ import annotations

from pathlib import Path

import pytest
from digests import Seen, ragged_prompts, submit, together
from service import Service, serving, wait_until_gone

from helexa.client import Client

pytestmark = pytest.mark.process
pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

STREAMS, TOKENS = 8, 60
PROMPTS = ragged_prompts(250, STREAMS)
LONG = [3 + (place * 29) % 240 for place in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hybrid_folder import write_hybrid_folder

    return write_hybrid_folder(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """The streams, and last a long prompt by itself."""
    with serving(tmp_path_factory.mktemp("calm"), str(folder), "--name", "hybrid") as service, Client(service.run_dir) as client:
        return [*together(client, PROMPTS, "hybrid", TOKENS), *together(client, [LONG], "hybrid", TOKENS)]


def counters(service: Service) -> dict[str, int]:
    return service.status()["models"][0]["counters"]


def test_a_prompt_in_pieces_and_from_a_snapshot(tmp_path: Path, folder: Path, undisturbed: list[Seen]) -> None:
    """Steps of 16 tokens beside others; then the same prompt again, of which all but the last piece is a snapshot's."""
    settings = "[scheduling]\nstep_tokens = 16\n[cache]\nsnapshot_every = 64\n"
    (tmp_path / "helexa.toml").write_text(settings)
    with serving(tmp_path, str(folder), "--name", "hybrid") as service, Client(service.run_dir) as client:
        assert together(client, PROMPTS, "hybrid", TOKENS) == undisturbed[:-1]
        assert together(client, [LONG], "hybrid", TOKENS) == undisturbed[-1:]
        assert counters(service)["steps"] > len(LONG) / 16
        again = submit(client, LONG, "hybrid", TOKENS)
        assert [(token.id, token.hash) for token in again] == undisturbed[-1]
        assert again.finish is not None and again.finish.cached_tokens == 192


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_killed_process_is_a_pause(tmp_path: Path, folder: Path, undisturbed: list[Seen], role: str) -> None:
    """Under eight streams; the recurrent state is computed again."""
    with serving(tmp_path, str(folder), "--name", "hybrid") as service, Client(service.run_dir, credit=16) as client:
        dead: list[int] = []
        seen = together(client, PROMPTS, "hybrid", TOKENS, lambda: dead.append(service.kill(role)), 3 * STREAMS)
        assert seen == undisturbed[:-1]
        assert wait_until_gone(dead) == [] and service.pid(role) != dead[0]
