"""A step's parts, and its plan as columns."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field

from helexa.scheduler.prices import Shape
from helexa.scheduler.sequence import Sequence
from ipc.messages import Plan, SeatJoin

MAX_JOIN_BYTES = 128 * 1024


@dataclass
class StepBuilder:
    """Collects a step's parts; `plan()` lays them out as the worker reads them."""

    parts: list[tuple[Sequence, int]] = field(default_factory=list)  # (sequence, tokens of this step)

    @property
    def extra_rows(self) -> int:
        """Rows of logits beyond one a sequence, at most."""
        return sum(count - 1 for sequence, count in self.parts if sequence.scores_prompt)

    def shape(self) -> Shape:
        """What the step's time depends on."""
        decode = prompt = rows = 0
        for sequence, count in self.parts:
            rows += count
            positions = count * (sequence.num_computed_tokens + count)
            if sequence.decodes:
                decode += positions
            else:
                prompt += positions
        return Shape(rows, len(self.parts) + self.extra_rows, decode, prompt)

    def add(self, sequence: Sequence, count: int) -> None:
        self.parts.append((sequence, count))

    def has_room(self, sequence: Sequence) -> bool:
        """Whether a join fits beside those the step has: a plan is one datagram, unless a single join takes several."""
        joins = [item for item, _ in self.parts if not item.joined]
        return not joins or sum(map(_join_bytes, [*joins, sequence])) <= MAX_JOIN_BYTES

    def plan(self, incarnation: int, step: int, repeat: int, leaves: list[int]) -> Plan:
        """The step's plan; from here on the worker is taken to know what it says."""
        plan = Plan(incarnation, step, repeat, leaves, [], [], [], [], [], [], [], [], [])
        for sequence, count in self.parts:
            start, seat = sequence.num_computed_tokens, sequence.seat
            if not sequence.joined:
                sequence.joined = True
                plan.joins.append(_join(sequence))
            if len(sequence.blocks) > sequence.num_told_blocks:
                blocks = sequence.blocks[sequence.num_told_blocks :]
                plan.block_seats.extend([seat] * len(blocks))
                plan.blocks.extend(blocks)
                sequence.num_told_blocks = len(sequence.blocks)
            plan.seats.append(seat)
            plan.starts.append(start)
            plan.counts.append(count)
            if count == 1 and sequence.sampled_last:
                plan.carried.append(0)
            else:
                plan.carried.append(count)
                plan.ids.extend(sequence.tokens[start : start + count])
            plan.samples.append(start + count == len(sequence.tokens))
            if sequence.saving >= 0:
                plan.save_seats.append(seat)
                plan.snapshots.append(sequence.saving)
        return plan


def _join_bytes(sequence: Sequence) -> int:
    """At most so many bytes of a plan are a sequence's join: its history, its grammar, its biases."""
    params = sequence.request.params
    return 4 * len(sequence.tokens) + len(params.grammar.encode()) + 16 * len(params.logit_bias) + 1024


def _join(sequence: Sequence) -> SeatJoin:
    request = sequence.request
    history = array("i", sequence.tokens[: sequence.num_computed_tokens])
    if sys.byteorder == "big":
        history.byteswap()
    return SeatJoin(sequence.seat, sequence.seed, request.prompt_len, request.params, history.tobytes(), sequence.snapshot)
