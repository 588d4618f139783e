"""A sequence: one token stream of a request, from arrival until its client holds the end."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ipc.messages import Finish, SamplingParams, TokenLogprobs

# (client, req_id, choice): one client can neither see nor touch another's
SequenceKey = tuple[bytes, str, int]


class State(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked; shared by its choices."""

    client: bytes
    req_id: str
    prompt_len: int
    params: SamplingParams
    num_choices: int
    arrived: float  # seconds


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is prompt + output; `num_computed_tokens` of them are in the KV cache and chase `num_tokens`.

    `num_sent` output tokens went to the client, which allows `credit` of them.
    """

    request: Request
    choice: int
    seed: int
    tokens: list[int]
    credit: int
    num_sent: int
    state: State = State.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    seat: int = -1
    joined: bool = False  # the worker knows the seat's sequence
    sampled_last: bool = False  # the worker holds the last token of `tokens`
    in_flight: bool = False
    passed_over: int = 0
    ever_seated: bool = False
    finish: Finish | None = None
    finish_sent: bool = False
    finished_at: float = 0.0
    stalled_since: float | None = None  # out of credit
    aborted_at_step: int = -1
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # one an output token, where asked for
    hashes: list[int] = field(default_factory=list)

    @property
    def key(self) -> SequenceKey:
        return (self.request.client, self.request.req_id, self.choice)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.request.prompt_len

    @property
    def num_new_tokens(self) -> int:
        return len(self.tokens) - self.num_computed_tokens

    @property
    def out_of_credit(self) -> bool:
        return self.num_output_tokens >= self.credit

    @property
    def decodes(self) -> bool:
        """One more token to compute, and output has begun: a decode row."""
        return self.num_new_tokens == 1 and self.num_computed_tokens > 0

    def finish_reason(self, eos_ids: frozenset[int], context: int) -> tuple[str, int | None] | None:
        """Why the sequence ends with its last token, as (reason, stop token), or None while it goes on."""
        output = self.num_output_tokens
        if output == 0:
            return None
        params, last = self.request.params, self.tokens[-1]
        if output > params.min_tokens:
            if last in eos_ids and not params.ignore_eos:
                return ("stop", last)
            if last in params.stop_token_ids:
                return ("stop", last)
        if output >= params.max_tokens or self.num_tokens >= context:
            return ("length", None)
        return None
