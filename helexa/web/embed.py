"""Embeddings being made: each prompt is an engine request of its own, and what comes back is its vector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helexa.errors import RequestError
from helexa.web.engine_client import ADMISSION_WAIT_S, EngineClient, scheduler_down
from helexa.web.generate import failure_of
from ipc import embedding
from ipc.messages import ModelInfo, Priority

AT_ONCE = 16  # prompts of one HTTP request that the engine has in hand


@dataclass(frozen=True)
class Who:
    """Whose the work is: the key it counts for, and how urgent it is."""

    key: str
    priority: Priority


async def embed(
    engine: EngineClient, req_id: str, info: ModelInfo, prompts: Sequence[list[int]], who: Who
) -> list[NDArray[np.float32]]:
    """One vector (E) of length 1 a prompt. Raises RequestError for the first prompt that fails; the others are cancelled."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, ids: list[int]) -> NDArray[np.float32]:
        name = f"{req_id}-{number}" if number else req_id
        async with free:
            return normalised(await _pooled(engine, name, info, ids, who))

    tasks = [asyncio.create_task(one(number, ids)) for number, ids in enumerate(prompts)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _pooled(engine: EngineClient, req_id: str, info: ModelInfo, ids: list[int], who: Who) -> bytes:
    news = asyncio.Event()
    request = embedding.request(req_id, info.name, ids, info.pooling, key=who.key, priority=who.priority, instance=info.instance)
    stream = engine.submit(request, news)
    deadline: float | None = asyncio.get_running_loop().time() + ADMISSION_WAIT_S
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                await news.wait()
            news.clear()
            if stream.refusal is not None:
                raise stream.refusal
            if stream.accepted:
                deadline = None
            for update in stream.read():
                failure = update.finish and failure_of(update.finish)
                if failure:
                    raise failure
                if update.finish is not None:
                    return update.pooled
    except TimeoutError:
        raise scheduler_down() from None
    finally:
        stream.close()


def normalised(pooled: bytes) -> NDArray[np.float32]:
    """The vector of length 1 in the direction of the pooled one; a vector of zeros stays."""
    vector = np.frombuffer(pooled, "<f4").astype(np.float64)
    length = float(np.sqrt(np.add.reduce(vector * vector)))
    if not vector.size:
        raise RequestError("generation_failed", "the engine answered without an embedding")
    return (vector / length if length else vector).astype(np.float32)
