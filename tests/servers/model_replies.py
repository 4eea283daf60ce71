"""What the model server is told to say, and how either provider says it: Reply in, stream events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

Raw = dict[str, Any]
Wire = Literal["anthropic", "openai"]

_ids = count(1)


@dataclass(frozen=True)
class ToolCall:
    """A call by the model. `arguments` is JSON text in the pieces in which it is streamed, or the object."""

    name: str
    arguments: Sequence[str] | Mapping[str, object] = field(default_factory=dict)
    id: str | None = None

    def pieces(self) -> list[str]:
        if isinstance(self.arguments, Mapping):
            text = json.dumps(self.arguments)
            return [text[: len(text) // 2], text[len(text) // 2 :]]
        return list(self.arguments)


@dataclass(frozen=True)
class HttpError:
    """Instead of an answer: a status with the provider's error body. `kind` is Anthropic's `type` or OpenAI's
    `code`; `body` replaces the whole body."""

    status: int
    message: str = "the server was told to fail"
    kind: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None


@dataclass(frozen=True)
class Stall:
    """After that many events nothing more comes, and the connection stays open until the client leaves."""

    after: int = 1


@dataclass(frozen=True)
class Drop:
    """After that many events the connection is gone: closed in the middle of the body, or (`hard`) reset."""

    after: int = 1
    hard: bool = False


@dataclass(frozen=True)
class Truncate:
    """After that many events the body ends cleanly, as if all had been said."""

    after: int = 1


@dataclass(frozen=True)
class Malformed:
    """After that many events comes this as data, and then the rest. As os.fsdecode has it, a lone surrogate
    stands for a byte that is no UTF-8."""

    after: int = 1
    data: str = '{"type": "content_block_delta", "ind'


@dataclass(frozen=True)
class StreamError:
    """After that many events comes an error inside the stream, in the provider's shape."""

    after: int = 1
    kind: str = "overloaded_error"
    message: str = "Overloaded"


Fault: TypeAlias = "HttpError | Stall | Drop | Truncate | Malformed | StreamError"


@dataclass(frozen=True)
class Reply:
    """One answer. A `text` in one string is streamed word by word; `stop` is the wire's own word, None for what
    fits. `input_tokens` is without what was read from or written to the cache (for OpenAI they are added).
    `events` replaces the rendered events (payloads; a string is sent as it is). Before event number n the
    server waits for `gates[n]`; `interval` is the time in seconds between two events."""

    text: str | Sequence[str] = ()
    thinking: Sequence[str] = ()
    signature: str = "sig=="
    redacted: str | None = None
    calls: Sequence[ToolCall] = ()
    stop: str | None = None
    input_tokens: int = 10
    output_tokens: int = 5
    cache_read: int = 0
    cache_write: int = 0
    fault: Fault | None = None
    events: Sequence[Raw | str] | None = None
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)
    interval: float = 0

    def texts(self) -> list[str]:
        if not isinstance(self.text, str):
            return list(self.text)
        words = self.text.split(" ") if self.text else []
        return [word if i == 0 else f" {word}" for i, word in enumerate(words)]


def frames(reply: Reply, wire: Wire) -> list[bytes]:
    """The events as they go over the line."""
    rendered = anthropic_events(reply) if wire == "anthropic" else openai_events(reply)
    return [frame(event, wire) for event in (reply.events if reply.events is not None else rendered)]


def frame(event: Raw | str, wire: Wire) -> bytes:
    if isinstance(event, str):
        return event.encode()
    data = f"data: {json.dumps(event)}\n\n"
    return (f"event: {event['type']}\n{data}" if wire == "anthropic" else data).encode()


def anthropic_events(reply: Reply) -> list[Raw | str]:
    """message_start, the blocks, message_delta with the stop reason, message_stop."""
    usage = {
        "input_tokens": reply.input_tokens,
        "cache_read_input_tokens": reply.cache_read,
        "cache_creation_input_tokens": reply.cache_write,
        "output_tokens": 1,
    }
    message = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[Raw | str] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    ]
    for index, (start, deltas) in enumerate(_anthropic_blocks(reply)):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": reply.output_tokens},
        }
    )
    return [*events, {"type": "message_stop"}]


def _anthropic_blocks(reply: Reply) -> Iterator[tuple[Raw, list[Raw]]]:
    if reply.thinking:
        deltas: list[Raw] = [{"type": "thinking_delta", "thinking": part} for part in reply.thinking]
        deltas.append({"type": "signature_delta", "signature": reply.signature})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if reply.redacted is not None:
        yield {"type": "redacted_thinking", "data": reply.redacted}, []
    if texts := reply.texts():
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in texts]
    for call in reply.calls:
        start = {"type": "tool_use", "id": _id(call, "toolu"), "name": call.name, "input": {}}
        yield start, [{"type": "input_json_delta", "partial_json": piece} for piece in call.pieces()]


def _id(call: ToolCall, prefix: str) -> str:
    return f"{prefix}_{next(_ids)}" if call.id is None else call.id


def openai_events(reply: Reply) -> list[Raw | str]:
    """Role, deltas, the finish reason, usage with no choices, [DONE]."""
    deltas: list[Raw] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": part} for part in reply.thinking]
    deltas += [{"content": text} for text in reply.texts()]
    for index, call in enumerate(reply.calls):
        start = {"index": index, "id": _id(call, "call"), "type": "function"}
        deltas.append({"tool_calls": [{**start, "function": {"name": call.name, "arguments": ""}}]})
        for piece in call.pieces():
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    stop = reply.stop or ("tool_calls" if reply.calls else "stop")
    return [
        *(openai_chunk(delta) for delta in deltas),
        openai_chunk({}, stop),
        {**openai_chunk(None), "usage": openai_usage(reply)},
        "data: [DONE]\n\n",
    ]


def openai_chunk(delta: Raw | None, finish_reason: str | None = None) -> Raw:
    """A chunk with one choice, or with none."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": None,
    }


def openai_usage(reply: Reply) -> Raw:
    prompt = reply.input_tokens + reply.cache_read + reply.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply.output_tokens,
        "total_tokens": prompt + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cache_read},
    }


def error_body(wire: Wire, status: int, message: str, kind: str | None = None) -> Raw:
    """An error as the provider writes it."""
    if wire == "anthropic":
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
        error = {"type": kind or kinds.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": "req_1"}
    kinds = dict.fromkeys((400, 401, 404), "invalid_request_error") | {429: "requests"}
    kind = kind or {429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": message, "type": kinds.get(status, "server_error"), "param": None, "code": kind}}


def whole_message(reply: Reply, wire: Wire) -> Raw:
    """The text of an answer that was not asked for as a stream."""
    text = "".join(reply.texts())
    if wire == "anthropic":
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": text}],
            "stop_reason": reply.stop or "end_turn",
            "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
        }
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": openai_usage(reply),
    }
