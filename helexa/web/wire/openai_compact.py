"""/v1/responses/compact: a conversation to a WireRequest for its summary, which becomes a `response.compaction`. Pure.

As OpenAI describes it, the reply lists the user's messages as they are, then one item for everything else: what to send as the
beginning of the next `input`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from helexa.errors import RequestError
from helexa.web.events import Usage
from helexa.web.request import ChatPrompt, Shape, WireRequest
from helexa.web.wire import compaction, fields, tables
from helexa.web.wire.openai_common import options
from helexa.web.wire.openai_responses import ResponseReply, refuse_chain
from helexa.web.wire.reply import Document, made_id
from helexa.web.wire.responses_prompt import parse_input, user_texts

SUMMARY_TOKENS = 1024  # longest summary


def parse(body: Mapping[str, Any]) -> WireRequest:
    refuse_chain(body)
    values = fields.parse(body, tables.COMPACT)
    messages = parse_input(values)
    compaction.ask(messages)
    wanted = dataclasses.replace(options(values, None), temperature=0.0, default_max_tokens=SUMMARY_TOKENS)
    return WireRequest(values["model"], [ChatPrompt(messages)], wanted, Shape(echoed={"kept": user_texts(values["input"])}))


class CompactReply(ResponseReply):
    """A Reply (reply.py) that is never streamed."""

    def document(self, usage: Usage) -> Document:
        summary = "".join(block.text for block in self._blocks.all if block.kind == "text").strip()
        if not summary:
            raise RequestError("generation_failed", "the model wrote no summary; send the conversation as it is")
        id = self._meta.id
        item = {"id": made_id("cmp_", id), "type": "compaction", "encrypted_content": compaction.packed(summary)}
        return {
            "id": id,
            "object": "response.compaction",
            "created_at": self._meta.created,
            "output": [*(self._user(text, number) for number, text in enumerate(self._meta.shape.echoed["kept"])), item],
            "usage": self._usage(usage),
        }

    def _user(self, text: str, number: int) -> Document:
        content = [{"type": "input_text", "text": text}]
        return {
            "id": made_id("msg_", self._meta.id, number),
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": content,
        }
