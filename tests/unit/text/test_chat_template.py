"""The sandboxed chat template: what templates may do, how their errors read, and hostile ones."""

from __future__ import annotations

from datetime import datetime

import pytest

from helexa.errors import ModelFileError, RequestError
from helexa.text.chat_template import MAX_SOURCE, ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<b>1 & 2</b> é"},
    {"role": "assistant", "content": None},
]


def render(source: str, messages: list[dict] | None = None, **extra: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(MESSAGES if messages is None else messages, **extra)


def error(source: str, messages: list[dict] | None = None, **extra: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(source, messages, **extra)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}\n  {% if loop.last %}\nlast {{ loop.length }}\n  {% endif %}\n{% endfor %}", "last 3\n"),
        ("{{ messages[1].content }}", "<b>1 & 2</b> é"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "<b>1 & 2</b> é"}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  2\n ]\n}'),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in [1, 2, 3] if i != 2 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% endfor %}", "11/2 32/2 "),
        ("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}", "<s>|</s>|True"),
        ("{{ tools is none }}{{ documents is none }}{{ tools is defined }}", "TrueTrueTrue"),
        ("{% generation %}{{ 1 + 1 }}{% endgeneration %}", "2"),
        ("{{ 'a' ~ 1 ~ none }}{{ ('x' ~ 'y') | upper }}{{ [1, 2] + [3] }}", "a1NoneXY[1, 2, 3]"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{% for k, v in messages[0].items() %}{{ k }}{% endfor %}", "rolecontent"),
        ("{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.length }}{{ m.role }}{% endfor %}", "1user"),
        ("{{ dict(a=1)['a'] }}{{ '%05d' % 42 }}{{ 2 ** 10 }}{{ '-' * 3 }}", "1000421024---"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    """Whitespace control, loops with their counters, namespaces, tojson without escapes, the variables chat templates expect."""
    assert render(source) == expected


def test_now_is_a_value() -> None:
    """strftime_now reads the clock it is given."""
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "", "", now=lambda: datetime(2031, 5, 6))
    assert template.render([]) == "06 May 2031"


def test_extra_variables() -> None:
    """A request's own variables reach the template, and cannot replace the server's."""
    assert render("{{ enable_thinking }}{{ tools | length }}", enable_thinking=False, tools=[{}]) == "False1"
    for name in ("bos_token", "raise_exception", "range", "_private", "__class__"):
        refused = error("{{ bos_token }}", **{name: "x"})
        assert refused.code == "invalid_value" and refused.param == "chat_template_kwargs" and name in refused.message
    with pytest.raises(RequestError):
        ChatTemplate("", "", "").render([], messages=[])


def test_error_names_line_and_message() -> None:
    """A message the template cannot take is named by index and role, with the template's line."""
    source = "{% for message in messages %}\n{{ message.role }}\n{{ message.content + '!' }}\n{% endfor %}"
    refused = error(source)
    assert refused.code == "template_error" and refused.status == 422
    assert "line 3" in refused.message and "messages[2]" in refused.message and "'assistant'" in refused.message
    assert refused.param == "messages[2]"


def test_error_of_the_templates_own() -> None:
    """raise_exception's words reach the client; without a message at hand only the line is named."""
    refused = error("\n{{ raise_exception('roles must\nalternate') }}")
    assert "line 2: roles must alternate" in refused.message and refused.param == "messages"
    inside = error("{% macro check(m) %}{{ raise_exception('no ' + m.role) }}{% endmacro %}{{ check(messages[1]) }}")
    assert "messages[1]" in inside.message and "no user" in inside.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'].mro() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ dict.update(messages[0], role='x') }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | attr('append'))(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ lipsum(5) }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """Python's internals, changes to the messages and other files are out of reach."""
    before = [dict(message) for message in MESSAGES]
    assert error(source).code == "template_error"
    assert before == MESSAGES


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ ('{x.__class__.__mro__}' | attr('format_map'))({'x': 1}) }}",
        "{{ self.__init__.__globals__ }}",
    ],
)
def test_format_tricks_show_nothing(source: str) -> None:
    """Formatting that reaches for attributes gets nothing, or an error; never the attribute."""
    try:
        assert "class" not in render(source) and "<" not in render(source)
    except RequestError as refused:
        assert refused.code == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(10**30) %}{% endfor %}",
        "{{ range(1000000000) | list | length }}",
        "{% for a in range(2000) %}{% for b in range(2000) %}{% for c in range(2000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = '' ~ (ns.s ~ ns.s) %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = [ns.s ~ ns.s, 1][0] %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=9) %}{% for i in range(99) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% for a in messages %}{% for b in messages %}{% for c in messages %}{{ x }}{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_renderings_end(source: str) -> None:
    """Loops, recursion, products and doublings run into the budget instead of the machine's limits."""
    many = [{"role": "user", "content": "x"}] * 2000
    assert error(source, many).code == "template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 6000 + "1" + ")" * 6000 + "}}",
        "{% if a %}" * 6000 + "{% endif %}" * 6000,
        "{{ 1" + " + 1" * 6000 + " }}",
        "{{ " + "-" * 6000 + "1 }}",
        "{{ " + "[" * 6000 + "]" * 6000 + " }}",
        "x" * (MAX_SOURCE + 1),
    ],
)
def test_hostile_sources(source: str) -> None:
    """Sources nested thousands deep are refused when the model is loaded, as the model file's fault."""
    with pytest.raises(ModelFileError, match=r"evil\.gguf: the chat template"):
        ChatTemplate(source, "", "", file="evil.gguf")


def test_syntax_error_names_the_line() -> None:
    """As does a source that is no template."""
    with pytest.raises(ModelFileError, match=r"chat template, line 3: "):
        ChatTemplate("a\nb\n{% for %}", "", "")


def test_json_of_a_filtered_list() -> None:
    """What `map` gives is written as a list; what is no value is the template's error."""
    template = ChatTemplate("{{ messages | map(attribute='content') | tojson }}", "", "")
    assert template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == '["a", "b"]'
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        ChatTemplate("{{ messages.append | tojson }}", "", "").render([])
