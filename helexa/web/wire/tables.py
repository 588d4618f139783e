"""The tables of request fields: which act, which are inert, which are refused and why. One table an endpoint."""

from __future__ import annotations

from helexa.web.wire import checks
from helexa.web.wire.checks import INT32_MAX
from helexa.web.wire.fields import Field, acts, inert, refused

_NO_AUDIO = "audio is not served"
_ONE_TEMPLATE = "the model's own template is used"
_NOT_STORED = "replies are not stored"

MODEL = acts("model", checks.Text(256, 1), "A name that /v1/models lists.", required=True)
STREAM = acts("stream", checks.Bool(), "Server-sent events instead of one document.")
TEMPERATURE = acts(
    "temperature",
    checks.Number(0, 100),
    "0: the likeliest token, always. Default: what the model recommends, else sampling.temperature.",
)
TOP_P = acts("top_p", checks.Number(0, 1), "Draw from the likeliest tokens that hold this probability together; 1: off.")
TOP_K = acts("top_k", checks.Integer(-1, INT32_MAX), "Draw from so many likeliest tokens; 0 or -1: off.")
USER = inert("user", checks.Text(4096), "A name of yours for the end user.")
METADATA = inert("metadata", checks.FlatObject(), "Notes of yours.")

# The engine's own options, which every endpoint takes.
ENGINE = (
    acts("min_tokens", checks.Integer(0, INT32_MAX), "No end of sequence before so many tokens."),
    acts("min_p", checks.Number(0, 1), "Draw from tokens with at least this part of the likeliest one's probability; 0: off."),
    acts(
        "repetition_penalty",
        checks.Number(0.01, 100),
        "Divides positive logits, multiplies negative ones, of tokens in prompt and output; 1: off.",
    ),
    acts("logit_bias", checks.LogitBias(), "Added to the logits of these tokens."),
    acts(
        "seed",
        checks.Integer(-(2**63), 2**63 - 1),
        "Repeats a reply, to the token. The low 63 bits count; x-helexa-seed names the one used.",
    ),
    acts("stop_token_ids", checks.TokenIds(64), "The output ends at the first of these; it is counted but has no text."),
    acts("ignore_eos", checks.Bool(), "Go on past the end of sequence."),
    acts("priority", checks.OneOf(("interactive", "background")), "A background request gives way to interactive ones."),
    acts("cache_salt", checks.Text(256, 1), "Cached prefixes are shared only among requests with the same one."),
    refused("use_beam_search", "beam search is not served", False),
    refused("length_penalty", "beam search is not served", 1),
    refused("early_stopping", "beam search is not served", False),
    refused("typical_p", "typical sampling is not served", 1),
    refused("mirostat", "mirostat is not served", 0),
    refused("draft", "drafting is not served", False),
    refused("bad_words", "use `logit_bias`", []),
    refused("allowed_token_ids", "use `logit_bias`", []),
    refused("truncate_prompt_tokens", "prompts are never cut in silence"),
    refused("include_stop_str_in_output", "the stop string is never part of the text", False),
    refused("skip_special_tokens", "control tokens never have text", True),
    refused("spaces_between_special_tokens", "control tokens never have text", True),
    refused("logits_processors", "code of a client is never run", []),
)

PENALTIES = (
    acts("presence_penalty", checks.Number(-2, 2), "Taken from the logit of each token that the output has; 0: off."),
    acts("frequency_penalty", checks.Number(-2, 2), "Taken from a token's logit once for each time the output has it; 0: off."),
)

IDENTITY = (
    USER,
    inert("safety_identifier", checks.Text(4096), "A name of yours for the end user."),
    inert("prompt_cache_key", checks.Text(4096), "Prompts are matched by their tokens; no key is needed."),
    inert("service_tier", checks.OneOf(("auto", "default")), "There is one tier; the reply says `default`."),
)

