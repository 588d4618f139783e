"""`helexa verify` from the command line, on a tiny model."""

from __future__ import annotations

import json
import subprocess

import pytest
from service import environment, helexa
from tiny_model import write_tiny_model

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """With a context that holds a prompt longer than a step."""
    return write_tiny_model(tmp_path_factory.mktemp("verify") / "tiny.gguf", context=1024)


def run(folder, model, *flags: str) -> tuple[int, dict]:
    done = subprocess.run(
        helexa("verify", str(model), "--quick", "--json", *flags),
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    assert list((folder / "helexa").iterdir()) == [], "a private server left its run directory"
    return done.returncode, json.loads(done.stdout)


def test_exact_ops_show_no_mismatch(tmp_path, model):
    """Every setting has its witness, and hundreds of tokens and digests are the same as alone."""
    code, seen = run(tmp_path, model, "--ops", "reference")
    assert (code, seen["passed"], seen["mismatches"]) == (0, True, 0), seen
    assert seen["comparisons"] > 500
    assert {item["verdict"] for item in seen["settings"]} <= {"same", "not served"}
    assert sum(item["verdict"] == "same" for item in seen["settings"]) >= 5


def test_stock_linears_are_noticed(tmp_path, model):
    """The self-test passes because differences were found."""
    code, seen = run(tmp_path, model, "--self-test")
    assert (code, seen["passed"], seen["self_test"]) == (0, True, True), seen
    assert seen["mismatches"] > 0 and seen["ops"].startswith("stock")


def test_verify_fails_on_ops_that_are_not_exact(tmp_path, model):
    """The same ops without --self-test are an error: verify can fail."""
    code, seen = run(tmp_path, model, "--ops", "stock")
    assert (code, seen["passed"]) == (1, False) and seen["mismatches"] > 0


def test_a_self_test_of_chosen_ops_is_refused(tmp_path):
    done = subprocess.run(
        helexa("verify", "--self-test", "--ops", "native"),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "--self-test" in done.stderr
