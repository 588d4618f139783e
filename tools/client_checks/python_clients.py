"""Drives a running service with client libraries, unchanged: `python_clients.py URL MODEL`. A line a client; exit 1 if any fails.

The model may be small: what it must do, as to call a tool, is forced by the request.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL, MODEL = sys.argv[1:3]
BASE = f"{URL}/v1"
os.environ.update(
    OPENAI_API_KEY="none",
    OPENAI_BASE_URL=BASE,
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENAI_AGENTS_DISABLE_TRACING="1",
    OTEL_SDK_DISABLED="true",
)
HI: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9}}, "required": ["days"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def litellm_chat() -> None:
    import litellm

    litellm.telemetry = False
    asked = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": "none", "messages": HI, "max_tokens": 16}
    assert litellm.completion(**asked).choices[0].message.content
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join((chunk.choices[0].delta.content or "") if chunk.choices else "" for chunk in chunks)
    called = litellm.completion(**{**asked, "max_tokens": 200}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"


def litellm_anthropic() -> None:
    import litellm

    asked = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none", "messages": HI, "max_tokens": 16}
    assert litellm.completion(**asked).choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))


def langchain() -> None:
    from langchain_openai import ChatOpenAI

    def get_weather(days: int) -> str:
        """The weather."""
        return "sunny"

    model = ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", max_retries=0, stream_usage=True, max_tokens=200)  # type: ignore[call-arg, arg-type]
    assert model.invoke("hi").content
    pieces = list(model.stream("hi"))
    assert "".join(str(piece.content) for piece in pieces) and any(piece.usage_metadata for piece in pieces)
    bound = model.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    assert bound.invoke("hi").tool_calls[0]["name"] == "get_weather"


def pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=BASE, api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(kind(MODEL, provider=provider), model_settings={"max_tokens": 64})
        assert agent.run_sync("hi").output
        assert agent.run_stream_sync("hi").get_output()


def instructor_tools() -> None:
    import instructor
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        days: int

    client = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key="none"), mode=instructor.Mode.TOOLS)
    made = client.chat.completions.create(
        model=MODEL, messages=HI, response_model=Weather, max_retries=0, parallel_tool_calls=False, max_tokens=400
    )
    assert isinstance(made, Weather)


def openai_agents() -> None:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner

    client = openai.AsyncOpenAI(base_url=BASE, api_key="none")
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        agent = Agent(name="a", instructions="Be short.", model=kind(model=MODEL, openai_client=client))
        assert Runner.run_sync(agent, "hi").final_output is not None


def llm_command() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fields = f"model_id: local, model_name: {MODEL}, api_base: '{BASE}', can_stream: true, supports_tools: true"
        (Path(folder) / "extra-openai-models.yaml").write_text(f"- {{{fields}}}\n")
        for extra in ([], ["--no-stream"]):
            command = [str(Path(sys.executable).parent / "llm"), "-m", "local", "hi", "-o", "max_tokens", "16", *extra]
            done = subprocess.run(
                command, env={**os.environ, "LLM_USER_PATH": folder}, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            assert done.returncode == 0 and done.stdout.strip(), done.stderr


CHECKS: list[Callable[[], None]] = [
    litellm_chat,
    litellm_anthropic,
    langchain,
    pydantic_ai,
    instructor_tools,
    openai_agents,
    llm_command,
]


def main() -> int:
    failed = 0
    for check in CHECKS:
        try:
            check()
            print(f"ok    {check.__name__}", flush=True)
        except Exception as error:  # a line for each client, whatever went wrong
            failed += 1
            print(f"FAIL  {check.__name__}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
