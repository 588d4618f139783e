"""What clients see of many streams at once, over HTTP or ZeroMQ, disturbed or not: equal transcripts are equal replies."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service import DEADLINE_S, Service

from helexa.client import Client
from helexa.errors import RequestError

STREAMS = 16
Body = dict[str, object]


def bodies(count: int = STREAMS, tokens: int = 200, **fields: object) -> list[Body]:
    """Ragged completions, every other one greedy."""
    return [
        {
            "model": "tiny",
            "prompt": f"stream number {index}. {'x' * (index * 11)}",
            "max_tokens": tokens + 7 * index,
            "temperature": 0 if index % 2 else 0.9,
            "seed": index,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **fields,
        }
        for index in range(count)
    ]


@dataclass
class Transcript:
    """What one client saw; texts, ids and ends by choice."""

    texts: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    usage: dict | None = None
    error: object = None
    done: bool = False

    @property
    def ids(self) -> list[int]:
        return self.tokens.get(0, [])

    @property
    def finish(self) -> str | None:
        return self.finishes.get(0)

    @property
    def whole(self) -> bool:
        return self.done and self.error is None


def stream(port: int, body: Body, on_event: Callable[[], None] = lambda: None) -> Transcript:
    """One streamed completion; a connection that breaks is an error of the transcript."""
    seen = Transcript()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            seen.error = (response.status, json.loads(response.read())["error"])
            return seen
        for raw in response:
            _read_line(seen, raw.decode().strip())
            on_event()
    except (http.client.HTTPException, OSError) as error:
        seen.error = error
    finally:
        connection.close()
    return seen


def _read_line(seen: Transcript, line: str) -> None:
    if line == "data: [DONE]":
        seen.done = True
    elif line.startswith("data: "):
        chunk = json.loads(line.removeprefix("data: "))
        seen.error = chunk.get("error") or seen.error
        seen.usage = chunk.get("usage") or seen.usage
        (seen.usage or {}).pop("prompt_tokens_details", None)  # what was cached tells of the past, not of the reply
        for choice in chunk.get("choices", []):
            index = choice["index"]
            seen.texts[index] = seen.texts.get(index, "") + choice["text"]
            seen.tokens.setdefault(index, []).extend(choice.get("token_ids") or [])
            if choice["finish_reason"]:
                seen.finishes[index] = choice["finish_reason"]


class Alarm:
    """Goes off once, when so many events have come in all."""

    def __init__(self, after: int) -> None:
        self._left = after
        self._lock = threading.Lock()
        self.went_off = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self.went_off.set()


def run_http(
    service: Service, asked: Sequence[Body], disturb: Callable[[], None] | None = None, after_events: int = 2 * STREAMS
) -> list[Transcript]:
    """All streams at once; `disturb` is called once, when that many lines have come in all."""
    results: list[Transcript | None] = [None] * len(asked)
    alarm = Alarm(after_events)

    def run(index: int) -> None:
        results[index] = stream(service.port, asked[index], alarm)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(asked))]
    for thread in threads:
        thread.start()
    if disturb is not None:
        assert alarm.went_off.wait(DEADLINE_S)
        assert any(thread.is_alive() for thread in threads), "the disturbance comes too late"
        disturb()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert None not in results, "a stream hangs"
    return results  # type: ignore[return-value]


def run_zmq(
    service: Service, asked: Sequence[Body], disturb: Callable[[], None] | None = None, after_events: int = 2 * STREAMS
) -> list[Transcript]:
    """The same requests through the ZeroMQ client, from one connection; prompts are bytes + 3, the tiny model's ids."""
    with Client(service.run_dir, credit=32) as client:  # the engine cannot be done before the client has seen anything
        generations = [client.submit(_ids(body["prompt"]), **_options(body)) for body in asked]
        taken, refused = 0, {}
        while not all(generation.ended for generation in generations):
            news = client.poll(DEADLINE_S)
            assert news, "the streams hang"
            for generation in news:
                before = taken
                try:
                    taken += len(generation.take())
                except RequestError as error:
                    refused[generation.req_id] = error.code
                if disturb is not None and before < after_events <= taken:
                    assert not all(other.ended for other in generations), "the disturbance comes too late"
                    disturb()
        results = []
        for generation in generations:
            finish = generation.finish
            seen = Transcript(tokens={0: generation.ids()}, error=refused.get(generation.req_id))
            if finish is not None:
                seen.finishes, seen.done = {0: finish.reason}, True
                seen.error = finish.error or seen.error
                seen.usage = {"prompt_tokens": finish.prompt_tokens, "completion_tokens": finish.output_tokens}
            results.append(seen)
        return results


def _ids(prompt: object) -> list[int]:
    return [3 + byte for byte in prompt.encode()] if isinstance(prompt, str) else list(prompt)  # type: ignore[call-overload]


def _options(body: Body) -> dict[str, object]:
    names = (
        "model",
        "max_tokens",
        "temperature",
        "seed",
        "ignore_eos",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    )
    return {name: body[name] for name in names if name in body}
