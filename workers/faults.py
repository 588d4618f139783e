"""Faults on demand, for tests of recovery: `HELEXA_FAULT` under `debug.faults`, given to the worker as an argument.

Each is made where its like comes from: `crash`, `device`, `memory` and `hang` in the ops, in a step; `row` as NaN in a row of logits;
`request` as a parameter that no vocabulary has.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from helexa.formats.fault_spec import FaultSpec
from ipc.messages import Plan
from workers.inputs import StepInputs
from workers.ops.protocol import Logits, Ops, Value

log = logging.getLogger("worker.faults")


class DeviceFault(Exception):
    """The device, or the ops on it, failed in the middle of a step: what it holds is unknown."""


class Faults:
    """Whether the step in hand is the one; steps are counted from the first plan on."""

    def __init__(self, spec: FaultSpec) -> None:
        self._spec = spec
        self._step = 0
        self._armed = False  # once plans come: a start-up has steps of its own

    def on_plan(self, plan: Plan) -> None:
        """Before a plan's steps: a faulty request gets a bias that fits no vocabulary."""
        self._armed = True
        if self._spec.kind != "request":
            return
        at = 0
        for index, seat in enumerate(plan.seats):
            ids = plan.ids[at : at + plan.carried[index]]
            at += plan.carried[index]
            for join in plan.joins:
                if join.seat == seat and self._meant(self._step + 1, ids):
                    join.params.logit_bias = {2**31 - 1: 1.0}
                    log.error("injected: a request's parameters are spoilt")

    def before_step(self, inputs: StepInputs) -> None:
        if not self._armed:
            return
        self._step += 1
        if self._spec.kind in ("row", "request") or not self._meant(self._step, inputs.token_ids.tolist()):
            return
        log.error("injected: %s in step %d", self._spec.kind, self._step)
        if self._spec.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._spec.kind == "hang":
            threading.Event().wait()
        if self._spec.kind == "memory":
            raise MemoryError("injected")
        raise DeviceFault("injected")

    def after_step(self, inputs: StepInputs, logits: Logits) -> None:
        if not self._armed or self._spec.kind != "row":
            return
        for row, place in enumerate(inputs.logit_rows.tolist()[: len(logits)]):  # which rank 0 alone has
            sequence = inputs.sequence_of_row[place]
            if self._meant(self._step, inputs.token_ids[inputs.sequence_of_row == sequence].tolist()):
                logits[row] = np.nan
                log.error("injected: a row of logits is NaN")

    def _meant(self, step: int, ids: list[int]) -> bool:
        return step == self._spec.step if self._spec.token is None else self._spec.token in ids


class FaultyOps:
    """Ops as they are, but for the fault."""

    def __init__(self, ops: Ops, faults: Faults) -> None:
        self._ops = ops
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def run(self, forward: Callable[[Ops], Value], inputs: StepInputs) -> Logits:
        self._faults.before_step(inputs)
        logits = self._ops.run(forward, inputs)
        self._faults.after_step(inputs, logits)
        return logits
