"""The web worker's socket, against a peer that speaks the scheduler's side."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_scheduler import FakeScheduler, model_info

from helexa.errors import RequestError
from helexa.web import engine_client
from helexa.web.engine_client import EngineClient, Stream
from ipc.messages import Abort, Credit, FinishAck, Generate, Hello, ModelInfo, SamplingParams, Want

PROMPT = list(range(40))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def play(run_dir: Path, scene: Callable[[EngineClient], Awaitable[None]], **settings: float) -> None:
    """Runs the scene with an engine client that is open."""

    async def main() -> None:
        engine = EngineClient(run_dir, **settings)
        engine.open()
        try:
            async with asyncio.timeout(20):
                await scene(engine)
        finally:
            engine.close()

    asyncio.run(main())


def submit(engine: EngineClient, req_id: str = "r", choices: int = 1, credit: int = 512) -> Stream:
    params = SamplingParams(max_tokens=100)
    generate = Generate(req_id, "m", PROMPT, [[] for _ in range(choices)], list(range(choices)), params, credit)
    return engine.submit(generate, asyncio.Event())


async def read_until_end(stream: Stream, ids: list[int], consume: bool = True) -> str:
    """Reads one choice to its end; returns the reason."""
    while True:
        await stream.news.wait()
        stream.news.clear()
        if stream.refusal is not None:
            raise stream.refusal
        for update in stream.read():
            assert update.start == len(ids)
            ids += update.ids
            if update.finish is not None:
                return update.finish.reason
        if consume:
            stream.consumed(0, len(ids))


def test_a_request_runs_to_its_end(run_dir: Path) -> None:
    """Hello, Welcome, Generate, deltas that overlap: the ids come once each, and the end is acknowledged."""

    async def scene(engine: EngineClient) -> None:
        assert (await engine.model("m")).name == "m"
        ids: list[int] = []
        assert await read_until_end(submit(engine), ids) == "stop"
        assert ids == [*PROMPT, 256]

    with FakeScheduler(run_dir, overlap=3, per_delta=2) as peer:
        play(run_dir, scene)
        peer.wait_for(FinishAck)
        assert peer.wait_for(Hello)[0].client == "web"


def test_a_dead_scheduler_is_a_pause(run_dir: Path) -> None:
    """Killed in the middle: the next one, of another incarnation, is asked for the rest, and the reply is the same."""
    peers = [FakeScheduler(run_dir, allowed=7)]

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        stream = submit(engine)
        ids: list[int] = []
        while len(ids) < 7:
            await stream.news.wait()
            stream.news.clear()
            ids += [id for update in stream.read() for id in update.ids]
        await asyncio.to_thread(peers[0].kill)
        peers.append(FakeScheduler(run_dir, incarnation=2, overlap=5))
        assert await read_until_end(stream, ids) == "stop"
        assert ids == [*PROMPT, 256]

    play(run_dir, scene)
    (again,) = peers[1].wait_for(Generate)
    assert again.resumed and again.output_ids == [PROMPT[:7]]
    peers[1].kill()


def test_a_request_waits_for_a_scheduler_that_comes(run_dir: Path) -> None:
    """Opened while none is there, it goes out with the first Welcome."""

    async def scene(engine: EngineClient) -> None:
        stream = submit(engine)
        with FakeScheduler(run_dir) as peer:
            ids: list[int] = []
            await read_until_end(stream, ids)
            assert ids == [*PROMPT, 256]
            assert not peer.wait_for(Generate)[0].resumed

    play(run_dir, scene)


def test_a_lost_connection_is_noticed(run_dir: Path) -> None:
    """While it is down nothing is sent, so a request opened then reaches the next scheduler once."""
    peers = [FakeScheduler(run_dir)]

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        await asyncio.to_thread(peers[0].kill)
        while engine.connected:
            await asyncio.sleep(0)
        stream = submit(engine)
        peers.append(FakeScheduler(run_dir, incarnation=2))
        await read_until_end(stream, [])

    play(run_dir, scene)
    assert len(peers[1].wait_for(Generate)) == 1
    peers[1].kill()


def test_no_scheduler_is_an_error_after_a_while(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "ADMISSION_WAIT_S", 0.05)

    async def scene(engine: EngineClient) -> None:
        with pytest.raises(RequestError) as caught:
            await engine.model("m")
        assert caught.value.code == "scheduler_down"

    play(run_dir, scene)


def test_credit_bounds_what_is_sent(run_dir: Path) -> None:
    """A consumer that does not say it is done gets its first credit and no more; each extension lets half a window through."""

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        stream = submit(engine, credit=8)
        ids: list[int] = []
        while len(ids) < 8:
            await stream.news.wait()
            stream.news.clear()
            ids += [id for update in stream.read() for id in update.ids]
        assert await asyncio.to_thread(peer.sent) == [8]
        stream.consumed(0, len(ids))
        await read_until_end(stream, ids)
        assert ids == [*PROMPT, 256]

    with FakeScheduler(run_dir) as peer:
        play(run_dir, scene)
        uptos = [credit.upto for credit in peer.wait_for(Credit)]
        assert uptos == sorted(uptos) and uptos[0] == 16 and all(b - a >= 4 for a, b in itertools.pairwise(uptos))


def test_closing_cancels(run_dir: Path) -> None:
    """Every open choice is cancelled, once, whatever is closed twice."""

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        stream = submit(engine, choices=2)
        await stream.news.wait()
        stream.close()
        stream.close()

    with FakeScheduler(run_dir, allowed=0) as peer:
        play(run_dir, scene)
        assert {(abort.choice, abort.reason) for abort in peer.wait_for(Abort, 2)} == {(0, "cancel"), (1, "cancel")}


def test_nonsense_from_the_peer_is_dropped(run_dir: Path) -> None:
    """Bytes that are no message are logged and skipped; what follows is served."""

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        await asyncio.to_thread(peer.send_raw, b"\xc1\x00 nonsense")
        await asyncio.to_thread(peer.change_models, [model_info("other")])
        while "other" not in engine.models:
            await engine.models_changed()

    with FakeScheduler(run_dir) as peer:
        play(run_dir, scene)


@pytest.mark.parametrize(
    ("info", "code"),
    [
        (model_info("other"), "model_not_found"),
        (model_info(state="loading"), "model_loading"),
        (model_info(state="failed", error="the file is damaged"), "model_failed"),
    ],
)
def test_models_that_cannot_serve(run_dir: Path, info: object, code: str) -> None:
    """Each state has its own error; an unknown name lists what is served."""

    async def scene(engine: EngineClient) -> None:
        with pytest.raises(RequestError) as caught:
            await engine.model("m")
        assert caught.value.code == code
        if code == "model_not_found":
            assert "`other`" in caught.value.message
        if code == "model_failed":
            assert "the file is damaged" in caught.value.message

    with FakeScheduler(run_dir, models=[info]):  # type: ignore[list-item]
        play(run_dir, scene)


def test_a_model_that_comes_back_is_waited_for(run_dir: Path) -> None:
    """After a scheduler's death models are unknown, then restarting with an unknown context: nothing is refused for it."""

    async def scene(engine: EngineClient) -> None:
        asked = asyncio.create_task(engine.model("m"))
        await engine.models_changed()
        await asyncio.to_thread(peer.change_models, [model_info(state="restarting", context=0)])
        while "m" not in engine.models:
            await engine.models_changed()
        assert not asked.done()
        await asyncio.to_thread(peer.change_models, [model_info()])
        assert (await asked).context == 256

    with FakeScheduler(run_dir, models=[]) as peer:
        play(run_dir, scene)