STRUCTURE = (
    acts(
        "structured_outputs",
        checks.Object(),
        "One of `json` (a schema), `json_object` (true), `regex`, `choice` (strings), `grammar` (Lark or GBNF).",
    ),
    acts("guided_json", checks.Schema(), "The reply is JSON of this schema."),
    acts("guided_regex", checks.Text(8192, 1), "The reply matches this regular expression."),
    acts("guided_choice", checks.Strings(1024), "The reply is one of these strings."),
    acts("guided_grammar", checks.Text(32768, 1), "The reply is of this grammar, in Lark or GBNF."),
    acts("grammar", checks.Text(32768), "The reply is of this grammar, in Lark or GBNF."),
    acts("json_schema", checks.Schema(), "The reply is JSON of this schema."),
    acts(
        "response_format",
        checks.Object(),
        "`type`: `text`, `json_object`, or `json_schema` with `json_schema.schema`: what the reply must be.",
    ),
)

REASONING = (
    acts(
        "reasoning_effort",
        checks.OneOf(("none", "minimal", "low", "medium", "high", "xhigh")),
        "How much a model that reasons does; by its template, else none: not at all, minimal, low, medium: at most 256, 1024, "
        "4096 tokens.",
    ),
    acts("thinking_budget", checks.Integer(0, INT32_MAX), "Reasoning is closed after so many tokens."),
    acts(
        "chat_template_kwargs",
        checks.Object(),
        "Variables of the model's chat template, as `enable_thinking`; one that it does not read is refused.",
    ),
)

TEMPLATE = (
    refused("chat_template", _ONE_TEMPLATE),
    refused("documents", "put documents in a message", []),
    refused("add_generation_prompt", "a reply always starts a new message", True),
    refused("continue_final_message", "a reply always starts a new message", False),
)

_OPENAI = (
    MODEL,
    STREAM,
    acts("stream_options", checks.Object(), "`include_usage`: a last chunk with the usage. Only with `stream`."),
    acts("max_tokens", checks.Integer(1, INT32_MAX), "Longest output; by default what is left of the context, at most 8192."),
    TEMPERATURE,
    TOP_P,
    TOP_K,
    *PENALTIES,
    *ENGINE,
    acts("n", checks.Integer(1, 16), "Choices of each prompt."),
    acts("stop", checks.StopStrings(), "The output ends before the first of these."),
    acts("return_token_ids", checks.Bool(), "`token_ids` in each choice, and the prompt's as `prompt_token_ids`."),
    acts(
        "return_token_sha", checks.Bool(), "`token_sha` in each choice: SHA-256, in hex, of its token ids as little-endian int32."
    ),
    *STRUCTURE,
    *IDENTITY,
    METADATA,
    refused("store", _NOT_STORED, False),
    refused("best_of", "only `n` choices are made; none is dropped", 1),
)

CHAT = (
    *_OPENAI,
    acts(
        "messages",
        checks.FilledArray("message"),
        "Roles system, developer (the same), user, assistant, tool; content a string or text parts.",
        required=True,
    ),
    acts("max_completion_tokens", checks.Integer(1, INT32_MAX), "The newer name of `max_tokens`."),
    acts("logprobs", checks.Bool(), "Log probabilities of the output's tokens."),
    acts("top_logprobs", checks.Integer(0, 20), "And of so many likeliest ones at each place. Only with `logprobs`."),
    acts("tools", checks.Array(128, "function tool"), "Functions that the model may call."),
    acts(
        "tool_choice",
        checks.StringOrObject(),
        "`auto`: as the model likes; `none`; `required`: at least one call; or one function, or `allowed_tools`.",
    ),
    acts("parallel_tool_calls", checks.Bool(), "false: the reply ends with its first call."),
    *REASONING,
    *TEMPLATE,
    refused("functions", "use `tools`", []),
    refused("function_call", "use `tool_choice`", "none", "auto"),
    refused("prompt_logprobs", "logprobs of a prompt are served on /v1/completions, with `echo`", 0),
    refused("modalities", "only text is served", ["text"]),
    refused("audio", _NO_AUDIO),
    refused("prediction", "predicted outputs are not served"),
    refused("reasoning", "use `reasoning_effort`"),
    refused("verbosity", "the model does not take it; say it in a message", "medium"),
    refused("web_search_options", "nothing is fetched on a client's word"),
    refused("moderation", "replies are not moderated"),
    refused("prompt_cache_retention", "the prefix cache has one rule for all", "in_memory", "in-memory"),
    refused("add_special_tokens", "the template writes them", False),
    refused("echo", "the prompt is a list of messages; use /v1/completions", False),
)

