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
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import WSMsgType, web

from tests.servers.slack_rules import refusal

BOT_TOKEN = "xoxb-test-bot"
APP_TOKEN = "xapp-test-app"
TEAM = "T1"
BOT_USER, BOT_ID = "UBOT", "B1"
SCOPES = (
    "app_mentions:read,assistant:write,channels:history,chat:write,commands,files:read,files:write,"
    "groups:history,im:history,mpim:history,users:read"
)

Body = dict[str, Any]
Method = Callable[[Body], Body]


class Refused(Exception):
    def __init__(self, error: str, **more: object) -> None:
        super().__init__(error)
        self.error = error
        self.more = more


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
    needed: str = ""


@dataclass
class Envelope:
    id: str
    type: str
    payload: Body
    sent: int = 0
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    answer: object = None


def person(user_id: str, name: str, **more: object) -> Body:
    return {
        "id": user_id,
        "team_id": TEAM,
        "name": name.lower(),
        "real_name": name,
        "tz": "Europe/Berlin",
        "profile": {"display_name": name, "real_name": name},
        "is_restricted": False,
        "is_ultra_restricted": False,
        **more,
    }


class SlackServer:
    """State and rules. `ack_within` is in seconds: an envelope not acknowledged in it is sent again, thrice."""

    def __init__(self, *, ack_within: float = 3.0, streaming: bool = True, status: bool = True) -> None:
        self.ack_within = ack_within
        self.scopes: str | None = SCOPES
        self.bot_token, self.app_token = BOT_TOKEN, APP_TOKEN
        self.streaming, self.status = streaming, status
        self.users = {
            "U1": person("U1", "Ann"),
            "U2": person("U2", "Bob & Co", tz="Asia/Tokyo"),
            "UGUEST": person("UGUEST", "Guest", is_restricted=True),
            "UEXT": person("UEXT", "Stranger", team_id="T9", is_stranger=True),
        }
        self.members = {"C1", "C2", "G1", "D1", "D2"}
        self.archived: set[str] = set()
        self.messages: dict[str, list[Body]] = defaultdict(list)
        self.ephemeral: list[Body] = []
        self.responses: list[Body] = []
        self.files: dict[str, Body] = {}
        self.streams: dict[str, bool] = {}
        self.calls: list[Call] = []
        self.called = asyncio.Condition()
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.envelopes: dict[str, Envelope] = {}
        self.connections: list[web.WebSocketResponse] = []
        self.connected = asyncio.Event()
        self.num_connections = 1
        self.opened = 0
        self._ids = count(1)
        self._began = int(time.time())
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

    def next_ts(self) -> str:
        return f"{self._began}.{next(self._ids):06d}"

    async def say(self, text: str, *, user: str = "U1", channel: str = "D1", **more: object) -> list[Envelope]:
        """A person writes. A mention in a channel arrives as `message` and as `app_mention`, as with Slack."""
        event: Body = {"type": "message", "user": user, "text": text, "channel": channel, "ts": self.next_ts()}
        event |= {"channel_type": "im" if channel.startswith("D") else "channel", "team": TEAM, **more}
        self.messages[channel].append(dict(event))
        events = [event]
        if f"<@{BOT_USER}>" in text and not channel.startswith("D"):
            events.append({key: event[key] for key in event if key != "channel_type"} | {"type": "app_mention"})
        return [self.event(item) for item in events]

    def event(self, event: Body, **more: object) -> Envelope:
        payload = {"type": "event_callback", "team_id": TEAM, "event_id": f"Ev{next(self._ids)}", "event": event}
        return self.send("events_api", payload | more)

    def slash(self, command: str, text: str = "", *, user: str = "U1", channel: str = "C1") -> Envelope:
        payload = {"team_id": TEAM, "user_id": user, "channel_id": channel, "command": command, "text": text}
        payload |= {"trigger_id": f"{next(self._ids)}.1", "response_url": f"http://127.0.0.1:{self.port}/respond"}
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
            "trigger_id": f"{next(self._ids)}.1",
        }
        return self.send("interactive", payload)

    # ---- Socket Mode

    def send(self, kind: str, payload: Body, *, envelope_id: str | None = None) -> Envelope:
        envelope = Envelope(envelope_id or f"env-{next(self._ids)}", kind, payload)
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

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
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

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Waits until the condition holds; it is looked at when a call comes and when it was done."""
        async with asyncio.timeout(timeout), self.called:
            await self.called.wait_for(condition)

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method, body = request.match_info["method"], await _body(request)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.calls.append(Call(method, body, token))
        await self._tell()
        response = await self._answer(method, body, token)
        await self._tell()
        return response

    async def _tell(self) -> None:
        async with self.called:
            self.called.notify_all()

    async def _answer(self, method: str, body: Body, token: str) -> web.StreamResponse:
        fault = self._next_fault(method)
        if fault is not None and not fault.after and fault.gate is None:
            return self._failed(fault)
        if fault is not None and not fault.after and fault.gate is not None:
            await fault.gate.wait()
        try:
            answer: Body = {"ok": True, **self._do(method, body, token)}
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
        waiting[0].times -= 1
        return waiting.pop(0) if waiting[0].times <= 0 else waiting[0]

    def _failed(self, fault: Fault) -> web.Response:
        headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
        status = 429 if fault.retry_after is not None else fault.status
        if status >= 500 and not fault.error:
            return web.Response(status=status, text="<html>bad gateway</html>", content_type="text/html")
        answer: Body = {"ok": False, "error": fault.error or "ratelimited"}
        if fault.needed:
            answer["needed"] = fault.needed
        return web.json_response(answer, status=status, headers=headers)

    def _do(self, method: str, body: Body, token: str) -> Body:
        wanted = self.app_token if method == "apps.connections.open" else self.bot_token
        if token != wanted:
            other = token in (self.app_token, self.bot_token)
            raise Refused("not_allowed_token_type" if other else "invalid_auth")
        handler: Method | None = getattr(self, "_m_" + method.replace(".", "_"), None)
        if handler is None:
            raise Refused("unknown_method")
        return handler(body)

    def _m_auth_test(self, _body: Body) -> Body:
        return {"user_id": BOT_USER, "bot_id": BOT_ID, "team_id": TEAM, "user": "steadybot", "team": "Acme"}

    def _m_apps_connections_open(self, _body: Body) -> Body:
        self.opened += 1
        return {"url": f"ws://127.0.0.1:{self.port}/socket?ticket={self.opened}"}

    def _m_users_info(self, body: Body) -> Body:
        if body["user"] not in self.users:
            raise Refused("user_not_found")
        return {"user": self.users[body["user"]]}

    def _m_chat_postMessage(self, body: Body) -> Body:
        self._may_write(body["channel"])
        self._accept(body)
        ts = self.next_ts()
        message = {**_kept(body), "ts": ts, "user": BOT_USER, "bot_id": BOT_ID, "type": "message"}
        self.messages[body["channel"]].append(message)
        return {"ts": ts, "channel": body["channel"], "message": message}

    def _m_chat_update(self, body: Body) -> Body:
        message = self._own(body)
        if self.streams.get(body["ts"]):
            raise Refused("streaming_state_conflict")
        self._accept(body, update=True)
        message.pop("markdown_text", None)
        message.update({key: body[key] for key in ("text", "blocks") if key in body})
        return {"ts": body["ts"], "channel": body["channel"], "text": body.get("text", "")}

    def _m_chat_delete(self, body: Body) -> Body:
        self.messages[body["channel"]].remove(self._own(body))
        return {"ts": body["ts"], "channel": body["channel"]}

    def _m_chat_postEphemeral(self, body: Body) -> Body:
        self._may_write(body["channel"])
        self._accept(body)
        self.ephemeral.append(body)
        return {"message_ts": self.next_ts()}

    def _m_chat_startStream(self, body: Body) -> Body:
        if not self.streaming:
            raise Refused("unknown_method")
        self._may_write(body["channel"])
        if not body.get("thread_ts"):
            raise Refused("invalid_thread_ts")
        if not body["channel"].startswith("D"):
            for key in ("recipient_team_id", "recipient_user_id"):
                if not body.get(key):
                    raise Refused("missing_" + key)
        self._accept({"markdown_text": body.get("markdown_text", " ")})
        ts = self.next_ts()
        kept = {key: body[key] for key in ("channel", "thread_ts")}
        streamed = {"text": body.get("markdown_text", ""), "ts": ts, "user": BOT_USER, "bot_id": BOT_ID}
        self.messages[body["channel"]].append(kept | streamed)
        self.streams[ts] = True
        return {"ts": ts, "channel": body["channel"]}

    def _m_chat_appendStream(self, body: Body) -> Body:
        message = self._streaming(body)
        self._accept({"markdown_text": body["markdown_text"]})
        message["text"] += body["markdown_text"]
        return {"ts": body["ts"], "channel": body["channel"]}

    def _m_chat_stopStream(self, body: Body) -> Body:
        message = self._streaming(body)
        message["text"] += body.get("markdown_text", "")
        self.streams[body["ts"]] = False
        return {"ts": body["ts"], "channel": body["channel"]}

    def _streaming(self, body: Body) -> Body:
        message = self._own(body)
        if not self.streams.get(body["ts"]):
            raise Refused("message_not_in_streaming_state")
        return message

    def _m_assistant_threads_setStatus(self, body: Body) -> Body:
        if not self.status:
            raise Refused("unknown_method")
        if not body.get("thread_ts"):
            raise Refused("invalid_thread_ts")
        return {}

    def _m_conversations_replies(self, body: Body) -> Body:
        thread = [m for m in self.messages[body["channel"]] if body["ts"] in (m["ts"], m.get("thread_ts"))]
        if not thread:
            raise Refused("thread_not_found")
        return {"messages": _between(thread, body)}

    def _m_conversations_history(self, body: Body) -> Body:
        own = [m for m in self.messages[body["channel"]] if m.get("thread_ts") in (None, m["ts"])]
        return {"messages": _between(own, body)[::-1]}

    def _m_conversations_info(self, body: Body) -> Body:
        return {"channel": {"id": body["channel"], "name": body["channel"].lower()}}

    def _m_files_getUploadURLExternal(self, body: Body) -> Body:
        file_id = f"F{next(self._ids)}"
        self.files[file_id] = {"id": file_id, "name": body["filename"], "length": int(body["length"])}
        return {"file_id": file_id, "upload_url": f"http://127.0.0.1:{self.port}/upload/{file_id}"}

    def _m_files_completeUploadExternal(self, body: Body) -> Body:
        self._may_write(body["channel_id"])
        done = [self.files[item["id"]] for item in json.loads(body["files"])]
        if any("data" not in file for file in done):
            raise Refused("file_not_found")
        for file in done:
            file |= {"channel": body["channel_id"], "thread_ts": body.get("thread_ts")}
        return {"files": [{"id": file["id"], "title": file["name"]} for file in done]}

    def _may_write(self, channel: str) -> None:
        if channel in self.archived:
            raise Refused("is_archived")
        if channel not in self.members:
            raise Refused("not_in_channel" if channel.startswith("C") else "channel_not_found")

    def _accept(self, body: Mapping[str, Any], *, update: bool = False) -> None:
        error = refusal(body, update=update)
        if error is not None:
            raise Refused(error)

    def _own(self, body: Body) -> Body:
        for message in self.messages[body["channel"]]:
            if message["ts"] == body["ts"]:
                if message.get("user") != BOT_USER:
                    raise Refused("cant_update_message")
                return message
        raise Refused("message_not_found")

    # ---- files and answers to slash commands

    async def _upload(self, request: web.Request) -> web.Response:
        self.files[request.match_info["file"]]["data"] = await request.read()
        return web.Response(text="OK", content_type="text/plain")

    async def _download(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.bot_token}":
            return web.Response(text="<html>log in</html>", content_type="text/html")
        file = self.files[request.match_info["file"]]
        return web.Response(body=file["data"], content_type=file["mimetype"])

    def share(self, name: str, mimetype: str, data: bytes, *, size: int | None = None) -> Body:
        """A file object as it stands in an event."""
        file_id = f"F{next(self._ids)}"
        self.files[file_id] = {"data": data, "mimetype": mimetype}
        url = f"http://127.0.0.1:{self.port}/file/{file_id}"
        length = len(data) if size is None else size
        return {"id": file_id, "name": name, "mimetype": mimetype, "size": length, "url_private": url}

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
            message = next(m for m in self.messages[asked["channel"]] if m["ts"] == asked["ts"])
            return web.json_response({"envelope": self.press(message, user=asked.get("user", "U1")).id})

        async def messages(request: web.Request) -> web.Response:
            channel = request.query.get("channel")
            return web.json_response(self.messages.get(channel, []) if channel else self.messages)

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


def _kept(body: Body) -> Body:
    return {key: body[key] for key in ("channel", "thread_ts", "text", "blocks", "metadata") if key in body}


def _between(messages: list[Body], body: Body) -> list[Body]:
    oldest, latest = body.get("oldest", "0"), body.get("latest", "9" * 20)
    return [m for m in messages if float(oldest) < float(m["ts"]) < float(latest) or m["ts"] == body.get("ts")]


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
