"""A short soak; `tools/long_checks.sh soak` is the long one."""

from __future__ import annotations

import pytest

from tools.soak import soak

pytestmark = pytest.mark.process


def test_a_minute_of_everything(tmp_path, tiny_model_path):
    """Streams read, cancelled and stalled beside nonsense, reloads and kills: every reply that was read is its solo run's."""
    done = soak(tmp_path, tiny_model_path, seconds=60.0, seed=3)
    assert all(
        done[kind] for kind in ("read", "cancel", "stall", "nonsense", "worker SIGKILL", "scheduler SIGKILL", "web SIGKILL")
    )
    assert done["worker SIGSTOP"] and done["scheduler SIGSTOP"] and done["reload depth"] and done["reload context"]