COMPLETIONS = (
    *_OPENAI,
    acts("prompt", checks.Prompts(), "One or several prompts, as text or token ids; each has `n` choices.", required=True),
    acts(
        "logprobs",
        checks.Integer(0, 20),
        "Log probabilities of the output's tokens and of so many likeliest ones at each place; with `echo`, of the prompt's too.",
    ),
    acts("echo", checks.Bool(), "The prompt's text before the output's."),
    refused("prompt_logprobs", "use `logprobs` with `echo`", 0),
    refused("suffix", "inserting before a suffix is not served", ""),
    refused("add_special_tokens", "the model's own tokens are always added to text", True),
)

MESSAGES = (
    MODEL,
    STREAM,
    acts("max_tokens", checks.Integer(1, INT32_MAX), "Longest output.", required=True),
    acts(
        "messages",
        checks.FilledArray("message"),
        "Roles user and assistant; content a string or blocks: text, thinking, tool_use, tool_result.",
        required=True,
    ),
    acts("system", checks.TextOrArray(), "The system message, a string or text blocks."),
    acts("stop_sequences", checks.StopStrings(), "The output ends before the first of these."),
    acts("tools", checks.Array(128, "tool"), "Functions that the model may call: `name`, `description`, `input_schema`."),
    acts("tool_choice", checks.Object(), "`type`: `auto`, `any`, `none`, or `tool` with `name`; `disable_parallel_tool_use`."),
    acts(
        "thinking",
        checks.Object(),
        "`type`: `enabled` with `budget_tokens`, which bounds the reasoning of a model that reasons, `adaptive` or `disabled`.",
    ),
    acts("output_config", checks.Object(), "`format`: `json_schema` with `schema`: what the reply must be; `effort`."),
    TEMPERATURE,
    TOP_P,
    TOP_K,
    *ENGINE,
    *(field for field in REASONING if field.name == "chat_template_kwargs"),
    inert("metadata", checks.Object(), "`user_id`: a name of yours for the end user."),
    inert("service_tier", checks.OneOf(("auto", "standard_only")), "There is one tier; the reply says `standard`."),
    inert("cache_control", checks.Object(), "Prompts are matched by their tokens; no mark is needed."),
    refused("container", "code is not run"),
    refused("context_management", "messages are never dropped in silence"),
    refused("mcp_servers", "nothing is fetched on a client's word", []),
    refused("inference_geo", "replies are made here"),
)

COUNT_TOKENS = tuple(
    field
    for field in MESSAGES
    if field.name in ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control")
    or field.name in ("mcp_servers", "context_management", "chat_template_kwargs")
)

