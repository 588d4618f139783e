"""A machine without a C++ compiler: helexa serves all the same, and says what would make it fast."""

from __future__ import annotations

import http.client
import json
import shutil
from pathlib import Path

import pytest
from service import DEADLINE_S, free_port, helexa, launch, serving

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def copy(tmp_path) -> Path:
    """The packages without the built library."""
    folder = tmp_path / "installed"
    for package in ("helexa", "workers", "ipc", "kernels_cupy"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def test_the_reference_ops_serve_and_the_remedy_is_said(tmp_path, tiny_model_path, copy):
    """In the start-up report and on /ready: which ops run, and what to do; a completion is answered."""
    with serving(tmp_path, str(tiny_model_path), PYTHONPATH=str(copy)) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE_S)
        connection.request("GET", "/ready")
        (model,) = json.loads(connection.getresponse().read())["models"]
        assert "reference" in model["ops"] and "g++" in model["remedy"]
        body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 3})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        assert any("g++" in line for line in service.report)
        connection.close()


def test_asked_for_native_ops_it_says_why_it_cannot_start(tmp_path, tiny_model_path, copy):
    """`--ops native` without the library is an error, not a quiet fallback."""
    port = free_port()
    command = [*helexa("serve"), str(tiny_model_path), "--ops", "native", "--port", str(port)]
    service = launch(tmp_path, port, command, PYTHONPATH=str(copy))
    assert service.wait() == 1
    service.wait_for("the native ops are not built")


def test_a_library_of_other_sources_is_refused_with_the_command(tmp_path, tiny_model_path, copy):
    """A source changed after the build: the stale library must not answer in the new one's name."""
    native = copy / "workers" / "ops" / "native"
    library = ROOT / "workers" / "ops" / "native" / "libhelexa_ops.so"
    if not library.exists():
        pytest.skip("the native ops are not built here")
    shutil.copy(library, native)
    source = next(native.glob("*.cpp"))
    source.write_text(source.read_text() + "\n// changed\n")
    port = free_port()
    command = [*helexa("serve"), str(tiny_model_path), "--port", str(port)]
    service = launch(tmp_path, port, command, PYTHONPATH=str(copy))
    assert service.wait() == 1
    service.wait_for("python -m workers.ops.native.build")
