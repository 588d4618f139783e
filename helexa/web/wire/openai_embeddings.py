"""/v1/embeddings: a body to prompts, vectors to a list of `embedding` objects. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helexa.errors import RequestError
from helexa.web.request import Prompt
from helexa.web.wire import fields, tables
from helexa.web.wire.openai_completions import parse_prompts
from helexa.web.wire.reply import Document
from ipc.messages import Priority

MOST_INPUTS = 2048


@dataclass(frozen=True)
class EmbeddingsRequest:
    """`as_base64`: vectors as their bytes; `dimensions` None: all of them."""

    model: str
    prompts: list[Prompt]
    as_base64: bool
    dimensions: int | None
    priority: Priority


def parse(body: Mapping[str, Any]) -> EmbeddingsRequest:
    values = fields.parse(body, tables.EMBEDDINGS)
    return EmbeddingsRequest(
        model=values["model"],
        prompts=parse_prompts(values["input"], "input", MOST_INPUTS),
        as_base64=values.get("encoding_format") == "base64",
        dimensions=values.get("dimensions"),
        priority=values.get("priority", "interactive"),
    )


def shortened(vectors: Sequence[NDArray[np.float32]], dimensions: int | None) -> list[NDArray[np.float32]]:
    """The first `dimensions` numbers of each, at length 1 again. Raises RequestError where there are fewer."""
    if dimensions is None:
        return list(vectors)
    short = [vector[:dimensions] for vector in vectors]
    if any(len(vector) < dimensions for vector in short):
        most = min(len(vector) for vector in vectors)
        raise RequestError("invalid_value", f"`dimensions` must be at most {most}, which is what the model makes", "dimensions")
    return [vector / max(float(np.sqrt(np.add.reduce(vector * vector))), 1e-30) for vector in short]


def document(request: EmbeddingsRequest, model: str, vectors: Sequence[NDArray[np.float32]], tokens: int) -> Document:
    """`vectors` (E), one a prompt; `tokens` of all prompts together."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, request.as_base64)}
            for index, vector in enumerate(shortened(vectors, request.dimensions))
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _written(vector: NDArray[np.float32], as_base64: bool) -> str | list[float]:
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.astype(np.float64).tolist()
    return numbers
