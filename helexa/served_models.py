"""What the supervisor has served, or wants to: one entry a loading of a model, with its fetcher and its device worker: a process
for each of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helexa import devices
from helexa.catalogue import Source
from helexa.child_group import ChildGroup, alone
from helexa.children import Role
from helexa.config import Config
from helexa.watching import beat_every
from ipc import endpoints
from ipc.leash_messages import ServeModel

log = logging.getLogger("supervisor")

WORKER, FETCHER = "workers.process", "helexa.catalogue.fetch_process"
# a worker's threads are its own: BLAS must not add any, and must not sum in another order for it
WORKER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def environment_of(gpus: Sequence[int | None], rank: int) -> dict[str, str]:
    """Shows a rank its own GPU as its first, then those of the others, whose arrays it opens; in the order of the PCI bus, as
    `helexa devices` counts them."""
    visible = [str(gpu) for gpu in (gpus[rank], *gpus[:rank], *gpus[rank + 1 :]) if gpu is not None]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}


@dataclass
class ServedModel:
    """`stop_at`: when its worker, which was told to stop, is killed (seconds, monotonic). A listed model is of the configuration:
    it may be `parked`, without a worker until somebody asks for it; `parking`: its worker ends, then it is; `on_request`:
    requests wait for it; `unseen`: it is asked for, and its files are not known."""

    instance: int
    name: str
    source: Source
    context: int
    fetcher: ChildGroup
    worker: ChildGroup
    files: dict[str, str] = field(default_factory=dict)
    was_ready: bool = False
    blocks: int = 0
    seats: int = 0
    error: str = ""
    retiring: bool = False
    listed: bool = False
    pinned: bool = False
    parked: bool = False
    on_request: bool = False
    parking: bool = False
    unseen: bool = False
    need_bytes: int = 0
    quant: str = ""
    snapshots: int = 0
    stop_at: float | None = None

    def message(self) -> ServeModel:
        return ServeModel(
            self.name,
            str(self.source),
            self.files,
            self.was_ready,
            self.error,
            self.instance,
            self.context,
            self.blocks,
            self.seats,
            self.parked,
            self.on_request,
            self.listed,
            self.pinned,
            self.need_bytes,
            self.quant,
            self.snapshots,
        )


class ServedModels:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._models: list[ServedModel] = []
        self._instances = 0

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models))

    def add(self, source: Source, name: str, config: Config, config_path: str, context: int = 0) -> ServedModel:
        """`config_path`: what the fetcher reads; `context` in tokens, 0: what the model was trained for."""
        self._instances += 1
        number = self._instances
        ending = "" if number == 1 else f" of {name} ({number})"
        fetcher = Role(
            f"fetcher{ending}", FETCHER, ["--config", config_path, "--source", source.given], own_session=True, silent=True
        )
        worker = self._worker(number, name, f"worker{ending}", config)
        model = ServedModel(number, name, source, context, alone(fetcher), worker)
        self._models.append(model)
        return model

    def _worker(self, instance: int, model: str, worker: str, config: Config) -> ChildGroup:
        """Raises ConfigError where the GPUs are too few for its ranks."""
        ranks = config.devices.tensor_parallel
        gpus = devices.place(devices.choose(config.devices.use, config.cpu.ops), ranks, instance - 1)
        common = self._worker_arguments(model, instance, config)
        roles = []
        for rank, gpu in enumerate(gpus):
            arguments = [*common, "--rank", str(rank), *([] if gpu is None else ["--device", "cuda"])]
            if rank == 0 and config.debug.record_plans:
                arguments += ["--record-plans", config.debug.record_plans]
            role = worker if ranks == 1 else f"{worker} rank {rank}"
            roles.append(Role(role, WORKER, arguments, {**WORKER_ENVIRONMENT, **environment_of(gpus, rank)}))
        return ChildGroup(worker, roles)

    def _worker_arguments(self, name: str, instance: int, config: Config) -> list[str]:
        endpoint = str(endpoints.workers_socket(self._run_dir))
        arguments = ["--endpoint", endpoint, "--model", name, "--instance", str(instance)]
        arguments += ["--log-level", config.logging.level, "--log-format", config.logging.format]
        return [*arguments, "--beat-s", str(beat_every(config.watch.heartbeat_s))]

    def remove(self, model: ServedModel) -> None:
        self._models.remove(model)

    def get(self, instance: int) -> ServedModel | None:
        return next((model for model in self._models if model.instance == instance), None)

    def named(self, name: str) -> ServedModel | None:
        """The one that new requests of the name go to."""
        found = [model for model in self._models if model.name == name and not model.retiring]
        answering = [model for model in found if model.was_ready and not model.error]
        chosen = answering or found
        return chosen[-1] if chosen else None
