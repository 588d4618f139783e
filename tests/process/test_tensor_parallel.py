"""A model on several ranks: the bits of one, whatever becomes of its processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from digests import Seen, ragged_prompts, together
from operating_service import ctl
from service import Service, free_port, helexa, launch, serving, wait_until_gone
from tiny_model import write_tiny_model

from helexa.client import Client
from helexa.errors import RequestError

pytestmark = pytest.mark.process

STREAMS, TOKENS = 8, 120
PROMPTS = ragged_prompts(259, STREAMS)
WATCH = "[watch]\nheartbeat_s = 1.0\nstep_s = 2.0\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with three KV heads: two ranks have them unevenly, three have one each."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "three.gguf", heads=6, kv_heads=3)


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """The streams of one rank."""
    with serving(tmp_path_factory.mktemp("calm"), str(model), "--name", "tiny") as service, Client(service.run_dir) as client:
        return together(client, PROMPTS, "tiny", TOKENS)


def pids(service: Service, ranks: int) -> list[int]:
    return [service.pid(f"rank {rank}") for rank in range(ranks)]


def folder_of(folder: Path, count: int) -> Path:
    (folder / f"ranks-{count}").mkdir()
    return folder / f"ranks-{count}"


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("ops", ["reference", "auto"])
def test_any_number_of_ranks_gives_the_bits_of_one(tmp_path: Path, model: Path, ranks: int, ops: str) -> None:
    """Ids, and the digest of every sampled row's logits; one worker of so many processes, as its status says."""
    seen = []
    for count in (1, ranks):
        flags = ("--name", "tiny", "--ops", ops, "--tensor-parallel", str(count))
        with serving(folder_of(tmp_path, count), str(model), *flags) as service, Client(service.run_dir) as client:
            seen.append(together(client, PROMPTS, "tiny", 20))
            status = service.status()["models"][0]
            assert status["ranks"] == count and status["pids"] == pids(service, count)
    assert seen[0] == seen[1]


@pytest.mark.model
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_default_model_on_several_ranks(tmp_path: Path, default_model_path: Path, ranks: int) -> None:
    """The same with a real model, and the ops a newcomer gets."""
    seen = []
    for count in (1, ranks):
        flags = ("--name", "smollm2", "--tensor-parallel", str(count))
        with serving(folder_of(tmp_path, count), str(default_model_path), *flags) as service, Client(service.run_dir) as client:
            seen.append(together(client, ragged_prompts(49152, STREAMS), "smollm2", 6))
    assert seen[0] == seen[1]


