"""The model's own chat template: messages to prompt text.

A template is a program from the model file, fed with a client's messages. It runs in Jinja's immutable sandbox (no Python
internals, no format tricks, no writing to what it is given, nothing to load or import), and each rendering has a budget: loop
steps, calls and range members together, the size of what the operators build, and the length of the output. So a rendering ends
without a clock's help, in a few seconds at the worst. What one single filter may allocate is not bounded: that is in the hands of
who made the template, not of who sends messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

import jinja2
from jinja2 import filters, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from helexa.errors import ModelFileError, RequestError

MAX_SOURCE = 1024 * 1024  # characters of a template
MAX_STEPS = 2_000_000  # loop steps, range members and CALL_STEPS a call, in one rendering
CALL_STEPS = 4
MAX_TEXT = 32 * 1024 * 1024  # characters of output, and of a text or members of a list that an operator makes
MAX_INT_BITS = 4096
MAX_WIDTH = 10_000  # columns that a text is padded to

Message = Mapping[str, Any]

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class ChatTemplate:
    """A compiled template; may be used from several threads.

    `bos` and `eos` are the texts of those tokens. `now` answers a template's strftime_now. `variables` are the names it reads.
    ModelFileError where `source` is not a template; names `file`.
    """

    def __init__(
        self, source: str, bos: str, eos: str, file: str = "the model file", now: Callable[[], datetime] = datetime.now
    ) -> None:
        if len(source) > MAX_SOURCE:
            raise ModelFileError(f"{file}: the chat template has {len(source)} characters, at most {MAX_SOURCE} are read")
        self.source = source
        environment = _Environment(now)
        try:
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(f"{file}: the chat template, line {error.lineno}: {_line(error)}") from None
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise ModelFileError(f"{file}: the chat template cannot be compiled: {_line(error)}") from None
        self._given = {"tools": None, "documents": None, "bos_token": bos, "eos_token": eos}
        self._reserved = {"messages", "bos_token", "eos_token", *environment.globals}

    def render(self, messages: Sequence[Message], /, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt. `extra` are further variables (`tools`, a request's chat_template_kwargs).

        RequestError `template_error` names the line, and the message that was at hand where there was one.
        """
        for name in extra:
            if name in self._reserved or name.startswith("_"):
                raise RequestError("invalid_value", f"{name!r:.80} is set by the server; leave it out", "chat_template_kwargs")
        variables = self._given | extra | {"messages": messages, "add_generation_prompt": add_generation_prompt}
        token = _steps_left.set([MAX_STEPS])
        try:
            return _joined(self._template.generate(variables))
        except Exception as error:  # a template is a foreign program: whatever it raises is its own fault
            raise _explained(error, messages) from None
        finally:
            _steps_left.reset(token)


class _OverBudget(jinja2.TemplateError):
    pass


def _spend(steps: int) -> None:
    left = _steps_left.get()
    left[0] -= steps
    if left[0] < 0:
        raise _OverBudget(f"it takes more than {MAX_STEPS} steps")


def _check_text(length: int) -> None:
    if length > MAX_TEXT:
        raise _OverBudget(f"it makes a text or list of more than {MAX_TEXT} characters or members")


