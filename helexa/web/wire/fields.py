"""Every request field, in one of three classes, and the parser that follows from the table. Pure.

- acts: it changes the reply, through `check`.
- inert: it carries no instruction to the engine; it is checked and has no effect.
- refused: its meaning is not served, so a 400 names it; `neutral` values, which ask for nothing, pass.

`null` is absent, for every field. docs/api.md has the table as `markdown` prints it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from helexa.errors import RequestError
from helexa.web.wire import checks
from helexa.web.wire.checks import INT32_MAX, Check

Kind = Literal["acts", "inert", "refused"]


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind
    doc: str  # for `refused`: why
    check: Check | None = None
    required: bool = False
    neutral: tuple[Any, ...] = ()


def acts(name: str, check: Check, doc: str, required: bool = False) -> Field:
    return Field(name, "acts", doc, check, required)


def inert(name: str, check: Check, doc: str) -> Field:
    return Field(name, "inert", doc, check)


def refused(name: str, why: str, *neutral: Any) -> Field:
    return Field(name, "refused", why, neutral=neutral)


_NO_TOOLS = "tool calls are not served"
_NO_GRAMMAR = "structured output is not served"
_NO_AUDIO = "audio is not served"

COMMON = (
    acts("model", checks.Text(256, 1), "A name that /v1/models lists.", required=True),
    acts("stream", checks.Bool(), "Server-sent events instead of one document."),
    acts("stream_options", checks.Object(), "`include_usage`: a last chunk with the usage. Only with `stream`."),
    acts("max_tokens", checks.Integer(1, INT32_MAX), "Longest output; by default what is left of the context, at most 8192."),
    acts("min_tokens", checks.Integer(0, INT32_MAX), "No end of sequence before so many tokens."),
    acts("temperature", checks.Number(0, 100), "0: the likeliest token, always. Default: sampling.temperature."),
    acts("top_p", checks.Number(0, 1), "Draw from the likeliest tokens that hold this probability together; 1: off."),
    acts("top_k", checks.Integer(-1, INT32_MAX), "Draw from so many likeliest tokens; 0 or -1: off."),
    acts("min_p", checks.Number(0, 1), "Draw from tokens with at least this part of the likeliest one's probability; 0: off."),
    acts("presence_penalty", checks.Number(-2, 2), "Taken from the logit of each token that the output has; 0: off."),
    acts("frequency_penalty", checks.Number(-2, 2), "Taken from a token's logit once for each time the output has it; 0: off."),
    acts(
        "repetition_penalty",
        checks.Number(0, 100, above=True),
        "Divides positive logits, multiplies negative ones, of tokens in prompt and output; 1: off.",
    ),
    acts("logit_bias", checks.LogitBias(), "Added to the logits of these tokens."),
    acts(
        "seed",
        checks.Integer(-(2**63), 2**63 - 1),
        "Repeats a reply, to the token. The low 63 bits count; x-helexa-seed names the one used.",
    ),
    acts("n", checks.Integer(1, 16), "Choices of each prompt."),
    acts("stop", checks.StopStrings(), "The output ends before the first of these."),
    acts("stop_token_ids", checks.TokenIds(64), "The output ends at the first of these; it is counted but has no text."),
    acts("ignore_eos", checks.Bool(), "Go on past the end of sequence."),
    acts("return_token_ids", checks.Bool(), "`token_ids` in each choice, and the prompt's as `prompt_token_ids`."),
    acts(
        "return_token_sha", checks.Bool(), "`token_sha` in each choice: SHA-256, in hex, of its token ids as little-endian int32."
    ),
    inert("user", checks.Text(4096), "A name of yours for the end user."),
    inert("metadata", checks.FlatObject(), "Notes of yours."),
    inert("safety_identifier", checks.Text(4096), "A name of yours for the end user."),
    inert("prompt_cache_key", checks.Text(4096), "Prompts are matched by their tokens; no key is needed."),
    inert("service_tier", checks.OneOf(("auto", "default")), "There is one tier; the reply says `default`."),
    refused("store", "replies are not stored", False),
    refused("best_of", "only `n` choices are made; none is dropped", 1),
    refused("use_beam_search", "beam search is not served", False),
    refused("length_penalty", "beam search is not served", 1),
    refused("early_stopping", "beam search is not served", False),
    refused("typical_p", "typical sampling is not served", 1),
    refused("mirostat", "mirostat is not served", 0),
    refused("priority", "priorities are not served", 0),
    refused("cache_salt", "a private prefix cache is not served"),
    refused("draft", "drafting is not served", False),
    refused("bad_words", "use `logit_bias`", []),
    refused("allowed_token_ids", "use `logit_bias`", []),
    refused("prompt_logprobs", "logprobs of the prompt are not served", 0),
    refused("truncate_prompt_tokens", "prompts are never cut in silence"),
    refused("include_stop_str_in_output", "the stop string is never part of the text", False),
    refused("skip_special_tokens", "control tokens never have text", True),
    refused("spaces_between_special_tokens", "control tokens never have text", True),
    refused("structured_outputs", _NO_GRAMMAR),
    refused("guided_json", _NO_GRAMMAR),
    refused("guided_regex", _NO_GRAMMAR),
    refused("guided_choice", _NO_GRAMMAR),
    refused("guided_grammar", _NO_GRAMMAR),
    refused("grammar", _NO_GRAMMAR, ""),
    refused("json_schema", _NO_GRAMMAR),
    refused("logits_processors", "code of a client is never run", []),
)

CHAT = (
    *COMMON,
    acts(
        "messages",
        checks.FilledArray("message"),
        "Roles system, developer (the same), user, assistant, tool; content a string or text parts.",
        required=True,
    ),
    acts("max_completion_tokens", checks.Integer(1, INT32_MAX), "The newer name of `max_tokens`."),
    acts("logprobs", checks.Bool(), "Log probabilities of the output's tokens."),
    acts("top_logprobs", checks.Integer(0, 20), "And of so many likeliest ones at each place. Only with `logprobs`."),
    refused("tools", _NO_TOOLS, []),
    refused("tool_choice", _NO_TOOLS, "none", "auto"),
    refused("parallel_tool_calls", _NO_TOOLS, True, False),
    refused("functions", _NO_TOOLS, []),
    refused("function_call", _NO_TOOLS, "none", "auto"),
    refused("response_format", _NO_GRAMMAR, {"type": "text"}),
    refused("modalities", "only text is served", ["text"]),
    refused("audio", _NO_AUDIO),
    refused("prediction", "predicted outputs are not served"),
    refused("reasoning_effort", "reasoning models are not served", "none"),
    refused("reasoning", "reasoning models are not served"),
    refused("thinking_budget", "reasoning models are not served"),
    refused("verbosity", "the model does not take it; say it in a message", "medium"),
    refused("web_search_options", "nothing is fetched on a client's word"),
    refused("moderation", "replies are not moderated"),
    refused("prompt_cache_retention", "the prefix cache has one rule for all", "in_memory", "in-memory"),
    refused("chat_template", "the model's own template is used"),
    refused("chat_template_kwargs", "the template takes no arguments of clients", {}),
    refused("documents", "the template takes no arguments of clients", []),
    refused("add_generation_prompt", "a reply always starts a new message", True),
    refused("continue_final_message", "a reply always starts a new message", False),
    refused("add_special_tokens", "the template writes them", False),
    refused("echo", "the prompt is a list of messages; use /v1/completions", False),
)

COMPLETIONS = (
    *COMMON,
    acts("prompt", checks.Prompts(), "One or several prompts, as text or token ids; each has `n` choices.", required=True),
    acts(
        "logprobs", checks.Integer(0, 20), "Log probabilities of the output's tokens and of so many likeliest ones at each place."
    ),
    acts("echo", checks.Bool(), "The prompt's text before the output's. Not with `logprobs`."),
    refused("suffix", "inserting before a suffix is not served", ""),
    refused("response_format", _NO_GRAMMAR, {"type": "text"}),
    refused("add_special_tokens", "the model's own tokens are always added to text", True),
)


def parse(body: Mapping[str, Any], table: tuple[Field, ...]) -> dict[str, Any]:
    """The acting and inert fields that are given, checked. Raises RequestError naming the first field that does not pass."""
    by_name = {field.name: field for field in table}
    values: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        field = by_name.get(name)
        if field is None:
            raise unknown(name, by_name)
        if field.check is None:
            if not any(_same(value, neutral) for neutral in field.neutral):
                raise RequestError("unsupported_parameter", f"`{name}` is not supported: {field.doc}", name)
            continue
        values[name] = checked(name, value, field.check)
    for field in table:
        if field.required and field.name not in values:
            raise RequestError(
                "invalid_value", f"`{field.name}` is required: {field.check.says if field.check else ''}", field.name
            )
    return values


def checked(param: str, value: Any, check: Check) -> Any:
    try:
        return check(value)
    except ValueError:
        raise RequestError("invalid_value", f"`{param}` must be {check.says}, not {shown(value)}", param) from None


def unknown(param: str, known: Mapping[str, Any]) -> RequestError:
    prefix, dot, leaf = param.rpartition(".")
    close = difflib.get_close_matches(leaf[:64], known, n=1)
    hint = f"did you mean `{prefix}{dot}{close[0]}`?" if close else "docs/api.md lists the fields"
    return RequestError("unknown_parameter", f"unknown field `{param[:128]}`; {hint}", param[:128])


def shown(value: Any) -> str:
    """A value in an error: JSON, short."""
    if isinstance(value, (dict, list)):
        return f"this {'object' if isinstance(value, dict) else 'array'} of {len(value)}"
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 2**80 else "so large a number"
    return text if len(text) <= 64 else text[:61] + "..."


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: true is not 1, 1.0 is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def markdown(table: tuple[Field, ...]) -> str:
    """The table for people: a row a field."""
    lines = ["| field | class | values | meaning |", "|---|---|---|---|"]
    for field in table:
        if field.check is not None:
            values = field.check.says
        else:
            values = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral) or "none"
        lines.append(f"| `{field.name}` | {field.kind}{', required' if field.required else ''} | {values} | {field.doc} |")
    return "\n".join(lines) + "\n"