RESPONSES = (
    MODEL,
    STREAM,
    acts(
        "input",
        checks.TextOrArray(),
        "A user's message, or items: `message`, `function_call`, `function_call_output`, `reasoning`, `compaction`.",
        required=True,
    ),
    acts("instructions", checks.Text(2**20), "A system message before all others."),
    acts(
        "max_output_tokens", checks.Integer(1, INT32_MAX), "Longest output; by default what is left of the context, at most 8192."
    ),
    acts("tools", checks.Array(128, "function tool"), "Functions that the model may call."),
    acts(
        "tool_choice",
        checks.StringOrObject(),
        "`auto`: as the model likes; `none`; `required`: at least one call; or one function, or `allowed_tools`.",
    ),
    acts("parallel_tool_calls", checks.Bool(), "false: the reply ends with its first call."),
    acts("text", checks.Object(), "`format`: `text`, `json_object`, or `json_schema` with `schema`: what the reply must be."),
    acts("reasoning", checks.Object(), "`effort`: how much a model that reasons does."),
    acts("include", checks.Strings(16), "`message.output_text.logprobs`: log probabilities of the text's tokens."),
    acts("top_logprobs", checks.Integer(0, 20), "Log probabilities of the text's tokens, and of so many likeliest ones."),
    acts("stream_options", checks.Object(), "`include_obfuscation` must be false."),
    TEMPERATURE,
    TOP_P,
    TOP_K,
    *PENALTIES,
    *ENGINE,
    *(field for field in REASONING if field.name != "reasoning_effort"),
    *IDENTITY,
    METADATA,
    inert("store", checks.OnlyFalse(), "Replies are not stored; the reply says `false`."),
    inert("max_tool_calls", checks.Integer(1, INT32_MAX), "Bounds the tools that a server runs; none are run here."),
    inert("truncation", checks.OneOf(("disabled",)), "Nothing is cut in silence."),
    inert("background", checks.OnlyFalse(), "A reply is made while its client waits."),
    refused("previous_response_id", "replies are not stored; send the whole conversation in `input`"),
    refused("conversation", "conversations are not stored; send all of it in `input`"),
    refused("prompt", "prompts are not stored; send the text"),
    refused("context_management", "items are never dropped in silence", []),
    refused("moderation", "replies are not moderated"),
    refused("prompt_cache_retention", "the prefix cache has one rule for all", "in_memory", "in-memory"),
)

COMPACT = (
    MODEL,
    acts("input", checks.TextOrArray(), "The conversation, as in /v1/responses.", required=True),
    acts("instructions", checks.Text(2**20), "A system message before all others; it is not part of what comes back."),
    *(field for field in ENGINE if field.name in ("priority", "cache_salt")),
    *(field for field in IDENTITY if field.name in ("prompt_cache_key", "service_tier")),
    refused("previous_response_id", "replies are not stored; send the whole conversation in `input`"),
    refused("prompt_cache_retention", "the prefix cache has one rule for all", "in_memory", "in-memory"),
    refused("prompt_cache_options", "the prefix cache has one rule for all"),
    refused("image", "the model reads text only"),
)

EMBEDDINGS = (
    MODEL,
    acts("input", checks.Prompts(), "What is embedded: at most 2048 prompts, each within the model's context.", required=True),
    acts("encoding_format", checks.OneOf(("float", "base64")), "`base64`: vectors as float32 numbers, little-endian."),
    acts(
        "dimensions",
        checks.Integer(1, INT32_MAX),
        "So many numbers of each vector, at length 1 again: for models that were trained to be shortened.",
    ),
    *(field for field in ENGINE if field.name == "priority"),
    USER,
    refused("truncate_prompt_tokens", "prompts are never cut in silence"),
)

TOKENIZE = (
    acts("model", checks.Text(256, 1), "A name that /v1/models lists; it may be left out where one model is served."),
    acts("prompt", checks.Text(2**23), "The text."),
    acts("content", checks.Text(2**23), "Another name of `prompt`."),
    acts("messages", checks.FilledArray("message"), "Messages, written by the model's chat template, instead of a text."),
    acts("tools", checks.Array(128, "function tool"), "With `messages`: functions that are offered."),
    acts("chat_template_kwargs", checks.Object(), "With `messages`: variables of the template."),
    acts("add_special_tokens", checks.Bool(), "The model's own first token before the text; on for `prompt`, off for `content`."),
    acts("add_special", checks.Bool(), "Another name of `add_special_tokens`."),
    acts("parse_special", checks.Bool(), "false: control tokens spelled in the text are ordinary text."),
    acts("return_token_strs", checks.Bool(), "`token_strs`: each token's text."),
    acts("with_pieces", checks.Bool(), "Each of `tokens` is an object with `id` and `piece`, its text or its bytes."),
    refused("add_generation_prompt", "a reply always starts a new message", True),
)

DETOKENIZE = (
    acts("model", checks.Text(256, 1), "A name that /v1/models lists; it may be left out where one model is served."),
    acts("tokens", checks.TokenIds(2**20), "Token ids.", required=True),
)

ALL: dict[str, tuple[Field, ...]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/responses/compact": COMPACT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
    "/v1/embeddings": EMBEDDINGS,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