def test_a_hybrid_model_on_two_ranks(tmp_path: Path) -> None:
    """Recurrent state is split by heads, as KV is; a prefix goes on from a snapshot that each rank has its part of."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.0")
    from hybrid_folder import write_hybrid_folder

    folder = write_hybrid_folder(tmp_path / "model")
    long = [3 + (place * 29) % 240 for place in range(200)]
    seen = []
    for count in (1, 2):
        flags = ("--name", "hybrid", "--tensor-parallel", str(count))
        with serving(folder_of(tmp_path, count), str(folder), *flags) as service, Client(service.run_dir) as client:
            streams = together(client, ragged_prompts(250, STREAMS), "hybrid", 20)
            cold, warm = (together(client, [long], "hybrid", 20) for _ in range(2))
            assert cold == warm and service.status()["models"][0]["counters"]["cached_tokens"] >= 192
            seen.append([*streams, *cold])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_one_rank_is_a_pause(
    tmp_path: Path, model: Path, undisturbed: list[Seen], rank: int, number: signal.Signals
) -> None:
    """All ranks are replaced, which counts as one death; eight streams go on to the bits of one rank; twice."""
    (tmp_path / "helexa.toml").write_text(WATCH)
    flags = ("--name", "tiny", "--tensor-parallel", "2")
    with serving(tmp_path, str(model), *flags) as service, Client(service.run_dir, credit=32) as client:
        for _ in range(2):
            before = pids(service, 2)
            hit = lambda before=before: os.kill(before[rank], number)  # noqa: E731
            assert together(client, PROMPTS, "tiny", TOKENS, hit, 3 * STREAMS) == undisturbed
            assert wait_until_gone(before) == []
        status = service.status()["models"][0]
        assert status["counters"]["worker_losses"] == 2
        assert (status["running"], status["waiting"], status["blocks_used"]) == (0, 0, 0)
        service.wait_for(f"worker rank {rank} is gone", 2)


@pytest.mark.parametrize(
    ("fault", "counter"),
    [
        ("hang:step=30", "hangs"),
        ("hang:step=30,rank=1", "hangs"),
        ("device:step=30", "device_faults"),
        ("device:step=30,rank=1", "device_faults"),
        ("memory:step=30,rank=1", "memory_faults"),
    ],
)
def test_a_fault_of_one_rank_ends_all(tmp_path: Path, model: Path, undisturbed: list[Seen], fault: str, counter: str) -> None:
    """A hang in a step: hearts beat, and nobody can say which rank it is that the others wait for. A fault, of which the others learn by
    being left: the count is right all the same."""
    (tmp_path / "helexa.toml").write_text(f"{WATCH}[debug]\nfaults = true\n")
    flags = ("--name", "tiny", "--tensor-parallel", "2")
    with (
        serving(tmp_path, str(model), *flags, HELEXA_FAULT=fault) as service,
        Client(service.run_dir) as client,
    ):
        before = pids(service, 2)
        assert together(client, PROMPTS, "tiny", TOKENS) == undisturbed
        assert wait_until_gone(before) == []
        assert service.status()["models"][0]["counters"][counter] == 1


def test_a_killed_scheduler_leaves_the_weights_where_they_are(tmp_path: Path, model: Path, undisturbed: list[Seen]) -> None:
    """Both ranks live, meet again at the next scheduler, and eight streams go on."""
    flags = ("--name", "tiny", "--tensor-parallel", "2")
    with serving(tmp_path, str(model), *flags) as service, Client(service.run_dir, credit=32) as client:
        before, dead = pids(service, 2), []
        for _ in range(2):
            kill = lambda dead=dead: dead.append(service.kill("scheduler"))  # noqa: E731
            assert together(client, PROMPTS, "tiny", TOKENS, kill, 3 * STREAMS) == undisturbed
            assert wait_until_gone(dead) == []
        assert pids(service, 2) == before


def test_reload_and_drain(tmp_path: Path, model: Path, undisturbed: list[Seen]) -> None:
    """A swap of the model under streams brings a second pair of ranks, and the first ends, both of it. Another number of ranks takes
    a restart. A drain refuses what is new; the stop leaves nothing behind."""

    def write(ranks: int, **choice: object) -> None:
        chosen = "".join(f"{name} = {value}\n" for name, value in choice.items())
        text = f'[model]\nsource = "{model}"\nname = "tiny"\n{chosen}[devices]\ntensor_parallel = {ranks}\n'
        (tmp_path / "helexa.toml").write_text(text)

    write(2)
    with serving(tmp_path) as service, Client(service.run_dir, credit=32) as client:
        before = pids(service, 2)

        def swap() -> None:
            write(2, context=500)
            assert ctl(tmp_path, service, "reload")[0] == 0

        assert together(client, PROMPTS, "tiny", TOKENS, swap, 3 * STREAMS) == undisturbed
        assert wait_until_gone(before) == []
        assert together(client, PROMPTS, "tiny", TOKENS) == undisturbed
        write(3, context=500)
        code, output = ctl(tmp_path, service, "reload")
        assert code == 1 and "`devices.tensor_parallel`" in output and "restart" in output
        code, output = ctl(tmp_path, service, "status")
        assert code == 0 and f"2 ranks, pids {', '.join(map(str, pids(service, 2)))}" in output
        assert ctl(tmp_path, service, "drain")[0] == 0
        with pytest.raises(RequestError) as caught:
            together(client, PROMPTS[:1], "tiny", 4)
        assert caught.value.code == "shutting_down"


def test_unloaded_and_loaded_again(tmp_path: Path, model: Path, undisturbed: list[Seen]) -> None:
    """Both ranks end, and their memory is free; the next request brings two others."""
    flags = ("--name", "tiny", "--tensor-parallel", "2")
    with serving(tmp_path, str(model), *flags) as service, Client(service.run_dir) as client:
        before = pids(service, 2)
        assert ctl(tmp_path, service, "unload", "tiny")[0] == 0
        assert wait_until_gone(before) == []
        status = service.status()["models"][0]
        assert (status["state"], status["pids"], status["resident_bytes"]) == ("unloaded", [], 0)
        assert together(client, PROMPTS, "tiny", TOKENS) == undisturbed
        assert not set(pids(service, 2)) & set(before)


def test_more_ranks_than_a_model_has_kv_heads_for(tmp_path: Path, model: Path) -> None:
    """Said before any worker is started, with the number that would do."""
    port = free_port()
    command = helexa("serve", str(model), "--tensor-parallel", "4", "--port", str(port))
    service = launch(tmp_path, port, command)
    assert service.wait() == 1
    service.wait_for("its 3 KV heads cannot be split over 4 ranks; set devices.tensor_parallel (--tensor-parallel) to at most 3")
    assert not any("rank" in line and "worker" in line for line in service.report)
