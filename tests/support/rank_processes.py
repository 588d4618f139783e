"""The device workers of one model as real processes, one a rank, and a test in their scheduler's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipc import sockets
from ipc.codec import decode_from_child, decode_from_worker
from ipc.leash_messages import SchedulerUp
from ipc.messages import AllocateKV, Exported, Fault, Join, Load, Loaded, Plan, Ready, Register, Result, SamplingParams, SeatJoin
from ipc.sockets import Closed, Link
from workers.ops.reference import BLAS_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]


class RankProcesses:
    """`folder` holds the socket; `load` are fields of Load beyond the files, `arguments` more of each
    process, which run `module`. Leaves nothing running after `close`."""

    def __init__(
        self,
        folder: Path,
        files: dict[str, str],
        ranks: int = 1,
        arguments: Sequence[str] = (),
        module: str = "workers.process",
        **load: Any,
    ) -> None:
        values: dict[str, Any] = {
            "max_step_tokens": 64,
            "max_seats": 8,
            "context": 0,
            "memory_limit": 0,
            "threads": 1,
            "ops": "native",
        }
        self.ranks = ranks
        self._arguments = list(arguments)
        self._module = module
        self.load_message = Load(files, **{**values, **load}, ranks=ranks)
        self._endpoint = str(folder / "w.sock")
        self._listener = sockets.listen(self._endpoint)
        self._listener.settimeout(120)
        self._leashes: list[Link] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.links: list[Link] = []
        for rank in range(ranks):
            self._start(rank)

    def _start(self, rank: int) -> None:
        leash, theirs = sockets.pair(decode_from_child)
        command = [
            sys.executable,
            "-P",
            "-m",
            self._module,
            "--leash-fd",
            str(theirs.fileno()),
            "--endpoint",
            self._endpoint,
        ]
        command += ["--model", "m", "--rank", str(rank), "--log-level", "error", *self._arguments]
        environment = {**os.environ, **BLAS_ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"}
        self.processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd="/", env=environment))
        self._leashes.append(leash)
        theirs.close()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for link in (*self.links, *self._leashes):
            link.close()
        self._listener.close()

    def connect(self) -> None:
        """As a new scheduler: every rank connects, and those of an earlier one are let go."""
        for link in self.links:
            link.close()
        for leash in self._leashes:
            leash.send(SchedulerUp())
        found: dict[int, Link] = {}
        while len(found) < self.ranks:
            link = Link(self._listener.accept()[0], decode_from_worker)
            registered = link.receive()
            assert isinstance(registered, Register)
            found[registered.rank] = link
        self.links = [found[rank] for rank in range(self.ranks)]

    def load(self) -> list[Loaded]:
        """Connects, loads, joins; what each rank answered."""
        self.connect()
        self.tell_all(self.load_message)
        if self.ranks > 1:
            exported = [self.expect(link, Exported) for link in self.links]
            self.tell_all(Join([item.handles for item in exported]))
        return [self.expect(link, Loaded) for link in self.links]

    def allocate(self, blocks: int = 48, seats: int = 8, snapshots: int = 0) -> None:
        self.tell_all(AllocateKV(blocks, seats, snapshots))
        for link in self.links:
            self.expect(link, Ready)

    def tell_all(self, message: Any) -> None:
        """Rank 0 last."""
        for link in reversed(self.links):
            link.send(message)

    def step(self, plan: Plan) -> list[Result]:
        """The results of a plan's steps."""
        self.tell_all(plan)
        results = [self.expect(self.links[0], Result)]
        while not results[-1].last:
            results.append(self.expect(self.links[0], Result))
        return results

    def expect(self, link: Link, kind: type[Any]) -> Any:
        message = link.receive()
        assert isinstance(message, kind), f"{message} in place of {kind.__name__}"
        return message

    def ends(self, rank: int) -> Fault | None:
        """Waits until a rank's connection ends; the Fault that it said before, if any."""
        fault = None
        try:
            while True:
                message = self.links[rank].receive()
                fault = message if isinstance(message, Fault) else fault
        except Closed:
            return fault

    def kill(self, rank: int) -> None:
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        self.processes[rank].wait()


