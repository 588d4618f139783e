"""What is printed, written and drawn."""

from __future__ import annotations

import importlib
import json
import subprocess

import pytest

from helexa.bench import plot, report, results, timing
from helexa.bench.timing import Metrics, Run, Sample
from helexa.errors import StartError


def metrics(step: float = 0.1, tokens: int = 3, error: str = "") -> Metrics:
    samples = [Sample(0.0, (step, 2 * step, 3 * step), 3 * step, 10, 0, tokens, error)]
    return timing.measure(Run(samples, 3 * step, 0.02))


def test_a_line_has_rates_percentiles_and_the_clients_own_time():
    line = report.line({"concurrency": 4}, metrics())
    assert " ".join(line.split()) == "concurrency 4 1 10.0 100 / 100 / 100 100 / 100 / 100 100 / 100 / 100 0.02 of 0.3 s"
    assert len(line) == len(report.HEAD) and "(1 failed)" in report.line({"rate": 0.5}, metrics(error="x"))


def test_notes_say_what_makes_a_comparison_unfair():
    assert report.notes(metrics(), 3) == []
    assert report.notes(metrics(), 64) == ["replies had 3.0 tokens on average, not 64"]
    cached = timing.measure(Run([Sample(0.0, (1.0,), 1.0, 10, 8, 3)], 1.0, 0.0))
    assert report.notes(cached, 3) == ["8 of 10 prompt tokens were cached"]


def test_a_comparison_names_both_sides_and_the_spread():
    pairs = [(metrics(0.1), metrics(0.2)), (metrics(0.1), metrics(0.4)), (metrics(0.1), metrics(0.2))]
    text = report.comparison({"concurrency": 1}, "one", "two", 3, timing.ratios(pairs))
    assert text.startswith("concurrency 1: A = one, B = two; medians of 3 interleaved pairs")
    words = [line.split() for line in text.splitlines()]
    assert ["output", "tok/s", "10.0", "5.0", "2.00", "2.00", "..", "4.00"] in words


def test_results_are_appended_as_lines(tmp_path):
    file = tmp_path / "results.jsonl"
    results.append(file, [{"a": 1}])
    results.append(file, [{"a": 2}, {"a": 3}])
    assert [json.loads(line)["a"] for line in file.read_text().splitlines()] == [1, 2, 3]
    with pytest.raises(StartError, match="cannot be written"):
        results.append(tmp_path / "no" / "file", [])


def test_the_commit_of_a_checkout(tmp_path):
    """Empty without one; a `+` where files were changed since."""
    assert results.commit(tmp_path) == ""
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "a")
    name = results.commit(tmp_path)
    assert len(name) == 40
    (tmp_path / "file").write_text("b")
    assert results.commit(tmp_path) == f"{name}+"


def test_surroundings_are_json_and_name_no_host():
    import socket

    text = json.dumps(results.surroundings())
    assert '"cpus"' in text and '"commit"' in text and socket.gethostname() not in text


def test_a_picture_needs_matplotlib(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(StartError, match=r"pip install 'helexa\[bench\]'"):
        plot.require()


def test_a_picture_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(tmp_path / "runs.png", {"helexa": [(1, metrics()), (4, metrics(0.2))], "other": [(1, metrics(0.3))]}, "concurrency")
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG\r\n")
