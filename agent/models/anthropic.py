"""The wire to Anthropic's Messages API, and to servers that speak it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import anthropic
import httpx2
from anthropic.types import (
    CacheControlEphemeralParam,
    MessageParam,
    TextBlockParam,
    ToolParam,
)

from agent.errors import StreamBroken
from agent.events import TextDelta, ThinkingDelta, Usage
from agent.messages import Block, JsonObject, Message, blocks_of, text_block
from agent.models._wire import CONNECTIONS, Delta, TextJoiner, Wire, count, read_stream, tool_input, unique_id
from agent.ports import BrokenInput, ModelAnswer, ModelEvent, ModelRequest, StopReason, ToolSpec

BASE_URL = "https://api.anthropic.com"
NO_MODELS_ENDPOINT = frozenset({404, 405, 501})

_CACHED: CacheControlEphemeralParam = {"type": "ephemeral"}
_CACHED_MESSAGES = 2
"""With system and tools these are the four cache breakpoints that a request may have."""

_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "overflow",
}
_USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicModel:
    """Implements agent.ports.Model. `base_url` is without /v1; `timeout` is in seconds, for connecting, for each
    read and so for the longest silence inside a stream (pings count as life)."""

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
        # Key and URL are given in any case: else the SDK takes them from the environment or a profile on disk.
        # It sends the key as a bearer token since 2.x; compatible servers know the API's older header.
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url or BASE_URL,
            default_headers={"X-Api-Key": api_key} if base_url else None,
            timeout=timeout,
            max_retries=0,
            http_client=anthropic.DefaultAioHttpClient(timeout=timeout, limits=CONNECTIONS),
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        answer = AnthropicAnswer()
        asked = self._client.messages.with_streaming_response.create(
            model=self.model,
            max_tokens=self.max_output_tokens,
            system=_system(request.system) if request.system else anthropic.omit,
            messages=cast("list[MessageParam]", with_cache_marks(request.messages)),
            tools=_tools(request.tools) if request.tools else anthropic.omit,
            tool_choice={"type": "none"} if request.tools and not request.allow_tools else anthropic.omit,
            stream=True,
        )
        async with asked as response:
            deltas = read_stream(
                response.iter_bytes(), answer, timeout=self._timeout, faults=(anthropic.APIError,)
            )
            async with aclosing(deltas):
                async for delta in deltas:
                    yield delta
        yield answer.result()

    async def check(self) -> None:
        """Asks for the model's description; of a server that has none, for an answer of one token.

        Raises anthropic.APIError.
        """
        try:
            found = await self._client.models.retrieve(self.model)
        except anthropic.APIStatusError as error:
            if error.status_code not in NO_MODELS_ENDPOINT:
                raise
        else:
            if found.id:
                return
        await self._client.messages.create(
            model=self.model, max_tokens=1, messages=[{"role": "user", "content": "Hi"}]
        )

    async def aclose(self) -> None:
        await self._client.close()


def with_cache_marks(messages: Sequence[Message]) -> list[Message]:
    """The messages with a cache breakpoint at the end of the last two of the user.

    The first of the two is where the last request ended, so all before it is read from cache, however many
    blocks the last step had. The messages given stay as they are; a plain string becomes a block in each of them
    alike, so that a message reads the same whether it is marked or not.
    """
    marked: list[Message] = [{"role": message["role"], "content": blocks_of(message)} for message in messages]
    left = _CACHED_MESSAGES
    for message in reversed(marked):
        if left and message["role"] == "user":
            message["content"] = _marked(blocks_of(message))
            left -= 1
    return marked


def _marked(blocks: Sequence[Block]) -> list[Block]:
    """The breakpoint goes to the last block that may have one: a blank text may not."""
    marked = list(blocks)
    for index in range(len(marked) - 1, -1, -1):
        block = marked[index]
        if block["type"] != "text" or block["text"].strip():
            marked[index] = cast("Block", {**block, "cache_control": _CACHED})
            break
    return marked


def _system(system: str) -> Iterable[TextBlockParam]:
    return [{"type": "text", "text": system, "cache_control": _CACHED}]


def _tools(tools: Sequence[ToolSpec]) -> list[ToolParam]:
    params: list[ToolParam] = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": cast("dict[str, object]", tool.input_schema),
        }
        for tool in tools
    ]
    params[-1]["cache_control"] = _CACHED
    return params


class _GrowingBlock:
    """A content block while its deltas arrive. `input` is set where the whole input came with the start."""

    __slots__ = ("data", "id", "input", "joiner", "kind", "name", "parts", "signature")

    def __init__(self, block: Wire) -> None:
        self.kind: str = block["type"]
        self.parts: list[str] = []
        self.joiner = TextJoiner()
        self.signature: str = block.get("signature") or ""
        self.data: str = block.get("data") or ""
        self.id: str = block.get("id") or ""
        self.name: str = block.get("name") or ""
        found = block.get("input")
        self.input: JsonObject = found if isinstance(found, dict) else {}

    def add(self, text: str) -> str:
        text = self.joiner.feed(text)
        self.parts.append(text)
        return text

    def text(self) -> str:
        return "".join(self.parts) + self.joiner.end()


class AnthropicAnswer:
    """The answer that a stream's raw events make up. No I/O; a `_wire.Collector`."""

    def __init__(self) -> None:
        self._blocks: dict[int, _GrowingBlock] = {}
        self._stop_reason: str | None = None
        self._usage = dict.fromkeys(_USAGE_FIELDS, 0)

    @property
    def stopped(self) -> bool:
        return self._stop_reason is not None

    def feed(self, event: Wire) -> Sequence[Delta]:
        match event["type"]:
            case "content_block_delta":
                return self._grow(event["index"], event["delta"])
            case "content_block_start":
                return self._start(event["index"], event["content_block"])
            case "message_start":
                self._count(event["message"].get("usage"))
            case "message_delta":
                self._count(event.get("usage"))
                self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
            case "error":
                raise _error(event)
        return ()

    def _start(self, index: int, content: Wire) -> Sequence[Delta]:
        block = self._blocks[index] = _GrowingBlock(content)
        if block.kind == "text" and content.get("text"):
            return (TextDelta(block.add(content["text"])),)
        if block.kind == "thinking" and content.get("thinking"):
            return (ThinkingDelta(block.add(content["thinking"])),)
        return ()

    def _grow(self, index: int, delta: Wire) -> Sequence[Delta]:
        block = self._blocks.get(index)
        if block is None:
            raise StreamBroken(f"a delta for block {index}, which was not started")
        match delta["type"]:
            case "text_delta":
                text = block.add(delta["text"])
                return (TextDelta(text),) if text else ()
            case "thinking_delta":
                text = block.add(delta["thinking"])
                return (ThinkingDelta(text),) if text else ()
            case "input_json_delta":
                block.add(delta["partial_json"])
            case "signature_delta":
                block.signature += delta["signature"]
        return ()

    def _count(self, usage: Wire | None) -> None:
        """Usage comes twice and grows; some servers leave the input out of the first or of the second."""
        if usage is None:
            return
        for name in _USAGE_FIELDS:
            self._usage[name] = max(self._usage[name], count(usage.get(name)))

    def result(self) -> ModelAnswer:
        """To be called when `stopped`."""
        stop = _STOP_REASONS.get(self._stop_reason or "", "end_turn")
        content: list[Block] = []
        broken: dict[str, BrokenInput] = {}
        taken: set[str] = set()
        last = next(reversed(self._blocks.values()), None)
        for block in self._blocks.values():
            if block.kind == "tool_use":
                call_id = unique_id(block.id, taken)
                found = _input(block, cut_off=stop == "max_tokens" and block is last)
                if isinstance(found, BrokenInput):
                    broken[call_id] = found
                    found = {}
                content.append({"type": "tool_use", "id": call_id, "name": block.name, "input": found})
            elif (made := _made(block)) is not None:
                content.append(made)
        return ModelAnswer(content, "tool_use" if taken and stop == "end_turn" else stop, self._reported(), broken)

    def _reported(self) -> Usage:
        own, output, read, written = (self._usage[name] for name in _USAGE_FIELDS)
        return Usage(own + read + written, output, read, written)


def _error(event: Wire) -> anthropic.APIStatusError:
    """An error inside a stream as the SDK raises it: with the status 200 that the stream began with."""
    response = httpx2.Response(200, request=httpx2.Request("POST", "/v1/messages"))
    return anthropic.APIStatusError(str(event), response=response, body=event)


def _input(block: _GrowingBlock, *, cut_off: bool) -> JsonObject | BrokenInput:
    return block.input or tool_input(block.text(), cut_off=cut_off)


def _made(block: _GrowingBlock) -> Block | None:
    """A finished block other than a tool_use. Empty text is left out: the API refuses to get it back."""
    match block.kind:
        case "text":
            text = block.text()
            return text_block(text) if text else None
        case "thinking":
            return {"type": "thinking", "thinking": block.text(), "signature": block.signature}
        case "redacted_thinking":
            return {"type": "redacted_thinking", "data": block.data}
    return None
