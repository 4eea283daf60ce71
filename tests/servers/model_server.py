"""A strict model provider on loopback: Anthropic's Messages API and OpenAI's Chat Completions, streamed.

It refuses, in the providers' words, what they would refuse; it says what it is told to, or breaks off in the way
it is told to; and it keeps what it was asked. As a program it answers by rule:
`python -m tests.servers.model_server --port P [--chunks N --interval S]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from aiohttp import web
from multidict import CIMultiDict

from tests.servers import anthropic_rules, openai_rules
from tests.servers.model_replies import (
    Drop,
    HttpError,
    Malformed,
    Raw,
    Reply,
    Stall,
    StreamError,
    ToolCall,
    Truncate,
    Wire,
    error_body,
    frame,
    frames,
    whole_message,
)

Script: TypeAlias = "Iterable[Reply] | Callable[[Raw], Reply]"

_USE_TOOL = re.compile(r"use the tool ([a-zA-Z0-9_-]+)\s*(\{.*\})?", re.DOTALL)


@dataclass
class Recorded:
    """A request as it came. `closed` is set the moment the client's connection goes before the answer is
    complete, `done` when all of the answer was sent, `streaming` when its first event was. `peer` is the
    client's address, the same for requests over one connection."""

    wire: Wire
    path: str
    headers: Mapping[str, str]
    body: Raw
    peer: object = None
    refused: list[str] = field(default_factory=list)
    streaming: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ModelServer:
    """`async with ModelServer() as server:`. A script is a number of replies, then the default answer by rule;
    or a function of the request's JSON.

    `key`: the only key that is accepted (None: any); `models`: the ids that exist (None: all);
    `models_endpoint=False`: a server that has none, as many compatible ones.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        key: str | None = None,
        models: Collection[str] | None = None,
        models_endpoint: bool = True,
        port: int = 0,
    ) -> None:
        self.requests: list[Recorded] = []
        self._queue: deque[Reply] = deque(() if callable(script) else script)
        self._answer: Callable[[Raw], Reply] = script if callable(script) else by_rule
        self._key = key
        self._models = models
        self._models_endpoint = models_endpoint
        self._port = port
        self._arrived = asyncio.Condition()
        self._runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=0.2, access_log=None)

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/messages", self._ask_anthropic)
        app.router.add_post("/v1/chat/completions", self._ask_openai)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        return app

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The base URL for Anthropic's SDK."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's SDK."""
        return f"{self.url}/v1"

    def say(self, *replies: Reply) -> None:
        self._queue.extend(replies)

    async def arrived(self, number: int = 1) -> Recorded:
        """Waits until that many requests have come; returns that one."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def _model(self, request: web.Request) -> web.Response:
        wire: Wire = "anthropic" if "anthropic-version" in request.headers else "openai"
        model = request.match_info["model"]
        if not self._models_endpoint:
            return web.Response(status=404, text="404 page not found")
        if (refusal := self._refusal(wire, request.headers, model)) is not None:
            return refusal
        if wire == "anthropic":
            return web.json_response({"type": "model", "id": model, "display_name": model})
        return web.json_response({"id": model, "object": "model", "created": 1, "owned_by": "test"})

    def _refusal(self, wire: Wire, headers: Mapping[str, str], model: str) -> web.Response | None:
        key = headers.get("x-api-key") or headers.get("Authorization", "").removeprefix("Bearer ")
        if not key or (self._key is not None and key != self._key):
            words = "invalid x-api-key" if wire == "anthropic" else "Incorrect API key provided."
            return _error(wire, 401, words, None if wire == "anthropic" else "invalid_api_key")
        if self._models is not None and model not in self._models:
            if wire == "anthropic":
                return _error(wire, 404, f"model: {model}")
            words = f"The model `{model}` does not exist or you do not have access to it."
            return _error(wire, 404, words, "model_not_found")
        return None

    async def _ask_anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._ask(request, "anthropic")

    async def _ask_openai(self, request: web.Request) -> web.StreamResponse:
        return await self._ask(request, "openai")

    async def _ask(self, request: web.Request, wire: Wire) -> web.StreamResponse:
        body: Raw = await request.json()
        rules = anthropic_rules if wire == "anthropic" else openai_rules
        peer = request.transport.get_extra_info("peername") if request.transport else None
        recorded = Recorded(
            wire, request.path, CIMultiDict(request.headers), body, peer, rules.request_violations(body)
        )
        async with self._arrived:
            self.requests.append(recorded)
            self._arrived.notify_all()
        if (refusal := self._refusal(wire, request.headers, str(body.get("model")))) is not None:
            return refusal
        if recorded.refused:
            return _error(wire, 400, recorded.refused[0])
        reply = self._queue.popleft() if self._queue else self._answer(body)
        if isinstance(reply.fault, HttpError):
            return _http_error(wire, reply.fault)
        if not body.get("stream"):
            return web.json_response(whole_message(reply, wire))
        try:
            return await self._stream(request, recorded, reply)
        except (asyncio.CancelledError, ConnectionResetError):
            recorded.closed.set()
            raise

    async def _stream(self, request: web.Request, recorded: Recorded, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        fault = reply.fault
        for number, data in enumerate(frames(reply, recorded.wire)):
            if number in reply.gates:
                await reply.gates[number].wait()
            if fault is not None and not isinstance(fault, HttpError) and number == fault.after:
                if isinstance(fault, Truncate):
                    break
                await _break(fault, request, response, recorded)
            elif number and reply.interval:
                await asyncio.sleep(reply.interval)
            await response.write(data)
            recorded.streaming.set()
        await response.write_eof()
        recorded.done.set()
        return response


async def _break(
    fault: Stall | Drop | Malformed | StreamError,
    request: web.Request,
    response: web.StreamResponse,
    recorded: Recorded,
) -> None:
    match fault:
        case Stall():
            await asyncio.Event().wait()
        case Drop(hard=hard):
            assert request.transport is not None
            if hard:
                request.transport.abort()
            else:
                request.transport.close()
            await asyncio.Event().wait()  # until the loss of the connection cancels the handler
        case Malformed(data=data):
            event = "event: content_block_delta\n" if recorded.wire == "anthropic" else ""
            await response.write(f"{event}data: {data}\n\n".encode(errors="surrogateescape"))
        case StreamError(kind=kind, message=message):
            await response.write(frame(error_body(recorded.wire, 500, message, kind), recorded.wire))


def _error(wire: Wire, status: int, message: str, kind: str | None = None) -> web.Response:
    return web.json_response(error_body(wire, status, message, kind), status=status)


def _http_error(wire: Wire, fault: HttpError) -> web.Response:
    body = fault.body or json.dumps(error_body(wire, fault.status, fault.message, fault.kind))
    return web.Response(status=fault.status, text=body, content_type="application/json", headers=fault.headers)


def by_rule(body: Raw) -> Reply:
    """The default: calls the tool that the user asks for ("use the tool NAME {json}"), then tells its result;
    anything else is said back, word by word."""
    if results := last_results(body):
        return Reply(text=f"The tool said: {' '.join(results)}")
    text = last_user_text(body)
    if (wanted := _USE_TOOL.search(text)) is not None and body.get("tools"):
        arguments: dict[str, object] = json.loads(wanted[2] or "{}")
        return Reply(calls=[ToolCall(wanted[1], arguments)])
    return Reply(text=text)


def last_user_text(body: Raw) -> str:
    """What the user said last, in a request of either kind."""
    for message in reversed(body["messages"]):
        if message["role"] == "user" and (text := _text(message["content"])):
            return text
    return ""


def last_results(body: Raw) -> list[str]:
    """The texts of the tool results that stand at the end of a request of either kind."""
    if body["messages"][-1]["role"] == "tool":
        results: list[str] = []
        for message in reversed(body["messages"]):
            if message["role"] != "tool":
                break
            results.insert(0, _text(message["content"]))
        return results
    content = body["messages"][-1]["content"]
    blocks = content if isinstance(content, list) else []
    return [_text(block.get("content", "")) for block in blocks if block.get("type") == "tool_result"]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content or () if part.get("type") == "text")


def _paced(chunks: int | None, interval: float) -> Callable[[Raw], Reply]:
    """The default answer at a given pace; text is made `chunks` words long by saying it again and again."""

    def answer(body: Raw) -> Reply:
        reply = by_rule(body)
        texts = reply.texts()
        if chunks is not None and texts:
            said = [f" {text.strip()}" for text in texts]
            texts = (said * (chunks // len(said) + 1))[:chunks]
        return Reply(text=texts, calls=reply.calls, interval=interval)

    return answer


async def _serve(port: int, chunks: int | None, interval: float) -> None:
    async with ModelServer(_paced(chunks, interval), port=port) as server:
        print(server.url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--interval", type=float, default=0, help="seconds between two events")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.port, options.chunks, options.interval))