def _joined(pieces: Iterable[str]) -> str:
    length, kept = 0, []
    for piece in pieces:
        length += len(piece)
        _check_text(length)
        kept.append(piece)
    return "".join(kept)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        self.filters.update(tojson=_tojson, counted_steps=_counted, joined_texts=_concatenated)
        self.filters.update(format=_format, center=_padding(filters.do_center), indent=_padding(filters.do_indent))
        del self.globals["lipsum"]
        self.globals.update(range=_range, dict=_dict, raise_exception=_raise, strftime_now=lambda format: now().strftime(format))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Loops count their steps, and `~` its length: each goes through a filter."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "counted_steps")
        for parent in reversed(list(tree.find_all(nodes.Node))):  # the inner ones first
            for field, value in parent.iter_fields():
                if isinstance(value, list):
                    setattr(parent, field, [_bounded(item) for item in value])
                else:
                    setattr(parent, field, _bounded(value))
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend(CALL_STEPS)
        if isinstance(getattr(obj, "__self__", None), str):  # zfill, center, expandtabs, ...
            _check_widths((*args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_int(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        elif operator == "+":
            _check_text(_length(left) + _length(right))
        elif operator == "*":
            _check_text(max(_length(left), 1) * right if isinstance(right, int) else 0)
            _check_text(max(_length(right), 1) * left if isinstance(left, int) else 0)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; a prompt has no use for the mark."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bounded(node: Any) -> Any:
    """A concatenation as a filter over the list of its parts; other nodes as they are."""
    return _filtered(nodes.List(node.nodes, lineno=node.lineno), "joined_texts") if isinstance(node, nodes.Concat) else node


def _concatenated(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_text(sum(map(len, texts)))
    return "".join(texts)


def _counted(items: Iterable[Any]) -> Iterable[Any]:
    """The same items; a sequence is charged at once and stays one, so that `loop.length` costs nothing."""
    if isinstance(items, Sequence | Mapping):
        _spend(len(items))
        return items
    return _charged(items)


def _charged(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend(1)
        yield item


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence) else 0


def _check_int(operator: str, left: int, right: int) -> None:
    if operator == "*":
        bits = left.bit_length() + right.bit_length()
    else:
        bits = left.bit_length() * max(right, 0) if operator == "**" else 0
    if bits > MAX_INT_BITS:
        raise _OverBudget(f"it makes a number of more than {MAX_INT_BITS} bits")


def _check_widths(numbers: Iterable[Any]) -> None:
    if any(isinstance(number, int) and number > MAX_WIDTH for number in numbers):
        raise _OverBudget(f"it asks for more than {MAX_WIDTH} columns")


def _check_format(text: str, values: Any) -> None:
    """Widths and precisions that a printf-style text names, or takes from its values."""
    for form in re.findall(r"%(?:\([^)]*\))?([^a-zA-Z%]*)", text):
        _check_widths(int(digits[:12]) for digits in re.findall(r"[0-9]+", form))
    if "*" in text:
        _check_widths(values if isinstance(values, tuple) else (values,))


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    _check_format(text, args)
    return filters.do_format(text, *args, **kwargs)


def _padding(function: Callable[..., str]) -> Callable[..., str]:
    def bounded(*args: Any, **kwargs: Any) -> str:
        _check_widths((*args, *kwargs.values()))
        return function(*args, **kwargs)

    return bounded


def _range(*args: int) -> range:
    numbers = range(*args)
    try:
        _spend(len(numbers))
    except OverflowError:  # more members than a machine word counts
        _spend(MAX_STEPS + 1)
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """In place of the class, whose methods would change what the template is given."""
    return dict(*args, **kwargs)


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """As chat templates expect it: no HTML escapes, no ASCII escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What a filter such as `map` gives, as the list that it stands for."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _explained(error: Exception, messages: Sequence[Message]) -> RequestError:
    line, index = _place(error.__traceback__, messages)
    at = f", line {line}" if line else ""
    if index is None:
        return RequestError("template_error", f"the model's chat template{at}: {_line(error)}", "messages")
    role = messages[index].get("role")
    return RequestError(
        "template_error",
        f"the model's chat template{at}, at messages[{index}] (role {role!r:.40}): {_line(error)}",
        f"messages[{index}]",
    )


def _place(trace: TracebackType | None, messages: Sequence[Message]) -> tuple[int | None, int | None]:
    """(line of the template, index of the message at hand).

    Jinja puts frames that look like the template into the trace; a message is at hand when one of their variables is that object.
    """
    line = index = None
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
            held = [id(value) for value in frame.f_locals.values()]
            index = next((place for place, message in enumerate(messages) if id(message) in held), index)
        trace = trace.tb_next
    return line, index


def _line(error: Exception) -> str:
    """The error as one line of bounded length."""
    text = " ".join(str(error).split())[:400] or type(error).__name__
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply or makes too much"
    if isinstance(error, SecurityError):
        return f"not allowed: {text}"
    return text
