"""A bug is a file: every step of a busy service, recorded, runs again by itself with the same outcome."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from service import serving

from helexa.client import Client

pytestmark = pytest.mark.process
TOOL = Path(__file__).parent.parent.parent / "tools" / "replay_plan.py"


def test_recorded_steps_replay_to_the_same_ids_and_digests(tmp_path, tiny_model_path):
    """Ragged streams with a shared prefix, greedy and sampled: a prompt step, a mixed one, decode steps, a lone run's."""
    steps = tmp_path / "steps"
    (tmp_path / "helexa.toml").write_text(f'[debug]\nrecord_plans = "{steps}"\n')
    with serving(tmp_path, str(tiny_model_path)) as service, Client(service.run_dir) as client:
        shared = [5 + place % 50 for place in range(40)]
        for wave in range(2):
            generations = [
                client.submit(
                    [*shared, 60 + index, *range(3, 3 + 5 * index)],
                    model="tiny",
                    max_tokens=8 + wave,
                    temperature=index % 2,
                    seed=index,
                    hash_logits=True,
                    ignore_eos=True,
                )
                for index in range(5)
            ]
            for generation in generations:
                assert len(list(generation)) == 8 + wave
    recorded = sorted(steps.iterdir())
    assert len(recorded) > 12
    for path in [*recorded[:3], recorded[len(recorded) // 2], *recorded[-2:]]:
        done = subprocess.run([sys.executable, str(TOOL), str(path)], capture_output=True, text=True)
        assert done.returncode == 0 and "equal to the recording" in done.stdout, done.stdout + done.stderr
