"""The wire to OpenAI's Chat Completions API, and to the many servers that speak it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast
from urllib.parse import urlsplit

import openai
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)

from agent.models._openai_answer import OpenAIAnswer
from agent.models._openai_messages import ReasoningField, to_openai_messages
from agent.models._wire import CONNECTIONS, read_stream
from agent.ports import ModelEvent, ModelRequest, ToolSpec

__all__ = ["OpenAIModel", "to_openai_messages"]

BASE_URL = "https://api.openai.com/v1"
NO_MODELS_ENDPOINT = frozenset({404, 405, 501})


class OpenAIModel:
    """Implements agent.ports.Model. `base_url` is with /v1; `timeout` is in seconds, for connecting, for each
    read and so for the longest silence inside a stream."""

    def __init__(
        self,
        *,
        name: str,
        model: str,
        api_key: str,
        base_url: str | None = None,
        max_output_tokens: int = 4096,
        context_window: int | None = None,
        timeout: float = 120,
    ) -> None:
        self.name = name
        self.model = model
        self.max_output_tokens = max_output_tokens
        self.context_window = context_window
        self._timeout = timeout
        self._takes_completion_tokens = takes_completion_tokens(base_url or BASE_URL)
        self._reasoning_field: ReasoningField = "reasoning_content"
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=base_url or BASE_URL,
            timeout=timeout,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(timeout=timeout, limits=CONNECTIONS),
        )
        # The SDK takes these from the environment; a key of ours with an organization of theirs is refused.
        self._client.organization = self._client.project = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        answer = OpenAIAnswer()
        messages = to_openai_messages(request.system, request.messages, reasoning_field=self._reasoning_field)
        modern, limit = self._takes_completion_tokens, self.max_output_tokens
        asked = self._client.chat.completions.with_streaming_response.create(
            model=self.model,
            messages=cast("list[ChatCompletionMessageParam]", messages),
            max_completion_tokens=limit if modern else openai.omit,
            max_tokens=openai.omit if modern else limit,
            tools=_tools(request.tools) if request.tools else openai.omit,
            tool_choice="none" if request.tools and not request.allow_tools else openai.omit,
            stream=True,
            stream_options={"include_usage": True},
        )
        async with asked as response:
            deltas = read_stream(response.iter_bytes(), answer, timeout=self._timeout, faults=(openai.APIError,))
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        self._reasoning_field = answer.reasoning_field or self._reasoning_field
        yield answer.result()

    async def check(self) -> None:
        """Asks for the model's description; of a server that has none, for an answer of one token.

        Raises openai.APIError.
        """
        try:
            found = await self._client.models.retrieve(self.model)
        except openai.APIStatusError as error:
            if error.status_code not in NO_MODELS_ENDPOINT:
                raise
        else:
            if found.id:
                return
        await self._client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "Hi"}],
            max_completion_tokens=1 if self._takes_completion_tokens else openai.omit,
            max_tokens=openai.omit if self._takes_completion_tokens else 1,
        )

    async def aclose(self) -> None:
        await self._client.close()


def takes_completion_tokens(base_url: str) -> bool:
    """Whether the server calls the output limit `max_completion_tokens`: OpenAI and Azure, whose reasoning
    models refuse the old name; others know only that."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith(".openai.azure.com")


def _tools(tools: Sequence[ToolSpec]) -> list[ChatCompletionFunctionToolParam]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": cast("dict[str, object]", tool.input_schema),
            },
        }
        for tool in tools
    ]
