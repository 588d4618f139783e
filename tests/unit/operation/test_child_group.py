"""Children that end together: real processes, killed one by one."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helexa.child_group import ChildGroup, Death
from helexa.children import Role, Running


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildGroup]:
    """Three children that wait for the end of their leash, and for any word on it."""
    (tmp_path / "a_waiting_child.py").write_text("import sys, socket\nsocket.socket(fileno=int(sys.argv[-1])).recv(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = ChildGroup("worker", [Role(f"worker rank {rank}", "a_waiting_child", [str(rank)]) for rank in range(3)])
    yield made
    made.end("the test is over")
    for role in made.roles:
        role.reap()


def command(running: Running) -> list[str]:
    return running.child.process.args  # type: ignore[return-value]


def wait_for(*living: Running) -> None:
    for running in living:
        assert select.select([running.child.pidfd], [], [], 60)[0], "it lives"


@pytest.mark.parametrize("first", [0, 1])
def test_the_death_of_one_is_the_death_of_all(group: ChildGroup, first: int) -> None:
    """The others are killed at once; the group's death comes when the last is collected, and says who was the first, and why."""
    group.start({1: ["--more"]})
    assert [("--more" in command(running)) for _, running in group.living()] == [False, True, False]
    living = dict(enumerate(running for _, running in group.living()))
    os.kill(living[first].child.pid, signal.SIGKILL)
    wait_for(living[first])
    living[first].last_words = "out of paper"
    assert group.reap(group.roles[first]) is None
    second, third = (rank for rank in range(3) if rank != first)
    wait_for(living[second], living[third])
    assert group.reap(group.roles[third]) is None
    assert group.reap(group.roles[second]) == Death(f"worker rank {first}", "out of paper")
    assert group.living() == []


def test_it_lives_again_after_that(group: ChildGroup) -> None:
    """And dies of something else."""
    for reason in ("silent for 5 s, and was killed", "it did not stop"):
        group.start({})
        assert group.end(reason) and not group.end("twice")
        wait_for(*(running for _, running in group.living()))
        deaths = [group.reap(role) for role in group.roles]
        assert deaths == [None, None, Death("worker rank 0", reason)]
