"""Several models, one device: whose step is next."""

from __future__ import annotations

from helexa.scheduler.device_share import DeviceShare


def test_one_step_at_a_time():
    share = DeviceShare()
    assert share.order([1, 2]) == [1, 2]
    share.granted(1)
    assert share.order([1, 2]) == [] and share.busy == 1
    share.returned(1, 10.0)
    assert share.order([1, 2]) == [2, 1]


def test_time_is_shared_not_turns():
    """A model whose steps take three times as long gets a third of the steps."""
    share, steps, cost = DeviceShare(), {1: 0, 2: 0}, {1: 30.0, 2: 10.0}
    for _ in range(400):
        chosen = share.order([1, 2])[0]
        share.granted(chosen)
        share.returned(chosen, cost[chosen])
        steps[chosen] += 1
    assert steps == {1: 100, 2: 300}


def test_nobody_saves_up_a_claim_by_being_idle():
    """After a long time alone, the other does not get the device for as long."""
    share = DeviceShare()
    share.order([1, 2])
    share.idle(2)
    for _ in range(100):
        share.granted(1)
        share.returned(1, 10.0)
    turns = []
    for _ in range(6):
        turns.append(share.order([1, 2])[0])
        share.granted(turns[-1])
        share.returned(turns[-1], 10.0)
    assert turns == [1, 2, 1, 2, 1, 2]


def test_a_lost_worker_gives_the_device_back():
    share = DeviceShare()
    share.order([1, 2])
    share.granted(2)
    share.returned(2, 0.0)
    assert share.order([1]) == [1]
