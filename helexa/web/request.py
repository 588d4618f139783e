"""The typed request, between the wire formats and the engine. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from helexa.text.grammar import OutputFormat
from helexa.text.output_parser import ParseRules
from helexa.text.tool_formats import Tool
from ipc.messages import Priority, SamplingParams

DEFAULT_MAX_TOKENS = 8192
# Tokens of reasoning for an effort, where a model's template has no word for efforts itself; other efforts have no bound.
EFFORTS = {"minimal": 256, "low": 1024, "medium": 4096}


@dataclass(frozen=True)
class ToolUse:
    """The functions a reply may call. `forced`: it must call one of these names; `parallel`: it may call several."""

    tools: list[Tool]
    forced: list[str] = field(default_factory=list)
    parallel: bool = True


@dataclass(frozen=True)
class ChatPrompt:
    """Messages for the model's chat template, as helexa.text.chat_format takes them; `tools` None: none are offered.

    `kwargs` are further variables of the template. `reasoning_effort` None: as the template has it.
    """

    messages: list[dict[str, Any]]
    tools: ToolUse | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None


@dataclass(frozen=True)
class TextPrompt:
    text: str
    special: bool = True  # control tokens spelled in the text are those tokens
    bos: bool = True


@dataclass(frozen=True)
class TokenPrompt:
    ids: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True)
class Options:
    """What a request says about sampling and ending, as given; None is left to the model and the server (prepare.py)."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int = -1  # -1: none; k: the sampled token's and the k best
    prompt_logprobs: int = -1  # the same, of the prompt
    seed: int | None = None
    n: int = 1
    priority: Priority = "interactive"
    cache_salt: str = ""
    format: OutputFormat | None = None
    thinking_budget: int | None = None
    default_max_tokens: int = DEFAULT_MAX_TOKENS  # without `max_tokens`, the longest output that is tried for


@dataclass(frozen=True)
class Shape:
    """What the reply looks like."""

    stream: bool = False
    include_usage: bool = False
    token_ids: bool = False
    token_sha: bool = False
    echo: bool = False
    service_tier: bool = False  # the request named one, so the reply does
    include_thinking: bool = False  # reasoning stays in the text, markers and all
    echoed: dict[str, Any] = field(default_factory=dict)  # fields of the request that the reply repeats


@dataclass(frozen=True)
class WireRequest:
    """A decoded and checked body; `prompts` has one entry except on completions."""

    model: str
    prompts: list[Prompt]
    options: Options
    shape: Shape


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt, ready for the engine: `seed` is the request's, `seeds` has one a choice."""

    model: str
    prompt_ids: list[int]
    prompt_text: str  # for echo; "" where the prompt came from a chat template
    params: SamplingParams
    seed: int
    seeds: list[int]
    stop: list[str]
    priority: Priority = "interactive"
    cache_salt: str = ""
    rules: ParseRules = field(default_factory=ParseRules)
    opening: str = ""  # text that every choice starts with: the marker of reasoning that the prompt began
    instance: int = 0  # which loading of the model the ids are for

    @property
    def n(self) -> int:
        return len(self.seeds)


@dataclass(frozen=True)
class ReplyMeta:
    """What every document of one reply repeats."""

    id: str
    model: str
    created: int  # seconds since the epoch
    fingerprint: str
    prompts: list[GenerationRequest]
    shape: Shape
    logprobs: int
