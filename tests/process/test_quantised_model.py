"""`quant` from the flag to the tokens: a service whose weights are quantised at load, and one that finds them on disk."""

from __future__ import annotations

import pytest
from service import free_port, helexa, launch, serving
from tiny_model import write_tiny_model
from transcripts import bodies, stream

pytestmark = pytest.mark.process


def test_the_second_start_reads_what_the_first_made(tmp_path):
    """Equal replies, the load summary in the log, and a line where nothing was quantised again."""
    model = write_tiny_model(tmp_path / "tiny.gguf", head_dim=64)
    body = bodies(1, tokens=8)[0]
    replies = []
    for name, quant in (("first", "q8_0"), ("second", "q8_0"), ("third", "q4_0")):
        folder = tmp_path / name
        folder.mkdir()
        with serving(folder, str(model), "--quant", quant, XDG_CACHE_HOME=str(tmp_path / "cache")) as service:
            service.wait_for(f"quantised at load to {quant}")
            kept = any("on disk from an earlier start" in line for line in service.report)
            assert kept == (name == "second")
            replies.append(stream(service.port, body))
    assert replies[0] == replies[1] and replies[0].whole
    assert len(list((tmp_path / "cache" / "helexa" / "quantised").glob("*.blocks"))) == 2


def test_an_unknown_quantisation_is_refused(tmp_path, tiny_model_path):
    """With the nearest name, before anything starts."""
    service = launch(tmp_path, port := free_port(), helexa("serve", str(tiny_model_path), "--port", str(port), "--quant", "q4_k"))
    assert service.wait() != 0
    service.wait_for('did you mean "q4k"?')