@dataclass
class Script:
    """Plans for sequences that join, are computed in chunks, go on from a snapshot, and decode, some steps a plan."""

    run: Callable[[Plan], list[Result]]
    recurrent: bool = False
    seen: list[tuple[int, int, list[int], list[int], dict[int, int]]] = field(default_factory=list)
    ids: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    steps: int = 0
    _free: int = 0
    _joins: list[SeatJoin] = field(default_factory=list)

    def join(self, seat: int, prompt: list[int], temperature: float = 0.0, shared_with: int = -1, snapshot: int = -1) -> None:
        """`shared_with`: the seat whose first block, which is full, holds the beginning of the prompt."""
        params = SamplingParams(max_tokens=100, temperature=temperature, ignore_eos=True, hash_logits=True)
        history, self.tables[seat], self.computed[seat] = b"", [], 0
        self.ids[seat] = list(prompt)
        if shared_with >= 0:
            history = b"".join(token.to_bytes(4, "little") for token in prompt[:16])
            self.computed[seat] = 16
        self._joins.append(SeatJoin(seat, 7 + seat, len(prompt), params, history, snapshot))
        self._shared = shared_with

    def step(self, parts: dict[int, int], repeat: int = 1, save: dict[int, int] | None = None) -> None:
        """`parts`: how many tokens each seat computes. `save`: snapshots by seat."""
        self.steps += 1
        plan = Plan(1, self.steps, repeat, [], self._joins, [], [], [], [], [], [], [], [])
        for join in self._joins:
            if join.history:
                self._append_block(plan, join.seat, self.tables[self._shared][0])
        self._joins = []
        for seat, count in parts.items():
            start = self.computed[seat]
            while len(self.tables[seat]) * 16 < start + count + repeat - 1:
                self._append_block(plan, seat, self._free)
                self._free += 1
            decodes = count == 1 and start == len(self.ids[seat]) - 1 and start > 0
            plan.seats.append(seat)
            plan.starts.append(start)
            plan.counts.append(count)
            plan.carried.append(0 if decodes else count)
            plan.ids.extend([] if decodes else self.ids[seat][start : start + count])
            plan.samples.append(start + count == len(self.ids[seat]))
            self.computed[seat] += count
        if self.recurrent:
            plan.save_seats, plan.snapshots = list((save or {}).keys()), list((save or {}).values())
        for result in self.run(plan):
            self.seen.append((result.step, result.substep, result.seats, result.ids, result.hashes))
            for seat, token in zip(result.seats, result.ids, strict=True):
                self.ids[seat].append(token)
                self.computed[seat] += result.substep > 0

    def _append_block(self, plan: Plan, seat: int, block: int) -> None:
        plan.block_seats.append(seat)
        plan.blocks.append(block)
        self.tables[seat].append(block)


def everything(run: Callable[[Plan], list[Result]], vocab: int, recurrent: bool = False) -> Script:
    """Chunked prefill, a join beside running sequences, a shared block with a snapshot behind it, steps of several sequences, greedy
    and sampled, and plans of many steps."""
    script = Script(run, recurrent)
    prompts = [[(3 + seat * 7 + place * 5) % vocab for place in range(37 + 4 * seat)] for seat in range(3)]
    script.join(0, prompts[0])
    script.step({0: 16}, save={0: 0})
    script.step({0: 16})
    script.join(1, prompts[1], temperature=0.8)
    script.step({0: 5, 1: 11})
    script.step({0: 1, 1: 30})
    script.step({0: 1, 1: 1}, repeat=5)
    script.join(2, prompts[0][:16] + prompts[2][:9], shared_with=0, snapshot=0 if recurrent else -1)
    script.step({2: 9, 0: 1, 1: 1})
    script.step({2: 1, 1: 1, 0: 1}, repeat=3)
    return script
