"""`helexa ctl`, `helexa keys` and the completion script, as far as they need no service."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from helexa import cli
from helexa.scheduler import control


def test_the_command_line_and_the_control_socket_know_the_same_actions():
    """All but `metrics`, which is for the web tier."""
    assert set(cli.CONTROL_ACTIONS) == set(control.COMMANDS) - {"metrics"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["load"], "needs a MODEL"),
        (["abort"], "needs an ID"),
        (["drain", "x"], "takes no argument"),
        (["status", "--name", "x"], "takes no --name"),
        (["pause", "x", "--name", "y"], "--name goes with `load`"),
        (["status"], "no helexa answers on port 1"),
    ],
)
def test_what_is_wrong_is_said(arguments, word, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert cli.main(["ctl", *arguments, "--port", "1"]) == 1
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    "limits", [["--weight", "0"], ["--weight", "1,2"], ["--concurrency", "-1"], ["--requests-per-minute", "x"]]
)
def test_wrong_limits_are_wrong_usage(limits):
    with pytest.raises(SystemExit) as caught:
        cli.parser().parse_args(["keys", "add", "n", *limits])
    assert caught.value.code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["helexa", "se"], {"serve"}),
        (["helexa", "ctl", "re"], {"reload", "resume"}),
        (["helexa", "keys", ""], {"add", "list", "revoke", "--config", "--file", "--help", "--offline", "--port"}),
        (["helexa", "keys", "add", "--w"], {"--weight"}),
        (["helexa", "--offline", "ctl", "ab"], {"abort"}),
    ],
)
def test_bash_completes(line, expected, capsys):
    """The script, in a real bash, at the end of these words."""
    assert cli.main(["completion", "bash"]) == 0
    words = " ".join(f"'{word}'" for word in line)
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _helexa; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = f"{capsys.readouterr().out}\n{ask}"
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == expected


def test_every_command_says_what_it_does():
    """With its exit codes in the documentation, and no colour anywhere: output is the same on a terminal and in a file."""
    commands = next(action for action in cli.parser()._actions if action.choices and not action.option_strings)
    for name, command in commands.choices.items():
        assert command.description, name
        assert "\x1b" not in command.format_help()
