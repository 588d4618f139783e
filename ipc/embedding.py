"""A prompt's embedding, asked for in the words of Generate: an output of one token, which ends it, and with it the embedding."""

from __future__ import annotations

from ipc.messages import Generate, Priority, SamplingParams


def request(
    req_id: str,
    model: str,
    prompt_ids: list[int],
    pooling: str,
    *,
    key: str = "",
    priority: Priority = "interactive",
    instance: int = 0,
) -> Generate:
    """`pooling` as the model's ModelInfo has it; a mean wants every row of the prompt, as a scored prompt does."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0 if pooling == "mean" else -1)
    return Generate(req_id, model, prompt_ids, [[]], [0], params, credit=1, priority=priority, key=key, instance=instance)


def is_request(generate: Generate, pooling: str) -> bool:
    """Whether a Generate asks for what a model that makes embeddings can answer, in the words of `request`."""
    params = generate.params
    return params.max_tokens == 1 and len(generate.seeds) == 1 and (params.prompt_logprobs == 0) == (pooling == "mean")
