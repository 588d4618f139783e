"""Made-up bodies against the real service: what openapi.json says is what comes back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from service import serving
from tiny_model import write_tiny_model

import helexa.web

pytestmark = pytest.mark.process

CONFIG = """
default_model = "only"

[sampling]
unseeded = "prompt"
"""
# What a schema cannot say, as that a choice of tools must be among the tools, is refused though the schema allows it.
LEFT_OUT = "positive_data_acceptance"


def test_every_answer_is_as_described(tmp_path):
    """schemathesis: on no route does any body or header make a server error, an undocumented status, or a body of another schema."""
    config = tmp_path / "helexa.toml"
    config.write_text(CONFIG)
    description = Path(helexa.web.__file__).parent / "openapi.json"
    model = write_tiny_model(tmp_path / "tiny.gguf", context=1024)
    with serving(tmp_path, str(model), "--config", str(config)) as service:
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(description), "--url", service.url, "--seed", "1"]
        options = ["--max-examples", "4", "--phases", "coverage,fuzzing", "--exclude-checks", LEFT_OUT, "--warnings", "off"]
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    passed = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert passed and passed[1] == passed[2] and int(passed[1]) > 500, done.stdout[-2000:]
