"""Slack's side of the wire, small: Web API and Socket Mode on 127.0.0.1, strict where the real one is.

Tests in this process use `SlackServer` directly; for others `python -m tests.servers.slack_server --port P`
adds POST /control/say, /control/slash, /control/press, /control/fail and GET /control/messages, /control/calls,
/control/envelopes. The Web API is at /api/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from tests.servers.slack_workspace import (
    APP_TOKEN,
    BOT_ID,
    BOT_TOKEN,
    BOT_USER,
    SCOPES,
    TEAM,
    Body,
    Refused,
    Workspace,
    person,
)

__all__ = ["APP_TOKEN", "BOT_ID", "BOT_TOKEN", "BOT_USER", "SCOPES", "TEAM", "SlackServer", "Workspace", "person"]


@dataclass
class Call:
    method: str
    body: Body
    token: str


@dataclass
class Fault:
    """What the next calls of a method meet. `after` does the call first: it worked, and nobody hears of it."""

    error: str = ""
    status: int = 200
    retry_after: str | None = None
    times: int = 1
    gate: asyncio.Event | None = None
    after: bool = False
    skip: int = 0  # calls that are let through before
    drop: bool = False  # the connection is cut instead of an answer
    needed: str = ""


@dataclass
class Envelope:
    id: str
    type: str
    payload: Body
    sent: int = 0
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    answer: object = None


class SlackServer:
    """State and rules. `ack_within` is in seconds: an envelope not acknowledged in it is sent again, thrice."""

    def __init__(self, *, ack_within: float = 3.0, streaming: bool = True, status: bool = True) -> None:
        self.ack_within = ack_within
        self.scopes: str | None = SCOPES
        self.slack = Workspace(streaming=streaming, status=status)
        self.responses: list[Body] = []
        self.calls: list[Call] = []
        self.called = asyncio.Condition()
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.envelopes: dict[str, Envelope] = {}
        self.connections: list[web.WebSocketResponse] = []
        self.connected = asyncio.Event()
        self.num_connections = 1
        self.refuse_tickets = 0
        self.spoilt: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    # ---- life

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=50_000_000)
        app.router.add_route("*", "/api/{method}", self._api)
        app.router.add_get("/socket", self._socket)
        app.router.add_post("/upload/{file}", self._upload)
        app.router.add_get("/file/{file}", self._download)
        app.router.add_post("/respond", self._respond)
        for path, handler in self._control().items():
            app.router.add_route("*", path, handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.slack.origin = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ws in list(self.connections):
            await ws.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> SlackServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/"

    # ---- people

    async def say(self, text: str, *, user: str = "U1", channel: str = "D1", **more: object) -> list[Envelope]:
        """A person writes. A mention in a channel arrives as `message` and as `app_mention`, as with Slack."""
        event: Body = {
            "type": "message",
            "user": user,
            "text": text,
            "channel": channel,
            "ts": self.slack.next_ts(),
        }
        event |= {"channel_type": "im" if channel.startswith("D") else "channel", "team": TEAM, **more}
        self.slack.messages[channel].append(dict(event))
        events = [event]
        if f"<@{BOT_USER}>" in text and not channel.startswith("D"):
            events.append({key: event[key] for key in event if key != "channel_type"} | {"type": "app_mention"})
        return [self.event(item) for item in events]

    def event(self, event: Body, **more: object) -> Envelope:
        payload = {
            "type": "event_callback",
            "team_id": TEAM,
            "event_id": f"Ev{self.slack.next_id()}",
            "event": event,
        }
        return self.send("events_api", payload | more)

    def slash(self, command: str, text: str = "", *, user: str = "U1", channel: str = "C1") -> Envelope:
        payload = {"team_id": TEAM, "user_id": user, "channel_id": channel, "command": command, "text": text}
        payload |= {
            "trigger_id": f"{self.slack.next_id()}.1",
            "response_url": f"http://127.0.0.1:{self.port}/respond",
        }
        return self.send("slash_commands", payload)

    def press(self, message: Body, *, user: str = "U1") -> Envelope:
        """A press on the first button of a message."""
        button = next(b for b in message["blocks"] if b["type"] == "actions")["elements"][0]
        payload = {
            "type": "block_actions",
            "team": {"id": TEAM},
            "user": {"id": user, "team_id": TEAM},
            "channel": {"id": message["channel"]},
            "message": message,
            "container": {"type": "message", "message_ts": message["ts"], "channel_id": message["channel"]},
            "actions": [{"type": "button", "action_id": button["action_id"], "value": button["value"]}],
            "trigger_id": f"{self.slack.next_id()}.1",
        }
        return self.send("interactive", payload)

    # ---- Socket Mode

    def send(self, kind: str, payload: Body, *, envelope_id: str | None = None) -> Envelope:
        envelope = Envelope(envelope_id or f"env-{self.slack.next_id()}", kind, payload)
        self.envelopes[envelope.id] = envelope
        self._spawn(self._deliver(envelope))
        return envelope

    async def _deliver(self, envelope: Envelope) -> None:
        while envelope.sent < 4 and not envelope.acked.is_set():
            await self.connected.wait()
            frame: Body = {"envelope_id": envelope.id, "type": envelope.type, "payload": envelope.payload}
            frame |= {"accepts_response_payload": True, "retry_attempt": envelope.sent}
            try:
                await self.connections[-1].send_json(frame)
            except (ConnectionError, RuntimeError, IndexError):
                await asyncio.sleep(0.01)
                continue
            envelope.sent += 1
            try:
                await asyncio.wait_for(envelope.acked.wait(), self.ack_within)
            except TimeoutError:
                continue

    async def disconnect(self) -> None:
        """Asks the client to connect anew, as Slack does every few hours."""
        for ws in list(self.connections):
            await ws.send_json({"type": "disconnect", "reason": "refresh_requested"})

    async def drop(self) -> None:
        """Closes the connections without a word."""
        for ws in list(self.connections):
            await ws.close()

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if self.refuse_tickets > 0:
            self.refuse_tickets -= 1
            self.spoilt.add(request.query.get("ticket", ""))
        if request.query.get("ticket") in self.spoilt:
            return web.Response(status=403)
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_json({"type": "hello", "num_connections": self.num_connections})
        self.connections.append(ws)
        self.connected.set()
        try:
            async for message in ws:
                if message.type is WSMsgType.TEXT:
                    self._acknowledge(json.loads(message.data))
        finally:
            self.connections.remove(ws)
            if not self.connections:
                self.connected.clear()
        return ws

    def _acknowledge(self, frame: Body) -> None:
        envelope = self.envelopes.get(str(frame.get("envelope_id")))
        if envelope is not None:
            envelope.answer = frame.get("payload")
            envelope.acked.set()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- Web API

    def fail(self, method: str, error: str = "", **more: Any) -> Fault:
        fault = Fault(error, **more)
        self.faults[method].append(fault)
        return fault

    def of(self, method: str) -> list[Body]:
        return [call.body for call in self.calls if call.method == method]

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Waits until the condition holds; it is looked at when a call comes and when it was done."""
        async with asyncio.timeout(timeout), self.called:
            await self.called.wait_for(condition)

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method, body = request.match_info["method"], await _body(request)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.calls.append(Call(method, body, token))
        await self._tell()
        response = await self._answer(method, body, token)
        if response is None and request.transport is not None:
            request.transport.abort()
        await self._tell()
        return response or web.Response()

    async def _tell(self) -> None:
        async with self.called:
            self.called.notify_all()

    async def _answer(self, method: str, body: Body, token: str) -> web.StreamResponse | None:
        fault = self._next_fault(method)
        if fault is not None and not fault.after and fault.gate is None:
            return self._failed(fault)
        if fault is not None and not fault.after and fault.gate is not None:
            await fault.gate.wait()
        try:
            answer: Body = {"ok": True, **self.slack.do(method, body, token)}
        except Refused as refused:
            answer = {"ok": False, "error": refused.error, **refused.more}
        if fault is not None and fault.after:
            await self._tell()
            if fault.gate is not None:
                await fault.gate.wait()
            return self._failed(fault)
        headers = {"x-oauth-scopes": self.scopes} if self.scopes is not None else {}
        return web.json_response(answer, headers=headers)

    def _next_fault(self, method: str) -> Fault | None:
        waiting = self.faults[method]
        if not waiting:
            return None
        if waiting[0].skip > 0:
            waiting[0].skip -= 1
            return None
        waiting[0].times -= 1
        return waiting.pop(0) if waiting[0].times <= 0 else waiting[0]

    def _failed(self, fault: Fault) -> web.Response | None:
        if fault.drop:
            return None
        headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
        status = 429 if fault.retry_after is not None else fault.status
        if status >= 500 and not fault.error:
            return web.Response(status=status, text="<html>bad gateway</html>", content_type="text/html")
        answer: Body = {"ok": False, "error": fault.error or "ratelimited"}
        if fault.needed:
            answer["needed"] = fault.needed
        return web.json_response(answer, status=status, headers=headers)

    # ---- files and answers to slash commands

    async def _upload(self, request: web.Request) -> web.Response:
        self.slack.files[request.match_info["file"]]["data"] = await request.read()
        return web.Response(text="OK", content_type="text/plain")

    async def _download(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.slack.bot_token}":
            return web.Response(text="<html>log in</html>", content_type="text/html")
        file = self.slack.files[request.match_info["file"]]
        return web.Response(body=file["data"], content_type=file["mimetype"])

    async def _respond(self, request: web.Request) -> web.Response:
        self.responses.append(await request.json())
        return web.Response(text="ok")

    # ---- control, for other processes

    def _control(self) -> dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        async def say(request: web.Request) -> web.Response:
            envelopes = await self.say(**await request.json())
            event = envelopes[0].payload["event"]
            return web.json_response({"ts": event["ts"], "envelopes": [envelope.id for envelope in envelopes]})

        async def slash(request: web.Request) -> web.Response:
            return web.json_response({"envelope": self.slash(**await request.json()).id})

        async def fail(request: web.Request) -> web.Response:
            self.fail(**await request.json())
            return web.json_response({})

        async def press(request: web.Request) -> web.Response:
            asked = await request.json()
            message = next(m for m in self.slack.messages[asked["channel"]] if m["ts"] == asked["ts"])
            return web.json_response({"envelope": self.press(message, user=asked.get("user", "U1")).id})

        async def messages(request: web.Request) -> web.Response:
            channel = request.query.get("channel")
            return web.json_response(self.slack.messages.get(channel, []) if channel else self.slack.messages)

        async def calls(_request: web.Request) -> web.Response:
            return web.json_response([{"method": call.method, "body": call.body} for call in self.calls])

        async def envelopes(_request: web.Request) -> web.Response:
            return web.json_response(
                [{"id": e.id, "sent": e.sent, "acked": e.acked.is_set()} for e in self.envelopes.values()]
            )

        return {
            "/control/say": say,
            "/control/slash": slash,
            "/control/press": press,
            "/control/fail": fail,
            "/control/messages": messages,
            "/control/calls": calls,
            "/control/envelopes": envelopes,
        }


async def _body(request: web.Request) -> Body:
    body: Body = dict(request.query)
    if request.content_type == "application/json":
        body |= await request.json()
    elif request.can_read_body:
        body |= dict(await request.post())
    return body


async def _main() -> None:
    parser = argparse.ArgumentParser(description="A small Slack on 127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ack-within", type=float, default=3.0)
    options = parser.parse_args()
    server = SlackServer(ack_within=options.ack_within)
    await server.start(options.port)
    sys.stdout.write(f"{server.base_url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(_main())
    except KeyboardInterrupt:
        sys.exit(0)
