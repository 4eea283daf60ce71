"""A small Bot API on loopback, written from the published rules: what the unmodified SDK talks to in tests.

As a process: `python -m tests.servers.telegram_server --port P --token T`; a test in another process then says things
by POST /control/say and reads what is shown by GET /control/messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

from tests.servers.telegram_rules import text_problem, utf16_length

TOKEN = "123456789:AAFakeTokenForTestsOnly_0123456789abc"
BOT = {
    "id": 123456789,
    "is_bot": True,
    "first_name": "Steady",
    "username": "steady_bot",
    "can_read_all_group_messages": False,
}
Params = dict[str, object]


class Refusal(Exception):
    """An answer with ok=false."""

    def __init__(self, status: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.retry_after = retry_after


@dataclass(slots=True)
class ShownMessage:
    """A message as a person sees it in the chat now."""

    chat_id: int
    message_id: int
    text: str
    entities: list[dict[str, object]] = field(default_factory=list)
    reply_markup: object = None
    thread_id: int | None = None
    reply_to: int | None = None
    file: str | None = None
    file_data: bytes = b""
    from_bot: bool = True
    edits: int = 0


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    params: Params
    at: float


class TelegramServer:
    """`say` and `press` are what people do; `messages` is what they see; `calls` is what came over the wire."""

    def __init__(self, token: str = TOKEN, port: int = 0, *, drafts: bool = False) -> None:
        self.token = token
        self.calls: list[ApiCall] = []
        self.webhook = ""
        self.drafts = drafts
        self.privacy = True
        self.flood: dict[int, tuple[int, float]] = {}
        self.gone_chats: set[int] = set()
        self._port = port
        self._updates: list[dict[str, object]] = []
        self._next_update = 1000
        self._next_message: dict[int, int] = defaultdict(lambda: 1)
        self._shown: dict[tuple[int, int], ShownMessage] = {}
        self._refusals: dict[str, list[Refusal]] = defaultdict(list)
        self._holds: dict[str, asyncio.Event] = {}
        self._files: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._polls = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=60 * 2**20)
        app.router.add_route("*", "/bot{token}/{method}", self._handle)
        app.router.add_get("/file/bot{token}/{path:.*}", self._file)
        app.router.add_post("/control/say", self._control_say)
        app.router.add_get("/control/messages", self._control_messages)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/bot"

    def say(
        self,
        chat_id: int,
        text: str = "",
        *,
        user_id: int | None = None,
        chat_type: str = "private",
        name: str = "Ann",
        update_id: int | None = None,
        **extra: object,
    ) -> int:
        """A person's message; returns its update_id. `extra` goes into the message as it is."""
        message_id = self._take_message_id(chat_id)
        message: dict[str, object] = {
            "message_id": message_id,
            "date": int(time.time()),
            "chat": self._chat(chat_id, chat_type),
            "from": {"id": user_id or chat_id, "is_bot": False, "first_name": name, "language_code": "en"},
        }
        if text:
            message["text"] = text
        message.update(extra)
        command = text.split()[0] if text.startswith("/") else ""
        if command and "entities" not in extra:
            message["entities"] = [{"type": "bot_command", "offset": 0, "length": utf16_length(command)}]
        self._shown[chat_id, message_id] = ShownMessage(chat_id, message_id, text, from_bot=False)
        return self.update({"message": message}, update_id)

    def press(self, chat_id: int, message_id: int, data: str, user_id: int, chat_type: str = "private") -> int:
        """A press on an inline button."""
        message = {
            "message_id": message_id,
            "date": int(time.time()),
            "chat": self._chat(chat_id, chat_type),
            "text": "…",
        }
        query = {
            "id": f"q{self._next_update}",
            "from": {"id": user_id, "is_bot": False, "first_name": "Ann"},
            "chat_instance": "1",
            "data": data,
            "message": message,
        }
        return self.update({"callback_query": query})

    def update(self, body: dict[str, object], update_id: int | None = None) -> int:
        if update_id is None:
            update_id, self._next_update = self._next_update, self._next_update + 1
        self._updates.append({"update_id": update_id, **body})
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._notify()))
        return update_id

    def add_file(self, file_id: str, data: bytes) -> None:
        self._files[file_id] = data

    def messages(self, chat_id: int) -> list[ShownMessage]:
        """What the bot shows in the chat now, in order."""
        return [shown for (chat, _), shown in sorted(self._shown.items()) if chat == chat_id and shown.from_bot]

    def fail_next(self, method: str, status: int, description: str, retry_after: int | None = None) -> None:
        self._refusals[method].append(Refusal(status, description, retry_after))

    def hold(self, method: str) -> asyncio.Event:
        """Calls of this method get no answer until the event is set."""
        return self._holds.setdefault(method, asyncio.Event())

    def limit(self, chat_id: int, calls: int, seconds: float) -> None:
        """At most so many messages and edits in so many seconds in this chat, else 429."""
        self.flood[chat_id] = (calls, seconds)

    def called(self, method: str) -> list[Params]:
        return [call.params for call in self.calls if call.method == method]

    async def wait_for(self, condition: Callable[[], object], within: float = 20) -> None:
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _handle(self, request: web.Request) -> web.Response:
        method = request.match_info["method"].lower()
        params: Params = {}
        for key, value in (await request.post()).items():
            params[key] = value.file.read() if isinstance(value, web.FileField) else _decoded(key, str(value))
            if isinstance(value, web.FileField):
                params[f"{key}.name"] = value.filename
        self.calls.append(ApiCall(method, params, asyncio.get_running_loop().time()))
        try:
            if request.match_info["token"] != self.token:
                raise Refusal(401, "Unauthorized")
            if self._refusals[method]:
                raise self._refusals[method].pop(0)
            if method in self._holds:
                await self._holds[method].wait()
            handler = getattr(self, f"_do_{method}", None)
            if handler is None:
                raise Refusal(404, "Not Found")
            result = await handler(params)
        except Refusal as refusal:
            await self._notify()
            body: dict[str, object] = {
                "ok": False,
                "error_code": refusal.status,
                "description": refusal.description,
            }
            if refusal.retry_after is not None:
                body["parameters"] = {"retry_after": refusal.retry_after}
            return web.json_response(body, status=refusal.status)
        await self._notify()
        return web.json_response({"ok": True, "result": result})

    async def _do_getme(self, params: Params) -> object:
        return {**BOT, "can_read_all_group_messages": not self.privacy}

    async def _do_getwebhookinfo(self, params: Params) -> object:
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": len(self._updates)}

    async def _do_deletewebhook(self, params: Params) -> object:
        self.webhook = ""
        return True

    async def _do_setmycommands(self, params: Params) -> object:
        return True

    async def _do_answercallbackquery(self, params: Params) -> object:
        return True

    async def _do_sendchataction(self, params: Params) -> object:
        self._place(params)
        return True

    async def _do_getupdates(self, params: Params) -> object:
        if self.webhook:
            raise Refusal(
                409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook first"
            )
        if self._polls:
            raise Refusal(
                409,
                "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
            )
        offset = _int(params.get("offset", 0))
        self._updates = [update for update in self._updates if _int(update["update_id"]) >= offset]
        self._polls += 1
        try:
            async with asyncio.timeout(_int(params.get("timeout", 0))), self._changed:
                await self._changed.wait_for(lambda: bool(self._updates))
        except TimeoutError:
            pass
        finally:
            self._polls -= 1
        return self._updates[: _int(params.get("limit", 100))]

    async def _do_sendmessage(self, params: Params) -> object:
        chat_id, thread_id = self._place(params)
        text, entities = self._text(params)
        return self._show(
            ShownMessage(chat_id, 0, text, entities, params.get("reply_markup"), thread_id, _reply_to(params))
        )

    async def _do_senddocument(self, params: Params) -> object:
        chat_id, thread_id = self._place(params)
        name = str(params.get("document.name", "file"))
        data = params.get("document", b"")
        shown = ShownMessage(
            chat_id, 0, str(params.get("caption", "")), [], None, thread_id, _reply_to(params), name
        )
        shown.file_data = data if isinstance(data, bytes) else b""
        return self._show(shown)

    async def _do_editmessagetext(self, params: Params) -> object:
        self._place(params)
        shown = self._existing(params)
        text, entities = self._text(params)
        markup = params.get("reply_markup")
        if (text, entities, markup) == (shown.text, shown.entities, shown.reply_markup):
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the same",
            )
        shown.text, shown.entities, shown.reply_markup = text, entities, markup
        shown.edits += 1
        return self._message(shown)

    async def _do_editmessagereplymarkup(self, params: Params) -> object:
        shown = self._existing(params)
        if shown.reply_markup == params.get("reply_markup"):
            raise Refusal(400, "Bad Request: message is not modified")
        shown.reply_markup = params.get("reply_markup")
        return self._message(shown)

    async def _do_deletemessage(self, params: Params) -> object:
        shown = self._existing(params)
        del self._shown[shown.chat_id, shown.message_id]
        return True

    async def _do_getfile(self, params: Params) -> object:
        file_id = str(params["file_id"])
        if file_id not in self._files:
            raise Refusal(400, "Bad Request: invalid file_id")
        return {
            "file_id": file_id,
            "file_unique_id": file_id,
            "file_size": len(self._files[file_id]),
            "file_path": file_id,
        }

    async def _file(self, request: web.Request) -> web.Response:
        if "getfile.data" in self._holds:
            await self._holds["getfile.data"].wait()
        return web.Response(body=self._files[request.match_info["path"]])

    def _place(self, params: Params) -> tuple[int, int | None]:
        chat_id = _int(params["chat_id"])
        if chat_id in self.gone_chats:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        thread = params.get("message_thread_id")
        if thread == 1:
            raise Refusal(400, "Bad Request: message thread not found")
        if chat_id in self.flood:
            limit, seconds = self.flood[chat_id]
            now = asyncio.get_running_loop().time()
            recent = [
                call
                for call in self.calls[:-1]
                if call.method in ("sendmessage", "editmessagetext")
                and call.params.get("chat_id") == chat_id
                and call.at > now - seconds
            ]
            if len(recent) >= limit:
                raise Refusal(429, f"Too Many Requests: retry after {int(seconds) or 1}", int(seconds) or 1)
        return chat_id, None if thread is None else _int(thread)

    def _text(self, params: Params) -> tuple[str, list[dict[str, object]]]:
        text = str(params.get("text", ""))
        if params.get("parse_mode"):
            raise Refusal(400, "Bad Request: can't parse entities: this server takes entities only")
        entities = params.get("entities") or []
        assert isinstance(entities, list)
        if (problem := text_problem(text, entities)) is not None:
            raise Refusal(400, problem)
        return text, entities

    def _existing(self, params: Params) -> ShownMessage:
        shown = self._shown.get((_int(params["chat_id"]), _int(params["message_id"])))
        if shown is None or not shown.from_bot:
            raise Refusal(400, "Bad Request: message to edit not found")
        return shown

    def _show(self, shown: ShownMessage) -> object:
        shown.message_id = self._take_message_id(shown.chat_id)
        self._shown[shown.chat_id, shown.message_id] = shown
        return self._message(shown)

    def _message(self, shown: ShownMessage) -> object:
        kind = "private" if shown.chat_id > 0 else "supergroup"
        return {
            "message_id": shown.message_id,
            "date": int(time.time()),
            "chat": self._chat(shown.chat_id, kind),
            "from": BOT,
            "text": shown.text,
        }

    def _take_message_id(self, chat_id: int) -> int:
        self._next_message[chat_id] += 1
        return self._next_message[chat_id]

    @staticmethod
    def _chat(chat_id: int, kind: str) -> dict[str, object]:
        return {
            "id": chat_id,
            "type": kind,
            **({"first_name": "Ann"} if kind == "private" else {"title": "Group"}),
        }

    async def _control_say(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"update_id": self.say(**body)})

    async def _control_messages(self, request: web.Request) -> web.Response:
        shown = [
            {"chat_id": item.chat_id, "message_id": item.message_id, "text": item.text, "edits": item.edits}
            for item in self._shown.values()
            if item.from_bot
        ]
        return web.json_response(shown)


def _decoded(key: str, value: str) -> object:
    if key in ("text", "caption"):
        return value
    try:
        return json.loads(value) if value[:1] in "[{" or value.lstrip("-").isdigit() else value
    except ValueError:
        return value


def _int(value: object) -> int:
    assert isinstance(value, int | str)
    return int(value)


def _reply_to(params: Params) -> int | None:
    reply = params.get("reply_parameters")
    return _int(reply["message_id"]) if isinstance(reply, dict) else None


async def _serve(port: int, token: str) -> None:
    async with TelegramServer(token, port) as server:
        print(server.base_url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default=TOKEN)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.port, arguments.token))