def test_a_draining_server_takes_nothing_new(run_dir: Path) -> None:
    async def scene(engine: EngineClient) -> None:
        with pytest.raises(RequestError) as caught:
            await engine.model("m")
        assert caught.value.code == "shutting_down"

    with FakeScheduler(run_dir) as peer:
        peer.draining = True
        play(run_dir, scene)


def unloaded(state: str = "unloaded", **fields: object) -> list[ModelInfo]:
    return [model_info(), model_info("other", state=state, on_request=True, **fields)]


def test_a_model_on_request_is_asked_for_and_waited_for(run_dir: Path) -> None:
    """The scheduler is told that it is wanted, again after it was said to be unloaded still; the request goes on once it is ready."""

    async def scene(engine: EngineClient) -> None:
        await engine.model("m")
        asking = asyncio.create_task(engine.model("other"))
        await asyncio.to_thread(peer.wait_for, Want)
        peer.change_models(unloaded())
        wanted = await asyncio.to_thread(peer.wait_for, Want, 2)
        assert [message.model for message in wanted] == ["other"] * 2
        peer.change_models(unloaded("loading"))
        await engine.models_changed()
        assert not asking.done()
        peer.change_models(unloaded("ready"))
        assert (await asking).state == "ready"

    with FakeScheduler(run_dir, models=unloaded()) as peer:
        play(run_dir, scene)


@pytest.mark.parametrize("state", ["failed", "gone"])
def test_a_model_on_request_that_does_not_come(run_dir: Path, state: str) -> None:
    """All who wait are told at once, with the reason."""

    async def scene(engine: EngineClient) -> None:
        asking = [asyncio.create_task(engine.model("other")) for _ in range(3)]
        await asyncio.to_thread(peer.wait_for, Want)
        peer.change_models([model_info()] if state == "gone" else unloaded("failed", error="no room"))
        errors = await asyncio.gather(*asking, return_exceptions=True)
        codes = {error.code for error in errors if isinstance(error, RequestError)}
        assert codes == {"model_not_found" if state == "gone" else "model_failed"}
        assert state == "gone" or "no room" in str(errors[0])

    with FakeScheduler(run_dir, models=unloaded()) as peer:
        play(run_dir, scene)


def test_how_many_wait_for_a_model_and_how_long_is_bounded(run_dir: Path) -> None:
    """By admission.queue_depth and admission.queue_wait_s, as any queue."""

    async def scene(engine: EngineClient) -> None:
        asking = [asyncio.create_task(engine.model("other")) for _ in range(3)]
        errors = await asyncio.gather(*asking, return_exceptions=True)
        assert [getattr(error, "code", error) for error in errors] == ["model_loading", "model_loading", "queue_full"]

    with FakeScheduler(run_dir, models=unloaded()):
        play(run_dir, scene, load_wait_s=0.2, load_depth=2)
