"""`helexa completion bash`: a static script, made from the command line's own parser. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

_HEAD = """# bash completion for helexa: source <(helexa completion bash)
_helexa() {
    local word="${COMP_WORDS[COMP_CWORD]}" path="" known="" item
    for item in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "$path $item" in
"""
_TAIL = """    esac
    COMPREPLY=($(compgen -W "$known" -- "$word"))
    [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _helexa helexa
"""


def bash(parser: argparse.ArgumentParser) -> str:
    """Words that fit at a place: commands, flags, choices; else file names."""
    places = dict(_places(parser, ""))
    steps = [f'            "{path}") path="{path}" ;;\n' for path in places if path]
    words = [f'        "{path}") known="{" ".join(known)}" ;;\n' for path, known in places.items()]
    return f'{_HEAD}{"".join(steps)}        esac\n    done\n    case "$path" in\n{"".join(words)}{_TAIL}'


def _places(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[str]]]:
    """(path of commands such as " keys add", words that may follow)."""
    words: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        words += [flag for flag in action.option_strings if flag.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            below += list(action.choices.items())
        if action.choices is not None and not action.option_strings:
            words += [str(choice) for choice in action.choices]
    yield path, words
    for name, command in below:
        yield from _places(command, f"{path} {name}")
