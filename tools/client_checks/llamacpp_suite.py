"""Runs llama.cpp's own server tests against a running helexa: `llamacpp_suite.py FOLDER URL MODEL KEY [FILE ...]`.

The suite comes in the source distribution of `llama-cpp-python` (the newest pip finds), unpacked in FOLDER. What asserts
llama.cpp's own ways is relaxed in the copy, or not run; each with its reason here. A relaxation that no longer finds its text is
an error, so that a changed suite is read again. Needs pytest, requests, openai and what else the suite's utils.py imports. The
service must have API keys (KEY is one), `default_model = "only"`, a context of 1024 tokens, the origins `localhost` and
`web.mydomain.fr`, and `unseeded = "prompt"`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

FILES = ("compat_anthropic", "compat_oai_responses", "chat_completion", "security", "tokenize", "tool_call", "completion")

# file -> (text, replacement, why)
RELAXED: dict[str, list[tuple[str, str, str]]] = {
    "utils.py": [
        (
            "assert len(choice['delta']['content']) > 0",
            "assert choice['delta']['content'] or 'role' in choice['delta']",
            "as below",
        ),
    ],
    "unit/test_chat_completion.py": [
        ('.startswith("b")', "", "the fingerprint of a llama.cpp build"),
        ('["usage"]["prompt_tokens"] == n_prompt', '["usage"]["prompt_tokens"] > 0', "counts of its test model"),
        ('["completion_tokens"] == n_predicted', '["completion_tokens"] <= n_predicted', "counts of its test model"),
        ('["finish_reason"] == finish_reason', '["finish_reason"] in ("length", "stop")', "where its test model ends"),
        ('.finish_reason == "length"', '.finish_reason in ("length", "stop")', "where its test model ends"),
        ('data["model"] == "llama-test-model"', 'data["model"]', "an alias given at its start"),
        ('["delta"]["content"] is None', '["delta"]["content"] in (None, "")', "OpenAI sends an empty string first"),
        ("choice.delta.content is None", 'choice.delta.content in (None, "")', "OpenAI sends an empty string first"),
        ('"id_slot": 0,', "", "a slot of llama.cpp"),
        ('["type"] == "exceed_context_size_error"', '["code"] == "context_length_exceeded"', "OpenAI's code"),
        ('["error"]["n_prompt_tokens"] > 0', '["error"]["message"]', "counts are in the message"),
        ('["error"]["n_ctx"] == server.n_ctx // server.n_slots', '["error"]["message"]', "counts are in the message"),
        ("res.status_code == 400 or res.status_code == 500", "res.status_code in (400, 422)", "never a 500"),
    ],
    "unit/test_completion.py": [
        ('.startswith("b")', "", "the fingerprint of a llama.cpp build"),
        ('finish_reason == "length"', 'finish_reason in ("length", "stop")', "where its test model ends"),
        ('"I believe the meaning of life is"*32', '"I believe the meaning of life is"*320', "the context is 1024, not 256"),
        ("    # mixed string and tokens\n", "    return\n", "prompts that mix text and ids are llama.cpp's"),
        ("    tasks.append((check_slots_status, ()))\n", "", "which slots are busy is llama.cpp's"),
        (
            '"seed": 42,\n            "temperature": 1.0,\n        })))',
            '"seed": 42, "temperature": 1.0, "ignore_eos": True})))',
            "its test model never ends; texts must be longer than 10 characters",
        ),
    ],
    "unit/test_security.py": [
        ('"sk-this-is-the-secret-key"', 'os.environ["EXTERNAL_KEY"]', "keys are made by `helexa keys add`"),
        (
            "== 200\n    assert cors_header in",
            "== 204\n    cors_header = cors_header.lower()\n    assert cors_header in",
            "no body",
        ),
        ('"GET, POST, DELETE, OPTIONS"', '"GET, POST, OPTIONS"', "there is nothing to delete"),
        ('Allow-Headers", "*"', 'Allow-Headers", "Authorization"', "those asked for"),
    ],
}

# Texts that only its test models write. Regexes of what a grammar forces are not among them: those are held to.
MODEL_TEXTS = frozenset(
    (
        "But she couldn't",
        "(Suddenly)+",
        '(Suddenly)+|\\{ " Sarax.',
        "^ blue",
        "(Aside|she|felter|alonger)+",
        "Whillicter",
        "(going|bed)+",
    )
)

# (start of a node id, why)
NOT_RUN = [
    ("test_compat_anthropic.py::test_anthropic_tool_result_with_image", "the model has no vision"),
    ("test_compat_anthropic.py::test_anthropic_vision", "the model has no vision"),
    ("test_compat_anthropic.py::test_anthropic_empty_messages", "an empty array is an error, as at Anthropic's"),
    ("test_compat_anthropic.py::test_anthropic_thinking_history", "wants a template file given at its start"),
    ("test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry", "fields of llama.cpp"),
    ("test_chat_completion.py::test_chat_completion_cached_tokens", "counts of its test model's cache"),
    ("test_chat_completion.py::test_chat_template", "a template given at its start, its verbose output, continuing a message"),
    ("test_chat_completion.py::test_apply_chat_template", "a route of llama.cpp"),
    ("test_chat_completion.py::test_chat_completion_with_timings_per_token", "fields of llama.cpp"),
    ("test_chat_completion.py::test_return_progress", "fields of llama.cpp"),
    ("test_chat_completion.py::test_chat_completions_token_count", "a route of llama.cpp; see /tokenize and count_tokens"),
    ("test_chat_completion.py::test_invalid_chat_completion_req[messages7]", "what its test model's template refuses"),
    ("test_chat_completion.py::test_verbose_debug", "fields of llama.cpp"),
    ("test_completion.py::test_completion[", "counts and fields of llama.cpp"),
    ("test_completion.py::test_completion_stream[", "counts and fields of llama.cpp"),
    ("test_completion.py::test_json_prompt", "prompts as objects are llama.cpp's"),
    ("test_completion.py::test_completion_unified", "what fits in a pool of its slots"),
    ("test_completion.py::test_completion_response_fields", "fields of llama.cpp"),
    ("test_completion.py::test_n_probs", "the likeliest tokens' ids, which OpenAI's documents have not"),
    ("test_completion.py::test_logit_bias[False", "biases by text; here they go by token id"),
    ("test_completion.py::test_completion_prompt_cache", "counts of its test model's cache"),
    ("test_security.py::test_access_static_assets_without_api_key", "the files of llama.cpp's page"),
    ("test_security.py::test_cors_options[origin-", "no credentials are used across origins"),
    ("test_security.py::test_cors_origins", "a mode of llama.cpp's router"),
    ("test_security.py::test_cors_proxy", "a proxy of llama.cpp"),
    ("test_security.py::test_local_media_file[../../../tools-file://mtmd/test-1.jpeg", "no file is read on a client's word"),
    ("test_security.py::test_local_media_file[../../../tools-file:////", "no file is read on a client's word"),
    ("test_tokenize.py::test_tokenize_with_bos", "its test model's first token"),
]


def why_not(node: str, slow: bool) -> str | None:
    """Why a test is not run; None if it is."""
    if slow and not _slow_run(node):
        return "wants a model of its own"
    return next((why for start, why in NOT_RUN if node.startswith(start)), None)


def _slow_run(node: str) -> bool:
    """Of the tests that fetch models, the one that asks nothing of a model: its call is forced. One model's name is enough, and the
    tool whose arguments are bounded: into a free string the default model writes until the reply is cut."""
    return "required_tool_real_model" in node and "tool0" in node and "Meta-Llama-3.1-8B-Instruct" in node


def unpack(folder: Path) -> Path:
    """The tests' folder in an unpacked source distribution; downloads what is not there."""
    found = sorted(folder.glob("llama_cpp_python-*/vendor/llama.cpp/tools/server/tests"))
    if found:
        return found[-1]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python", "llama-cpp-python"]
    subprocess.run(pip, cwd=folder, check=True)
    with tarfile.open(sorted(folder.glob("llama_cpp_python-*.tar.gz"))[-1]) as archive:
        wanted = ("/vendor/llama.cpp/tools/server/tests/", "/vendor/llama.cpp/models/templates/")
        archive.extractall(folder, [item for item in archive if any(part in item.name for part in wanted)], filter="data")
    return unpack(folder)


def relax(tests: Path) -> None:
    """Relaxes the copy, from its originals; says so when a text is not there."""
    for name, changes in RELAXED.items():
        path = tests / name
        original = path.with_suffix(".original")
        if not original.exists():
            original.write_text(path.read_text())
        text = original.read_text()
        for old, new, why in changes:
            if old not in text:
                raise SystemExit(f"{name} has no `{old}` any more ({why}): read the suite again")
            text = text.replace(old, new)
        path.write_text(text)


def main() -> int:
    folder, url, model, key, *files = sys.argv[1:]
    tests = unpack(Path(folder).resolve())
    relax(tests)
    address = urlsplit(url)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tests}:{Path(__file__).resolve().parent}",
        "EXTERNAL_HOST": str(address.hostname),
        "EXTERNAL_PORT": str(address.port),
        "EXTERNAL_MODEL": model,
        "EXTERNAL_KEY": key,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "llamacpp_plugin", "-p", "no:cacheprovider"]
    paths = [f"unit/test_{name}.py" for name in files or FILES]
    return subprocess.run([*command, *paths], cwd=tests, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
