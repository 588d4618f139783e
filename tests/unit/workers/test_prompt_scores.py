"""Log probabilities of a prompt's tokens: whatever the chunks, they are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from helexa.formats.gguf import GGUFFile
from ipc.messages import Plan, PromptLogprobs, SamplingParams, SeatJoin, TokenLogprobs
from workers.ops.reference import ReferenceOps
from workers.runner import Runner
from workers.sampler import log_probabilities

PROMPT = [(7 * place) % 200 + 3 for place in range(21)]


@pytest.fixture(scope="module")
def runner(tiny_model_path) -> Runner:
    return Runner(GGUFFile.open(tiny_model_path), ReferenceOps(1), 0, [2], max_seats=64)


def scores(runner: Runner, chunks: list[int], best: int = 2) -> tuple[list[TokenLogprobs], int]:
    """The prompt's log probabilities and the token drawn after it, beside a sequence that is not scored."""
    runner.allocate(16, 32)
    found: list[TokenLogprobs] = []
    start, drawn = 0, -1
    for number, count in enumerate(chunks, start=1):
        plan = Plan(1, number, 1, [], [], [0], [start], [count], [count], [start + count == len(PROMPT)], [], [], [])
        plan.ids += PROMPT[start : start + count]
        if number == 1:
            plan.joins.append(SeatJoin(0, 3, len(PROMPT), SamplingParams(max_tokens=4, prompt_logprobs=best)))
            plan.block_seats, plan.blocks = [0, 0], [0, 1]
        plan.joins.append(SeatJoin(1, 4, 2, SamplingParams(max_tokens=4)))
        plan.block_seats, plan.blocks = [*plan.block_seats, 1], [*plan.blocks, 8 + number % 4]
        plan.seats, plan.starts, plan.counts = [*plan.seats, 1], [*plan.starts, 0], [*plan.counts, 2]
        plan.carried, plan.samples, plan.ids = [*plan.carried, 2], [*plan.samples, True], [*plan.ids, 40, 41]
        plan.leaves.append(1)
        output = runner.step(plan, 0, lambda: 0.0)
        for message in output.scored:
            assert isinstance(message, PromptLogprobs) and message.seat == 0
            found[message.start :] = message.logprobs
        drawn = dict(zip(output.result.seats, output.result.ids, strict=True)).get(0, drawn)
        start += count
    return found, drawn


def test_chunks_do_not_matter(runner):
    """One part, single tokens, and parts of all lengths give the same numbers, bit for bit, and the same next token."""
    whole = scores(runner, [21])
    assert len(whole[0]) == len(PROMPT) - 1 and whole[1] >= 0
    for chunks in ([1] * 21, [5, 5, 5, 5, 1], [20, 1], [1, 20], [2, 19]):
        assert scores(runner, chunks) == whole


def test_they_are_the_models(runner):
    """Each is the log softmax of the logits before its token; best 0 gives the token's own alone."""
    (found, _), (own, _) = scores(runner, [21], best=20), scores(runner, [21], best=0)
    for place, entry in enumerate(found):
        assert entry.logprobs == sorted(entry.logprobs, reverse=True) and len(entry.ids) == 20 and entry.logprob <= 0
        if PROMPT[place + 1] in entry.ids:
            assert entry.logprobs[entry.ids.index(PROMPT[place + 1])] == entry.logprob
    assert [entry.logprob for entry in own] == [entry.logprob for entry in found] and own[0].ids == []


def test_the_highest_are_the_highest():
    """Ties go to the lowest id, also at the edge of what is named."""
    row = np.array([1, 3, 2, 3, 2, 2, 0], np.float32)
    for best in range(8):
        order = np.argsort(-row.astype(np.float64), kind="stable")[:best].tolist()
        assert log_probabilities(row, 0, best).ids == order
