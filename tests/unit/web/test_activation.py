"""What /ready says of models that start: which are fetched, load, answer, or cannot."""

from __future__ import annotations

import pytest
from fake_scheduler import model_info

from helexa.web.resources.health import activation


@pytest.mark.parametrize(
    ("models", "state", "groups"),
    [
        ([], "pending", {}),
        ([("a", "loading", {})], "pending", {"pending": ["a"]}),
        ([("a", "loading", {"gguf": "x"})], "in_progress", {"in_progress": ["a"]}),
        ([("a", "ready", {"gguf": "x"}), ("b", "loading", {})], "pending", {"completed": ["a"], "pending": ["b"]}),
        ([("a", "ready", {"gguf": "x"}), ("b", "failed", {})], "completed", {"completed": ["a"], "failed": ["b"]}),
        ([("a", "restarting", {"gguf": "x"})], "in_progress", {"in_progress": ["a"]}),
        ([("a", "failed", {"gguf": "x"})], "failed", {"failed": ["a"]}),
        ([("a", "unloaded", {}), ("b", "unloaded", {})], "completed", {}),
        ([("a", "unloaded", {}), ("b", "loading", {})], "pending", {"pending": ["b"]}),
    ],
)
def test_every_model_that_is_wanted_is_in_one_group(models, state, groups):
    seen = activation([model_info(name, state=its, files=files) for name, its, files in models])
    empty = {"pending": [], "in_progress": [], "completed": [], "failed": []}
    assert seen == {"state": state, **empty, **groups}
