"""A sequence: one token stream of a request, from arrival until its client holds the end."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from helexa.scheduler.prefix_cache import Node
from ipc.messages import Finish, FinishReason, Generate, Priority, SamplingParams, TokenLogprobs

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
    key: str = ""  # opaque: whom the work is counted for
    cache_salt: str = ""
    priority: Priority = "interactive"

    @property
    def priority_class(self) -> int:
        return 0 if self.priority == "interactive" else 1

    @property
    def cache_root(self) -> tuple[str, str]:
        """Whose cached prefixes these tokens may begin with."""
        return (self.key, self.cache_salt)


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
    reserved_blocks: int = 0  # taken and to be taken
    num_registered_blocks: int = 0  # full blocks that the prefix cache knows, or knows an equal of
    num_told_blocks: int = 0  # blocks that the worker has in the seat's table
    cache_node: Node | None = None  # of the last of them
    snapshot: int = -1  # of the recurrent state that it starts from, until the worker was told
    saving: int = -1  # the snapshot that the step in flight writes behind its part
    seat: int = -1
    queued: bool = False  # in the queue for a seat
    joined: bool = False  # the worker knows the seat's sequence
    sampled_last: bool = False  # the worker holds the last token of `tokens`
    in_flight: bool = False
    passed_over: int = 0
    ever_seated: bool = False
    finish: Finish | None = None
    finish_sent: bool = False
    sent_at: float = 0.0  # when its last output was
    finished_at: float = 0.0
    stalled_since: float | None = None  # out of credit
    aborted_at_step: int = -1
    worker_deaths: int = 0  # workers that died in a step of this sequence, which has not been computed past it since
    suspect_until: int = 0  # computed tokens that make the sequence innocent
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # one an output token, where asked for
    hashes: list[int] = field(default_factory=list)
    pooled: bytes = b""  # the prompt's embedding, where the model makes them
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each prompt token but the first, where asked for

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
    def most_tokens(self) -> int:
        """Prompt + output at their longest."""
        return self.request.prompt_len + self.request.params.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """The next tokens are of a prompt whose log probabilities are asked for: each takes a row of logits."""
        return self.request.params.prompt_logprobs >= 0 and self.num_computed_tokens < self.request.prompt_len - 1

    @property
    def out_of_credit(self) -> bool:
        return self.num_output_tokens >= self.credit

    @property
    def decodes(self) -> bool:
        """One more token to compute, and output has begun: a decode row."""
        return self.num_new_tokens == 1 and self.num_computed_tokens > 0

    def finish_reason(self, eos_ids: frozenset[int], context: int) -> tuple[FinishReason, int | None] | None:
        """Why the sequence ends with its last token, as (reason, stop token), or None while it goes on."""
        output = self.num_output_tokens
        if output == 0:
            return None
        params, last = self.request.params, self.tokens[-1]
        if output > params.min_tokens:
            if last in eos_ids and (params.grammar or not params.ignore_eos):  # after a whole grammar nothing can follow
                return ("stop", last)
            if last in params.stop_token_ids:
                return ("stop", last)
        if output >= params.max_tokens or self.num_tokens >= context:
            return ("length", None)
        return None


def sequences_of(client: bytes, message: Generate, now: float) -> list[Sequence]:
    """A sequence for each choice of a request, with the output that its client holds."""
    request = Request(
        client,
        message.req_id,
        len(message.prompt_ids),
        message.params,
        len(message.seeds),
        now,
        message.key,
        message.cache_salt,
        message.priority,
    )
    sequences = [
        Sequence(request, choice, seed, message.prompt_ids + output, message.credit, len(output))
        for choice, (seed, output) in enumerate(zip(message.seeds, message.output_ids, strict=True))
    ]
    for sequence in sequences:
        if request.params.hash_logits:
            sequence.hashes = [0] * sequence.num_output_tokens
        if request.params.logprobs >= 0:
            sequence.logprobs = [None] * sequence.num_output_tokens
        sequence.ever_seated = message.resumed  # it ran before: it may wait as long as it takes
    return sequences
