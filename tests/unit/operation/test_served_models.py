"""What the supervisor starts for a model: a fetcher, and a worker of as many processes as it has ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from helexa import catalogue
from helexa.config_tables import Config, Cpu, Debug, Devices
from helexa.served_models import ServedModel, ServedModels


def add(models: ServedModels, name: str, ranks: int) -> ServedModel:
    config = Config(devices=Devices("cpu", ranks), cpu=Cpu(ops="reference"), debug=Debug(record_plans="/plans"))
    return models.add(catalogue.parse("smollm2", config), name, config, "/config.json")


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_worker_is_a_process_for_each_rank(tmp_path: Path, ranks: int) -> None:
    """Each knows its rank and its model's instance, and has a name of its own; rank 0 alone records plans."""
    models = ServedModels(tmp_path)
    first, second = add(models, "a", ranks), add(models, "b", ranks)
    for number, model in ((1, first), (2, second)):
        lines = [" ".join(role.arguments) for role in model.worker.roles]
        assert len(lines) == ranks
        assert all(f"--rank {rank}" in line and f"--instance {number}" in line for rank, line in enumerate(lines))
        assert ["--record-plans" in line for line in lines] == [rank == 0 for rank in range(ranks)]
    names = [role.name for model in models for role in (*model.fetcher.roles, *model.worker.roles)]
    assert len(set(names)) == len(names)
    assert first.worker.name == "worker" and second.worker.name == "worker of b (2)"
    assert [role.name for role in first.worker.roles] == (["worker"] if ranks == 1 else [f"worker rank {n}" for n in range(3)])
