"""Domain errors, and the one table that maps a code to an HTTP status and an OpenAI error type.

Every error says what is wrong and what to do. `code` is the machine's word for it: it travels in the wire's envelope, in
`Refused` on the ZeroMQ wire, and in logs.
"""

from __future__ import annotations

from typing import NamedTuple


class Mapping(NamedTuple):
    status: int
    type: str


ERRORS: dict[str, Mapping] = {
    "invalid_json": Mapping(400, "invalid_request_error"),
    "invalid_value": Mapping(400, "invalid_request_error"),
    "unknown_parameter": Mapping(400, "invalid_request_error"),
    "unsupported_parameter": Mapping(400, "invalid_request_error"),
    "context_length_exceeded": Mapping(400, "invalid_request_error"),
    "empty_prompt": Mapping(400, "invalid_request_error"),
    "template_error": Mapping(422, "invalid_request_error"),
    "vision_unsupported": Mapping(400, "invalid_request_error"),
    "embeddings_unsupported": Mapping(400, "invalid_request_error"),
    "generation_unsupported": Mapping(400, "invalid_request_error"),
    "chained_conversation_not_supported": Mapping(400, "invalid_request_error"),
    "invalid_api_key": Mapping(401, "authentication_error"),
    "host_not_allowed": Mapping(403, "invalid_request_error"),
    "request_conflict": Mapping(409, "invalid_request_error"),
    "not_found": Mapping(404, "invalid_request_error"),
    "method_not_allowed": Mapping(405, "invalid_request_error"),
    "model_not_found": Mapping(404, "invalid_request_error"),
    "body_too_large": Mapping(413, "invalid_request_error"),
    "unsupported_media_type": Mapping(415, "invalid_request_error"),
    "too_many_requests": Mapping(429, "rate_limit_error"),
    "keys_unavailable": Mapping(503, "server_error"),
    "too_many_connections": Mapping(503, "server_error"),
    "queue_full": Mapping(503, "server_error"),
    "queue_timeout": Mapping(503, "server_error"),
    "model_loading": Mapping(503, "server_error"),
    "model_failed": Mapping(503, "server_error"),
    "no_worker": Mapping(503, "server_error"),
    "scheduler_down": Mapping(503, "server_error"),
    "shutting_down": Mapping(503, "server_error"),
    "generation_failed": Mapping(500, "server_error"),
    "internal_error": Mapping(500, "server_error"),
}


class HelexaError(Exception):
    """An error with a reader. `message` is one line: what is wrong, why, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(HelexaError):
    """helexa.toml or a flag is wrong; names the key."""


class StartError(HelexaError):
    """The service cannot start."""


class ModelSourceError(HelexaError):
    """A model name cannot be parsed, found or fetched."""


class ModelFileError(HelexaError):
    """A model file is damaged, hostile, or of a kind that is not served; names the file and the field.

    Names in a file may hold anything: in the message they begin no line, move no cursor, and take no more than MOST_CHARACTERS.
    """

    MOST_CHARACTERS = 1000

    def __init__(self, message: str) -> None:
        half = self.MOST_CHARACTERS // 2 - 3
        text = message if len(message) <= self.MOST_CHARACTERS else f"{message[:half]} ... {message[-half:]}"
        super().__init__("".join(item if item.isprintable() else ascii(item)[1:-1] for item in text))


class RequestError(HelexaError):
    """One request's error. `param` names the field of its body; `retry_after` is in seconds."""

    def __init__(self, code: str, message: str, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code if code in ERRORS else "internal_error"
        self.param = param
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return ERRORS[self.code].status

    @property
    def type(self) -> str:
        return ERRORS[self.code].type
