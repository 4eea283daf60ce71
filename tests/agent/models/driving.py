"""Driving a model adapter against a server on loopback."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import groupby

from agent.events import TextDelta, ThinkingDelta
from agent.messages import Block, JsonObject, Message, user_message
from agent.models.anthropic import AnthropicModel
from agent.models.openai import OpenAIModel
from agent.ports import ModelAnswer, ModelRequest, ToolSpec
from tests.servers.model_replies import Wire
from tests.servers.model_server import ModelServer

WIRES: tuple[Wire, ...] = ("anthropic", "openai")
SCHEMA: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = ToolSpec("weather", "The weather in a city.", SCHEMA)


@dataclass
class Heard:
    """What a stream gave: its deltas in their order, and the answer at its end."""

    deltas: list[TextDelta | ThinkingDelta] = field(default_factory=list)
    answers: list[ModelAnswer] = field(default_factory=list)

    @property
    def answer(self) -> ModelAnswer:
        (answer,) = self.answers
        return answer

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def thinking(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ThinkingDelta))

    def joined(self) -> list[TextDelta | ThinkingDelta]:
        """The deltas with neighbours of one kind as one: how many come in one read is the network's to say."""
        return [kind("".join(delta.text for delta in group)) for kind, group in groupby(self.deltas, type)]


async def hear(
    model: AnthropicModel | OpenAIModel, request: ModelRequest | None = None, heard: Heard | None = None
) -> Heard:
    """Reads a stream to its end; what was heard before a fault is in `heard`."""
    heard = heard if heard is not None else Heard()
    async with aclosing(model.stream(request or asking("hello"))) as stream:
        async for event in stream:
            if isinstance(event, ModelAnswer):
                heard.answers.append(event)
            else:
                assert not heard.answers
                heard.deltas.append(event)
    return heard


def asking(*content: Block | str, before: tuple[Message, ...] = (), tools: bool = False) -> ModelRequest:
    blocks: list[Block] = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return ModelRequest("Be brief.", [*before, user_message(*blocks)], [WEATHER] if tools else [])


def without_tools(request: ModelRequest) -> ModelRequest:
    return replace(request, allow_tools=False)


def model_for(
    wire: Wire, server: ModelServer, *, timeout: float = 20, model: str = "m-1", key: str = "secret-key"
) -> AnthropicModel | OpenAIModel:
    made: type[AnthropicModel | OpenAIModel] = AnthropicModel if wire == "anthropic" else OpenAIModel
    url = server.url if wire == "anthropic" else server.openai_url
    return made(name="p", model=model, api_key=key, base_url=url, max_output_tokens=512, timeout=timeout)
