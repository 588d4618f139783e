"""Logits that stay on the device: which rows come to the host and which do not, and tokens that are those of logits that all do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_places import place_of
from engine_driver import Peer, generate, make_scheduler
from tiny_model import END_ID, write_tiny_model

from helexa.formats.checkpoint import open_checkpoint
from ipc.messages import SamplingParams
from workers import sampler
from workers.ops import sampling
from workers.ops.cuda.logits import DeviceLogits
from workers.ops.cuda.ops import CudaOps
from workers.prompt_scores import score
from workers.runner import Runner
from workers.seats import Seat

ROWS, VOCAB = 7, 300
NEUTRAL: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}, {}]
RULED: list[dict[str, Any]] = [{"logit_bias": {3: 50.0}}, {"presence_penalty": 1.5, "temperature": 0.0}]


def values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).standard_normal((ROWS, VOCAB)).astype(np.float32) * 3


@pytest.fixture
def held() -> DeviceLogits:
    """Rows on the device, whose rows at the host are NaN until they come."""
    return DeviceLogits(torch.from_numpy(values()).to(place_of().torch_device), np.full((ROWS, VOCAB), np.nan, np.float32))


def seats_of(params: list[dict[str, Any]], **more: Any) -> list[Seat]:
    return [
        Seat(seed, 2, SamplingParams(max_tokens=9, **values, **more), [1, 2, seed + 3, 4]) for seed, values in enumerate(params)
    ]


def draw(logits: Any, seats: list[Seat]) -> sampler.Drawn:
    return sampler.draw(logits, seats, CudaOps(place_of(), 8), [END_ID], None)  # type: ignore[arg-type]


def test_rows_that_nothing_asks_for_stay(held: DeviceLogits) -> None:
    """Greedy or sampled by any filter: only ids come to the host, and they are the definition's."""
    seats = seats_of(NEUTRAL + NEUTRAL[:2])
    drawn = draw(held, seats)
    assert held.fetched == 0 and drawn.errors == [""] * ROWS
    assert drawn.ids == sampling.sample(values(), sampler._rows(seats))[0].tolist()


def test_rules_bring_their_own_rows_alone(held: DeviceLogits) -> None:
    """A bias and a penalty act on the device's rows too, and tokens are those of rows that are all at the host."""
    seats = seats_of(NEUTRAL + RULED)
    drawn, at_host = draw(held, seats), draw(values(), seats_of(NEUTRAL + RULED))
    assert held.fetched == 2 and drawn == at_host
    assert drawn.ids[5] == 3


def test_log_probabilities_and_digests(held: DeviceLogits) -> None:
    """They bring their rows, are of the logits as they were drawn from, and equal those at the host."""
    params = [{}, {"logprobs": 3}, {"logit_bias": {3: 50.0}, "logprobs": 2}, {}, {"hash_logits": True}, {}, {}]
    drawn, at_host = draw(held, seats_of(params)), draw(values(), seats_of(params))
    assert held.fetched == 3 and drawn == at_host
    assert sorted(drawn.logprobs) == [1, 2] and drawn.logprobs[2].ids[0] == 3 and list(drawn.hashes) == [4]


def test_a_broken_row_says_why() -> None:
    """A NaN on the device: that row alone is fetched, and ends its sequence with counts."""
    rows = values()
    rows[2, 7] = np.nan
    held = DeviceLogits(torch.from_numpy(rows).to(place_of().torch_device), np.zeros_like(rows))
    drawn = draw(held, seats_of([{}] * ROWS))
    assert held.fetched == 1 and drawn.ids[2] == -1 and "1 NaN" in drawn.errors[2]
    assert [index for index, error in enumerate(drawn.errors) if error] == [2]


def test_a_request_that_cannot_be_done_ends_alone(held: DeviceLogits) -> None:
    """A bias outside the vocabulary: the row is blanked out at the host, and not drawn from on the device."""
    drawn = draw(held, seats_of([{}] * 3 + [{"logit_bias": {10**6: 1.0}}] + [{}] * 3))
    assert drawn.failed == {3} and drawn.ids[3] == -1 and all(token >= 0 for row, token in enumerate(drawn.ids) if row != 3)


def test_parts(held: DeviceLogits) -> None:
    """Rows picked by a slice or by numbers are the whole's rows, wherever they are: written in one, seen in the other and drawn from."""
    picked, part = held[[1, 4, 5]], held[2:6]
    part[0] = 2.0
    picked[2][9] = 77.0
    expected = values()
    expected[2], expected[5, 9] = 2.0, 77.0
    assert picked.on_device().cpu().numpy().tobytes() == expected[[1, 4, 5]].tobytes()
    assert part.on_device().cpu().numpy().tobytes() == expected[2:6].tobytes()
    assert np.asarray(picked).tobytes() == expected[[1, 4, 5]].tobytes() and picked.shape == (3, VOCAB)
    assert [row.tobytes() for row in part] == [row.tobytes() for row in expected[2:6]]
    assert held.fetched == 5 and np.asarray(held, np.float64).tobytes() == expected.astype(np.float64).tobytes()
    with pytest.raises(IndexError):
        part[4]


def test_a_prompt_is_scored_from_its_rows(held: DeviceLogits) -> None:
    """Log probabilities of prompt tokens are those of the array."""
    seat = Seat(0, 5, SamplingParams(max_tokens=1, prompt_logprobs=2), [1, 2, 3, 4, 5])
    assert score(seat, 0, held[:4]) == score(seat, 0, values()[:4]) and held.fetched == 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", quant="Q8_0", scale=2.0)


REQUESTS: list[tuple[list[int], dict[str, Any]]] = [
    ([5, 9, 30, 12, 99, 8], {"temperature": 0.0}),
    (list(range(40, 61)), {"temperature": 0.9, "top_p": 0.9}),
    ([77], {"temperature": 1.0, "frequency_penalty": 0.8, "logprobs": 2}),
]


def replies(runner: Runner, chosen: list[int], step_tokens: int) -> dict[int, list[int]]:
    """What requests are answered, all at once, by the scheduler and a worker's runner."""
    seats = 4
    runner.allocate(32, seats)
    limits = {"vocab": runner.model.vocab, "context": 128, "seats": seats, "blocks": 32, "step_tokens": step_tokens}
    scheduler = make_scheduler(**limits, cached_blocks=0)
    peer = Peer(scheduler)
    for index in chosen:
        prompt, params = REQUESTS[index]
        scheduler.add(b"client", generate(str(index), prompt, seeds=[index + 7], max_tokens=6, **params), 0.0)
    for _ in range(100):
        plan = scheduler.plan_step(0.0)
        if plan is None:
            break
        output = runner.step(plan, 0, lambda: 0.0)
        assert not output.row_errors
        scheduler.apply_result(output.result, 0.0)
        peer.receive()
    return {int(req_id): ids for (req_id, _), ids in peer.held.items()}


def test_an_engine(model: Path) -> None:
    """Scheduler, runner, rules and draws on the CUDA ops: three requests together are answered what each is alone, from graphs or not."""
    file = open_checkpoint(model)
    ops = CudaOps(place_of(), 64)
    runner = Runner(file, ops, 128, [END_ID], 64, 4)
    together = replies(runner, [0, 1, 2], 16)
    assert ops.graphs.replays > 0 and all(len(ids) in range(1, 7) for ids in together.values())
    for index in range(3):
        assert replies(runner, [index], 64) == {index: together[index]}
