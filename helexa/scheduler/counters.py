"""What the scheduler of one model counts, for operators and tests."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ipc.messages import Plan


@dataclass
class Counters:
    """Totals since the model was loaded first."""

    loads: int = 0  # into memory
    steps: int = 0
    handoffs: int = 0  # plans sent to the worker; fewer than steps where it ran several by itself
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that were not computed because their KV was cached
    output_tokens: int = 0
    preemptions: int = 0
    pauses: int = 0  # times a sequence waited for memory to grow into
    requests: int = 0
    refused: int = 0
    aborted: int = 0
    row_errors: int = 0
    max_sequences_in_step: int = 0
    split_prompts: int = 0  # parts of a step that end before their sequence's last token
    mixed_steps: int = 0  # steps in which some sequences decode and others do not
    joins_beside_running: int = 0  # sequences that took a seat while others ran
    abort_release_steps_max: int = 0  # most steps between an abort and the freeing of what it held
    worker_losses: int = 0
    device_faults: int = 0  # what a worker said before it ended, or was ended for
    memory_faults: int = 0
    hangs: int = 0
    request_errors: int = 0  # sequences ended because what they ask for could not be done
    poisonous: int = 0  # sequences ended because workers died of them

    def go_on_from(self, earlier: Counters) -> None:
        """Takes over what was counted before the model left memory."""
        for item in fields(self):
            setattr(self, item.name, getattr(earlier, item.name))

    def note_plan(self, plan: Plan) -> None:
        self.handoffs += 1
        self.max_sequences_in_step = max(self.max_sequences_in_step, len(plan.seats))
        self.split_prompts += plan.samples.count(False)
        self.mixed_steps += 0 in plan.carried and any(plan.carried)
        if len(plan.joins) < len(plan.seats):
            self.joins_beside_running += len(plan.joins)

    def note_release(self, steps: int) -> None:
        """An aborted sequence's memory is free, so many steps after the abort."""
        self.abort_release_steps_max = max(self.abort_release_steps_max, steps)
