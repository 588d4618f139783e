"""`helexa bench` from the command line, on a tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from service import environment, helexa, serving, wait_until_gone
from tiny_model import write_tiny_model

pytestmark = pytest.mark.process

SMALL = ("--concurrency", "1,3", "--requests", "4", "--input-tokens", "40", "--output-tokens", "12")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf", context=512)


def run(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, list[dict]]:
    """Exit code, output, and the JSON lines."""
    file = folder / "results.jsonl"
    done = subprocess.run(
        helexa("bench", *arguments, "--json", str(file)),
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    lines = file.read_text().splitlines() if file.exists() else []
    return done.returncode, done.stdout + done.stderr, [json.loads(line) for line in lines]


@pytest.mark.parametrize("mode", ["completions", "chat", "zmq"])
def test_a_private_server_is_measured(tmp_path, model, mode):
    """Every request is answered in full length, no prompt is cached, and prompts have the length asked for."""
    code, output, records = run(tmp_path, str(model), *SMALL, *(["--zmq"] if mode == "zmq" else ["--route", mode]))
    assert code == 0, output
    assert [record["load"]["concurrency"] for record in records] == [1, 3]
    for record in records:
        metrics = record["metrics"]
        assert (metrics["requests"], metrics["failed"], metrics["output_tokens"], metrics["cached_tokens"]) == (4, 0, 48, 0)
        assert metrics["ttft_ms"]["p50"] > 0 and metrics["output_tok_s"] > 0 and metrics["client_cpu_s"] > 0
        if mode != "chat":
            assert 4 * 38 <= metrics["prompt_tokens"] <= 4 * 40
        assert record["target"]["transport"] == ("zmq" if mode == "zmq" else "http")
    assert "client CPU" in output
    assert list((tmp_path / "helexa").iterdir()) == [], "the private server left its run directory"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_takes_its_private_server_along(tmp_path, model, number):
    """The server ran on, with its memory, after the command that had started it was killed."""
    command = subprocess.Popen(
        helexa("bench", str(model), "--concurrency", "1", "--requests", "1000000"),
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert any(" memory " in line for line in command.stderr)
    pids = [child.pid for child in psutil.Process(command.pid).children(recursive=True)]
    command.send_signal(number)
    command.wait()
    assert len(pids) >= 4 and wait_until_gone(pids) == []
    assert list((tmp_path / "helexa").iterdir()) == []


def test_two_servers_take_turns(tmp_path, model):
    """A B, B A, A B: the order of the records is the order of the runs, and both sides of a pair have the same load."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    with (
        serving(folders[0], str(model), "--name", "one") as first,
        serving(folders[1], str(model), "--name", "two") as second,
    ):
        code, output, records = run(
            tmp_path, "--url", first.url, "--vs", second.url, "--pairs", "3", "--concurrency", "2", *SMALL[2:]
        )
    assert code == 0, output
    assert [record["target"]["model"] for record in records] == ["one", "two", "two", "one", "one", "two"]
    assert [record["pair"] for record in records] == [0, 0, 1, 1, 2, 2]
    assert {record["metrics"]["output_tokens"] for record in records} == {48}
    assert "medians of 3 interleaved pairs" in output and "A / B" in output


def test_the_service_on_the_port_is_measured_and_caching_is_asked_for(tmp_path, model):
    """With a shared prefix, in an open loop: prompt tokens are cached, and that is said."""
    with serving(tmp_path, str(model), "--name", "one") as service:
        code, output, records = run(
            tmp_path, "--port", str(service.port), "--rate", "50", "--shared-prefix", "64", "--input-tokens", "100",
            "--requests", "6", "--output-tokens", "8",
        )  # fmt: skip
    assert code == 0, output
    assert records[0]["load"]["rate"] == 50 and records[0]["target"]["model"] == "one"
    assert records[0]["metrics"]["cached_tokens"] > 0 and "prompt tokens were cached" in output


def test_failed_requests_fail_the_command(tmp_path, model):
    """Prompts and replies that the context cannot hold: the reason is printed, the exit code is 1."""
    code, output, records = run(tmp_path, str(model), "--concurrency", "1", "--requests", "2", "--output-tokens", "5000")
    assert code == 1 and "context_length_exceeded" in output
    assert records[0]["metrics"]["failed"] == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--zmq", "--vs", "http://127.0.0.1:1"], "--zmq"),
        (["--concurrency", "0"], "--concurrency"),
        (["--rate", "nan"], "--rate"),
        (["--shared-prefix", "109"], "--shared-prefix"),
        (["some.gguf", "--url", "http://127.0.0.1:1"], "MODEL is for a private server"),
        (["--url", "ftp://x"], "not a server's address"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path, arguments, word):
    code, output, _ = run(tmp_path, *arguments)
    assert code == 2 and word in output


def test_nobody_at_the_address(tmp_path):
    code, output, _ = run(tmp_path, "--url", "http://127.0.0.1:1")
    assert code == 1 and "does not answer" in output


def test_servers_with_keys(tmp_path, model):
    """Each server gets the key of its own variable; without one the refusal names the options, and a name without a value is an error."""
    (tmp_path / "helexa.toml").write_text('[keys]\nfile = "keys.json"\n')
    made = subprocess.run(helexa("keys", "add", "bench"), cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    key = next(word for word in made.stdout.split() if word.startswith("hx-"))
    small = ("--concurrency", "1", "--requests", "2", "--input-tokens", "20", "--output-tokens", "4", "--pairs", "1")
    with serving(tmp_path, str(model), "--config", str(tmp_path / "helexa.toml")) as service:
        both = ("--url", service.url, "--vs", service.url)
        code, output, _ = run(tmp_path, *both, *small, HELEXA_API_KEY=key)
        assert code == 1 and "--vs-api-key-env" in output, output
        named = ("--api-key-env", "FIRST", "--vs-api-key-env", "SECOND")
        code, output, records = run(tmp_path, *both, *small, *named, FIRST=key, SECOND=key)
        assert code == 0 and len(records) == 2, output
        code, output, _ = run(tmp_path, *both, *small, *named, FIRST=key)
        assert code != 0 and "$SECOND is not set" in output, output
        assert key not in output
