"""`helexa quant-report` on a tiny random model."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny_model

from helexa import config as configuration
from helexa.commands.quant_report import Options, quant_report
from helexa.errors import StartError
from helexa.quality.comparing import Side, compare, log_softmax
from workers.models.registry import load_model
from workers.ops.reference import ReferenceOps

TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def report(model: Path, text: Path | None, **changes: Any) -> str:
    config = configuration.load(None, {"model.source": str(model), "cpu.ops": "reference", "cpu.threads": 1}, {})
    out = io.StringIO()
    options = Options(text, 150, [], None, True)._replace(**changes)
    assert quant_report(config, options, out, io.StringIO()) == 0
    return out.getvalue()


def test_floats_are_quantised_each_way(tmp_path: Path, text: Path) -> None:
    """The file's own weights are float32, so they differ by nothing; finer quantisations are nearer and larger."""
    model = write_tiny_model(tmp_path / "tiny.gguf", scale=3.0)
    document = json.loads(report(model, text))
    rows = {row["name"]: row for row in document["rows"]}
    assert set(rows) == {"as it is", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4k"} and document["model"] == str(model)
    assert rows["as it is"]["kl_max"] == 0 and rows["as it is"]["best_token_agrees"] == 1
    assert rows["as it is"]["perplexity"] == rows["as it is"]["perplexity_float32"]
    assert 0 < rows["q8_0"]["kl_mean"] < rows["q5_1"]["kl_mean"] < rows["q4_0"]["kl_mean"]
    assert rows["q4_0"]["bytes"] < rows["q5_0"]["bytes"] < rows["q8_0"]["bytes"] < rows["as it is"]["bytes"]
    assert all(row["tokens"] == 150 and row["tokens_per_second"] > 0 for row in rows.values())


def test_as_a_table(tmp_path: Path, text: Path) -> None:
    """A head, float32, and a line each."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    lines = report(model, text, as_json=False, quants=["q8_0"]).splitlines()
    assert lines[0].endswith("150 tokens, against float32 on the reference ops")
    assert lines[1].split()[:4] == ["WEIGHTS", "SIZE", "TOKENS/S", "PERPLEXITY"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["float32", "as it is", "q8_0"]


def test_what_is_quantised_already(tmp_path: Path, text: Path) -> None:
    """Its own weights alone are measured; asked for more, it says why not."""
    model = write_tiny_model(tmp_path / "tiny.gguf", quant="Q8_0")
    assert [row["name"] for row in json.loads(report(model, text))["rows"]] == ["as it is"]
    with pytest.raises(StartError, match="its weights are quantised already; change --quants"):
        report(model, text, quants=["q4_0"])


def test_wrong_wishes(tmp_path: Path, text: Path) -> None:
    """Too little text, no text, and a quantisation that there is not."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    with pytest.raises(StartError, match="the text has 50 tokens, at least 100"):
        report(model, text, tokens=50)
    with pytest.raises(StartError, match="cannot be read as text"):
        report(model, tmp_path / "none.txt")
    with pytest.raises(StartError, match="possible are q4_0, q4_1"):
        report(model, text, quants=["q3"])


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs the extra bench")
def test_a_picture(tmp_path: Path, text: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    report(model, text, quants=["q8_0"], png=tmp_path / "q.png")
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_are_those_of_their_definitions(tmp_path: Path) -> None:
    """Mean KL divergence and perplexity, worked out again from the logits of one step."""
    from helexa.formats.checkpoint import open_checkpoint
    from helexa.quality.comparing import steps

    sides, logits = [], []
    ids = np.arange(3, 33, dtype=np.int32)
    for seed in (0, 1):
        path = write_tiny_model(tmp_path / f"{seed}.gguf", seed=seed)
        ops = ReferenceOps(1)
        sides.append(Side(load_model(open_checkpoint(path), ops), ops))
    result = compare(sides[0], sides[1], ids)
    for side in sides:
        side.ops.allocate_kv(side.model.layers, 64, side.model.kv_heads, side.model.head_dim)
        (step,) = steps(ids)
        logits.append(log_softmax(side.ops.run(side.model.forward, step)))
    p, q = (np.exp(rows) for rows in logits)
    assert result.kl_mean == pytest.approx(float((p * np.log(p / q)).sum(axis=1).mean()), rel=1e-9)
    following = q[np.arange(29), ids[1:]]
    assert result.perplexity == pytest.approx(float(np.exp(-np.log(following).mean())), rel=1e-9)
    assert result.tokens == 30
