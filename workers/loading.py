"""From Load to Loaded: the weights of this rank, what all ranks agree on, and what steps cost."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from helexa import __version__
from helexa.errors import StartError
from helexa.formats.fingerprint import fingerprint
from helexa.formats.model_vocabulary import end_ids_of
from ipc.messages import Load, Loaded
from workers import machine
from workers.faults import Faults, FaultyOps
from workers.follower import Follower
from workers.group import CROWDED_SPINS, SPINS, Group
from workers.inputs import BLOCK_SIZE
from workers.machine import MemoryLimit, Threads
from workers.ops.choice import choose_ops
from workers.ops.protocol import Ops
from workers.prices import Prices, PriceTaker
from workers.runner import Runner
from workers.weights.opening import Quantising, open_model
from workers.weights.quantised import QuantisedCheckpoint
from workers.weights.sharding import Shard
from workers.weights.summary import load_summary

log = logging.getLogger("worker")
ROOT = Path("/")


@dataclass
class LoadedRank:
    """What `load` has been loaded to: weights that outlive connections, and prices once they are measured."""

    load: Load
    rank: Runner | Follower
    ops: Ops
    end_ids: list[int]
    threads: Threads
    limit: MemoryLimit
    fingerprint: str
    seconds: float
    summary: Callable[[int, int], str]  # of KV bytes a token, and of bytes left for KV
    prices: Prices | None = None
    _answer: Loaded | None = None

    @property
    def spins(self) -> int:
        """How long a rank looks for the others before it sleeps: not at all, almost, where they are more than cores."""
        return CROWDED_SPINS if self.threads.count * self.load.ranks > len(os.sched_getaffinity(0)) else SPINS

    def answer(self) -> Loaded:
        """For the scheduler, once prices are known. What memory there was before any KV stays as it was first said."""
        assert self.prices is not None, "prices come first"
        if self._answer is None:
            self._answer = self._first_answer(self.prices)
        self._answer.prices = self.prices.rows
        self._answer.logit_row_ms = self.prices.logit_row_ms
        self._answer.decode_position_ms = self.prices.decode_position_ms
        self._answer.prompt_position_ms = self.prices.prompt_position_ms
        return self._answer

    def _first_answer(self, prices: Prices) -> Loaded:
        held = self.rank.held
        used = machine.own_bytes(ROOT)
        free, memory_note = max(0, self.limit.bytes - used), self.limit.note
        if of_device := getattr(self.ops, "device_memory", None):
            used, free, memory_note = of_device(self.load.memory_limit)
        log.info("%s", self.summary(held.bytes_per_block() // BLOCK_SIZE, free))
        return Loaded(
            free_bytes=free,
            memory_note=memory_note,
            weight_bytes=used,
            bytes_per_block=held.bytes_per_block(),
            context=held.context,
            vocab=held.model.vocab,
            eos_ids=self.end_ids,
            prices=prices.rows,
            logit_row_ms=prices.logit_row_ms,
            decode_position_ms=prices.decode_position_ms,
            prompt_position_ms=prices.prompt_position_ms,
            ops=self.ops.name,
            threads_note=self.threads.note,
            remedy=self.ops.remedy,
            fingerprint=self.fingerprint,
            load_seconds=self.seconds,
            pooling=held.pooling,
            state_bytes=held.state_bytes(),
            own_memory=of_device is not None,
        )


def load_rank(load: Load, rank: int, device: str, faults: Faults | None, report: Callable[[str], None]) -> LoadedRank:
    """Loads the weights that rank `rank` holds. `report` takes lines of the start-up report. Raises HelexaError."""
    started = time.monotonic()
    threads = machine.threads(ROOT, os.sched_getaffinity(0), load.threads, load.ranks)
    limit = machine.memory_limit(ROOT, machine.own_bytes(ROOT), load.memory_limit)
    ops = choose_ops(load.ops, threads.count, load.max_step_tokens, load.max_seats, device)
    file = open_model(load.files, quantising_of(load, rank), threads.count, report)
    end_ids = end_ids_of(file)
    if (expect := getattr(ops, "expect_weights", None)) and (line := expect(file.tensors.values(), load.memory_limit)):
        report(line)
    used_ops: Ops = ops if faults is None else FaultyOps(ops, faults)
    sizes = load.max_step_tokens, load.max_seats
    held = (
        Runner(file, used_ops, load.context, end_ids, *sizes, ranks=load.ranks)
        if rank == 0
        else Follower(file, used_ops, load.context, *sizes, Shard(rank, load.ranks))
    )
    if isinstance(file, QuantisedCheckpoint):
        file.finish()
    weight_bytes = getattr(ops, "weight_bytes", 0)
    return LoadedRank(
        load=load,
        rank=held,
        ops=used_ops,
        end_ids=end_ids,
        threads=threads,
        limit=limit,
        fingerprint=system_fingerprint(file.files, load.quant, ops),
        seconds=time.monotonic() - started,
        summary=lambda kv_bytes, free: load_summary(file, load.quant, weight_bytes, kv_bytes, free),
    )


def measure(loaded: LoadedRank, group: Group | None = None) -> None:
    """Takes the prices, unless all ranks know them from an earlier connection."""
    held = loaded.rank.held
    if group is None:
        loaded.prices = loaded.prices or PriceTaker(held, time.perf_counter).take()
        return
    known = group.gather(np.full((1, 1), loaded.prices is not None, np.float32), [[1] * group.ranks])
    if loaded.prices is None or not known.all():
        loaded.prices = PriceTaker(held, group.clock, group.agree).take()


def compare_notes(loaded: LoadedRank, group: Group) -> None:
    """The sanity exchange: every rank sees whether all have loaded shards of one model. Raises StartError on all of them if not."""
    note = "|".join([loaded.fingerprint, repr(loaded.load)]).encode()
    own = np.frombuffer(blake2b(note, digest_size=16).digest(), np.float32)[None]
    notes = group.gather(own, [[own.size] * group.ranks]).view(np.uint32).reshape(group.ranks, -1)
    if others := [rank for rank in range(group.ranks) if (notes[rank] != notes[0]).any()]:
        raise StartError(
            f"ranks {', '.join(map(str, others))} loaded something else than rank 0: the model's files, or the installation, changed "
            "while they started; start again"
        )


def quantising_of(load: Load, rank: int = 0) -> Quantising:
    """Of several ranks the first alone keeps what it has quantised: it is the same for all."""
    return Quantising(load.quant, load.quant_cache, load.quant_cache_bytes, keeps=rank == 0)


def system_fingerprint(paths: Sequence[Path], quant: str, ops: Ops) -> str:
    """Names build, model files, what is made of them, op set and machine type. Raises ModelFileError."""
    parts = [__version__, fingerprint(*paths), quant, ops.kind, platform.machine(), machine.cpu_model(ROOT)]
    return f"hx_{blake2b('|'.join(parts).encode(), digest_size=8).hexdigest()}"
