"""No check is an assertion: what keeps hostile input out does so under `python -O` too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HOSTILE = [
    "tests/security/test_sockets.py",
    "tests/security/test_model_files.py",
    "tests/unit/formats/test_gguf.py",
    "tests/unit/text/test_chat_template.py",
    "tests/unit/web/test_body.py",
    "tests/unit/web/test_fields.py",
    "tests/unit/web/test_grammar_check.py",
    "tests/unit/catalogue/test_source.py",
    "tests/unit/test_run_directory.py",
    "tests/property/test_codec.py",
]


@pytest.mark.skipif(not __debug__, reason="this is the run without assertions")
def test_all_of_it_without_assertions():
    """These tests again in a Python that strips assertions from everything but the tests; the services here run both ways anyhow."""
    command = [
        sys.executable,
        "-O",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not process and not long and not model",
        *HOSTILE,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout.splitlines()[-1]


def test_no_assertion_has_an_effect():
    """An assertion that calls something with an effect would leave it out under -O: those in the sources only look."""
    looks = {
        "len",
        "isinstance",
        "set",
        "all",
        "any",
        "sum",
        "sorted",
        "list",
        "range",
        "max",
        "min",
        "zip",
        "type",
        "is_alive",
        "abs",
        "int",
        "items",
        "values",
        "holders",
    }
    for folder in ("helexa", "workers", "ipc"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                calls = (
                    [item for item in ast.walk(node.test) if isinstance(item, ast.Call)] if isinstance(node, ast.Assert) else []
                )
                assert {ast.unparse(call.func).rpartition(".")[2] for call in calls} <= looks, (path, node.lineno)
