"""Whether a request is taken: what can never fit is the client's error, what does not fit now is ours."""

from __future__ import annotations

from dataclasses import dataclass

from helexa.errors import RequestError
from helexa.scheduler.block_pool import BLOCK_SIZE, blocks_for
from ipc.messages import Generate

RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class Limits:
    """What one model's group can hold."""

    context: int  # tokens, prompt + output
    vocab: int  # width of the logits
    seats: int
    blocks: int
    queue_depth: int
    queue_tokens: int
    queue_wait_s: float
    step_tokens: int
    min_step_ms: float
    slow_client_s: float
    reserve_tokens: int
    cached_blocks: int
    repeat_steps: int
    recurrent: bool = False  # the model has recurrent state beside KV
    snapshots: int = 0  # of it that the worker holds
    snapshot_every: int = 1024  # tokens of a prompt


def check_possible(message: Generate, limits: Limits) -> None:
    """Raises RequestError for what no amount of waiting would make possible, before any work is done."""
    prompt = len(message.prompt_ids)
    if prompt == 0:
        raise RequestError("empty_prompt", "the prompt has no tokens; send at least one", "prompt")
    if len(message.seeds) != len(message.output_ids):
        raise RequestError("invalid_value", "seeds and output_ids need one entry a choice each", "seeds")
    wanted = prompt + message.params.max_tokens
    if wanted > limits.context:
        raise RequestError(
            "context_length_exceeded",
            f"{prompt} prompt tokens and max_tokens {message.params.max_tokens} make {wanted}; the context holds "
            f"{limits.context}. Shorten the prompt or lower max_tokens",
            "prompt" if prompt >= limits.context else "max_tokens",
        )
    if blocks_for(wanted) > limits.blocks:
        raise RequestError(
            "context_length_exceeded",
            f"{wanted} tokens need {blocks_for(wanted)} KV blocks; the server has memory for {limits.blocks} "
            f"({limits.blocks * BLOCK_SIZE} tokens). Shorten the request, or raise memory.limit_mib",
            "max_tokens",
        )
    _check_ids("prompt", message.prompt_ids, limits.vocab)
    for ids in message.output_ids:
        _check_ids("output_ids", ids, limits.vocab)
        if len(ids) > message.params.max_tokens:
            raise RequestError("invalid_value", "output_ids holds more than max_tokens", "output_ids")
    _check_ids("stop_token_ids", message.params.stop_token_ids, limits.vocab)
    _check_ids("logit_bias", list(message.params.logit_bias), limits.vocab)


@dataclass(frozen=True)
class Queue:
    """What waits now."""

    waiting: int
    waiting_tokens: int
    waiting_of_key: int
    free_seats: int


def check_room(choices: int, tokens: int, key: str, queue: Queue, limits: Limits) -> None:
    """Raises RequestError when the queue is full for everybody (503), or for this key (429): a named key may fill half of it."""
    room = limits.queue_depth + queue.free_seats
    if queue.waiting + choices > room:
        raise RequestError(
            "queue_full",
            f"{queue.waiting} requests wait and {limits.queue_depth} may; try again later, or raise admission.queue_depth",
            retry_after=RETRY_AFTER_S,
        )
    if queue.waiting and queue.waiting_tokens + tokens > limits.queue_tokens:
        raise RequestError(
            "queue_full",
            f"requests of {queue.waiting_tokens} tokens wait and {limits.queue_tokens} may; try again later, or raise "
            "admission.queue_tokens",
            retry_after=RETRY_AFTER_S,
        )
    if key and queue.waiting_of_key + choices > max(1, room // 2):
        raise RequestError(
            "too_many_requests",
            f"{queue.waiting_of_key} requests of this key wait, which is half the queue; wait for their answers first",
            retry_after=RETRY_AFTER_S,
        )


def _check_ids(field: str, ids: list[int], vocab: int) -> None:
    if ids and max(ids) >= vocab:
        raise RequestError("invalid_value", f"token id {max(ids)} is outside the vocabulary of {vocab}", field)
