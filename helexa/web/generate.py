"""A reply being made: engine streams in, events out, for every choice of every prompt of one HTTP request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from helexa.errors import RequestError
from helexa.web.choice_output import ChoiceOutput
from helexa.web.engine_client import ADMISSION_WAIT_S, EngineClient, Stream, scheduler_down
from helexa.web.events import Event, Finished, Usage
from helexa.web.model_text import ModelText
from helexa.web.request import GenerationRequest
from helexa.web.streams import Update
from helexa.web.tracing import Times
from ipc.messages import Finish, Generate


class ClientGone(Exception):
    """The client closed its connection; nobody reads what would be answered."""


@dataclass
class _Prompt:
    """One prompt's stream. `consumed` counts each choice's tokens that went out as events."""

    stream: Stream
    first_choice: int
    outputs: list[ChoiceOutput]
    consumed: list[int] = field(default_factory=list)


class Generation:
    """`req_id` names the reply; each prompt is an engine request: `req_id`, `req_id-1`, ... Choice = prompt * n + i."""

    def __init__(
        self,
        engine: EngineClient,
        req_id: str,
        requests: Sequence[GenerationRequest],
        text: ModelText,
        credit: int,
        key: str = "",
    ) -> None:
        self._engine = engine
        self._req_id = req_id
        self._requests = requests
        self._text = text
        self._credit = credit
        self._key = key
        self._news = asyncio.Event()
        self._prompts: list[_Prompt] = []
        self._finished: dict[int, Finished] = {}
        self._gone = False
        self.times = Times()

    async def start(self) -> None:
        """Submits, and waits until no prompt can be refused any more: in the queue it may still be told to come again later, with
        a status of its own. Raises RequestError when one is refused, ClientGone."""
        self.times.submitted = time.time_ns()
        for number, request in enumerate(self._requests):
            self._prompts.append(self._submit(number, request))
        deadline = asyncio.get_running_loop().time() + ADMISSION_WAIT_S
        try:
            async with asyncio.timeout_at(deadline):
                while not all(prompt.stream.accepted for prompt in self._prompts):
                    await self._news.wait()
                    self._news.clear()
                    self._check()
        except TimeoutError:
            raise scheduler_down() from None
        while not all(prompt.stream.firm for prompt in self._prompts):
            await self._news.wait()
            self._news.clear()
            self._check()
        self.times.seated = time.time_ns()
        self._news.set()  # output may have come with the answers

    async def events(self, silence_s: float | None = None, first_silence_s: float | None = None) -> AsyncIterator[list[Event]]:
        """Batches of events until every choice has ended; an empty batch after each `silence_s` seconds without any, and after
        `first_silence_s` if the first batch is not there by then.

        Asking for the next batch says that the last one was delivered: only then may the engine run further ahead.
        Raises RequestError when a choice failed, ClientGone.
        """
        expected = sum(len(prompt.outputs) for prompt in self._prompts)
        wait_s = first_silence_s or silence_s
        while len(self._finished) < expected:
            try:
                await asyncio.wait_for(self._news.wait(), wait_s)
            except TimeoutError:
                wait_s = silence_s
                yield []
                continue
            self._news.clear()
            self._check()
            batch = [
                event for prompt in self._prompts for update in prompt.stream.read() for event in self._advance(prompt, update)
            ]
            if batch:
                wait_s = silence_s
                self.times.first_output = self.times.first_output or time.time_ns()
                yield batch
            self._extend_credit()

    def usage(self) -> Usage:
        """Of the whole reply, once every choice has ended. A prompt counts once."""
        firsts = [self._finished[prompt.first_choice] for prompt in self._prompts]
        return Usage(
            prompt_tokens=sum(first.prompt_tokens for first in firsts),
            cached_tokens=sum(first.cached_tokens for first in firsts),
            completion_tokens=sum(len(finished.ids) for finished in self._finished.values()),
            completed_at=int(time.time()),
        )

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have ended."""
        return [self._finished[choice].reason for choice in sorted(self._finished)]

    def client_gone(self) -> None:
        """The connection was lost: the engine is told at once, and whoever waits here gets ClientGone."""
        self._gone = True
        self.close()
        self._news.set()

    def close(self) -> None:
        """Cancels whatever is not finished; safe to call again."""
        for prompt in self._prompts:
            prompt.stream.close()

    def _submit(self, number: int, request: GenerationRequest) -> _Prompt:
        generate = Generate(
            req_id=f"{self._req_id}-{number}" if number else self._req_id,
            model=request.model,
            prompt_ids=request.prompt_ids,
            output_ids=[[] for _ in request.seeds],
            seeds=request.seeds,
            params=request.params,
            credit=self._credit,
            priority=request.priority,
            key=self._key,
            cache_salt=request.cache_salt,
            instance=request.instance,
        )
        first = number * request.n
        outputs = [ChoiceOutput(first + i, request, self._text.tokenizer.token_bytes) for i in range(request.n)]
        return _Prompt(self._engine.submit(generate, self._news), first, outputs, [0] * request.n)

    def _check(self) -> None:
        if self._gone:
            raise ClientGone
        for prompt in self._prompts:
            refusal = prompt.stream.refusal
            if refusal is not None:
                raise refusal

    def _advance(self, prompt: _Prompt, update: Update) -> list[Event]:
        failure = update.finish and failure_of(update.finish)
        if failure:
            raise failure
        advance = prompt.outputs[update.choice].advance(update)
        prompt.consumed[update.choice] = update.start + len(update.ids)
        if advance.keep is not None:
            prompt.stream.stop(update.choice, advance.keep)
        self._finished |= {event.choice: event for event in advance.events if isinstance(event, Finished)}
        return advance.events

    def _extend_credit(self) -> None:
        for prompt in self._prompts:
            for choice, count in enumerate(prompt.consumed):
                prompt.stream.consumed(choice, count)


def failure_of(finish: Finish) -> RequestError | None:
    """An end that is not a reply: the row failed, or the request was ended from outside."""
    if finish.reason in ("stop", "length"):
        return None
    ended = "generation failed" if finish.reason == "error" else "the request was ended by the server"
    return RequestError("generation_failed", f"{ended}: {finish.error or 'no reason given'}")
