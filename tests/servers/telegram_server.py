"""Telegram's side of the wire, small: the Bot API on 127.0.0.1, strict where the real one is.

Tests in this process use `TelegramServer` directly; for others `python -m tests.servers.telegram_server --port P
--token T` adds POST /control/say, /control/press, /control/fail and GET /control/messages, /control/calls,
/control/updates. The Bot API is at /bot<token>/, files at /file/bot<token>/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.servers.telegram_rules import found_entities, parse_mode_refusal, refusal

Json = dict[str, Any]

TOKEN = "123456789:AAtesttesttesttesttesttesttesttest0"
BOT_ID = 123456789
USERNAME = "steady_bot"
DIRECT_ID, GROUP_ID = 7, -1001


@dataclass
class Call:
    """One call of the Bot API: what was asked, when (the loop's time), and what it was answered with."""

    method: str
    params: Json
    at: float
    status: int = 0


@dataclass
class Fault:
    """What the next calls of a method meet. `after` does the call first: it worked, and nobody hears of it
    (`drop` closes the connection instead of answering). A `gate` is waited for before anything else; `status` 200 lets
    the call through."""

    status: int = 400
    description: str = "Bad Request: forced"
    retry_after: int | None = None
    times: int = 1
    after: bool = False
    drop: bool = False
    gate: asyncio.Event | None = None
    chat: int | None = None


class Refused(Exception):
    def __init__(self, status: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.status = status
        self.parameters = parameters


def bad(description: str) -> Refused:
    return Refused(400, f"Bad Request: {description}")


def person(user_id: int = 7, name: str = "Ann", **more: object) -> Json:
    return {"id": user_id, "is_bot": False, "first_name": name, **more}


def private(user_id: int = DIRECT_ID) -> Json:
    return {"id": user_id, "type": "private", "first_name": "Ann"}


def group(chat_id: int = GROUP_ID, *, forum: bool = False) -> Json:
    return {"id": chat_id, "type": "supergroup", "title": "Group", **({"is_forum": True} if forum else {})}


class Chats:
    """Every message of every chat, and who may not be written to any more."""

    def __init__(self) -> None:
        self.messages: dict[int, dict[int, Json]] = defaultdict(dict)
        self.kinds: dict[int, Json] = {}
        self.drafts: dict[int, dict[int, str]] = defaultdict(dict)
        self.gone: dict[int, str] = {}
        self.topics_gone: set[int] = set()
        self.moved: dict[int, int] = {}
        self._next = 100

    def add(self, chat: Json, message: Json) -> Json:
        self.kinds[chat["id"]] = chat
        self._next += 1
        full = {"message_id": self._next, "date": 1_700_000_000 + self._next, "chat": chat, **message}
        self.messages[chat["id"]][self._next] = full
        return full

    def shown(self, chat_id: int) -> list[Json]:
        """What the bot has in a chat now, in order."""
        return [each for each in self.messages[chat_id].values() if each.get("from", {}).get("id") == BOT_ID]

    def texts(self, chat_id: int) -> list[str]:
        return [each["text"] for each in self.shown(chat_id) if "text" in each]


class TelegramServer:
    """State and rules. `limits` enforces 20 messages a minute in a group and 30 calls a second in all."""

    def __init__(self, *, token: str = TOKEN, drafts: bool = True, limits: bool = False) -> None:
        self.token = token
        self.me: Json = {
            "id": BOT_ID,
            "is_bot": True,
            "first_name": "Steady",
            "username": USERNAME,
            "can_join_groups": True,
            "can_read_all_group_messages": False,
            "supports_inline_queries": False,
        }
        self.drafts = drafts
        self.limits = limits
        self.webhook = ""
        self.commands: list[Json] = []
        self.chats = Chats()
        self.updates: list[Json] = []
        self.calls: list[Call] = []
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.files: dict[str, bytes] = {}
        self.file_gate: asyncio.Event | None = None
        self.answered: list[Json] = []
        self.polls = 0
        self.changed = asyncio.Condition()
        self._next_update = 1000
        self._poll: asyncio.Event | None = None
        self._sent: dict[int, deque[float]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self.port = 0

    # Life

    async def __aenter__(self) -> TelegramServer:
        await self.serve(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def serve(self, port: int, *, control: bool = False) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._answer)
        app.router.add_get("/file/bot{token}/{path:.+}", self._file)
        if control:
            Control(self).add_to(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/bot"

    # What people do

    async def say(self, chat: Json, user: Json, text: str | None = None, **more: object) -> Json:
        """A person writes; `more` are fields of the message (`reply_to_message`, `photo`, `message_thread_id`)."""
        message: Json = {"from": user, **more}
        if text is not None:
            message |= {"text": text, "entities": more.get("entities", found_entities(text))}
        if "caption" in message:
            message.setdefault("caption_entities", found_entities(message["caption"]))
        full = self.chats.add(chat, message)
        await self.update(message=full)
        return full

    async def update(self, update_id: int | None = None, **update: object) -> Json:
        self._next_update = self._next_update + 1 if update_id is None else update_id
        full = {"update_id": self._next_update, **update}
        self.updates.append(full)
        await self.tell()
        return full

    async def press(self, message: Json, user: Json) -> Json:
        """A person presses the first button under a message."""
        data = message["reply_markup"]["inline_keyboard"][0][0]["callback_data"]
        query = {"id": str(len(self.calls) + 1), "from": user, "chat_instance": "1", "data": data}
        return await self.update(callback_query={**query, "message": message})

    # Waiting

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, condition: Callable[[], object], within: float = 30) -> None:
        async with asyncio.timeout(within), self.changed:
            await self.changed.wait_for(condition)

    def called(self, method: str, *, ok: bool = False) -> list[Call]:
        return [call for call in self.calls if call.method == method and (not ok or call.status == 200)]

    def fail(self, method: str, **fault: Any) -> Fault:
        self.faults[method].append(made := Fault(**fault))
        return made

    # The wire

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        params = await _params(request)
        call = Call(method, params, asyncio.get_running_loop().time())
        try:
            if request.match_info["token"] != self.token:
                raise Refused(401, "Unauthorized")
            self.calls.append(call)
            await self.tell()
            result = await self._with_faults(call, request)
        except Refused as refused:
            call.status = refused.status
            body = {"ok": False, "error_code": refused.status, "description": str(refused)}
            if refused.parameters:
                body["parameters"] = refused.parameters
        else:
            call.status = 200
            body = {"ok": True, "result": result}
        await self.tell()
        return web.json_response(body, status=call.status)

    async def _with_faults(self, call: Call, request: web.Request) -> object:
        fault = self._next_fault(call)
        if fault is None:
            return await self._carry_out(call)
        if fault.gate is not None:
            await fault.gate.wait()
        if fault.status == 200:
            return await self._carry_out(call)
        if fault.after:
            await self._carry_out(call)
            await self.tell()
        if fault.drop:
            assert request.transport is not None
            request.transport.abort()
        parameters = {"retry_after": fault.retry_after} if fault.retry_after is not None else {}
        raise Refused(fault.status, fault.description, **parameters)

    def _next_fault(self, call: Call) -> Fault | None:
        for fault in self.faults[call.method]:
            if fault.times > 0 and fault.chat in (None, call.params.get("chat_id")):
                fault.times -= 1
                return fault
        return None

    async def _carry_out(self, call: Call) -> object:
        if call.method.lower() == "getupdates":
            return await self._get_updates(call.params)
        known = {
            "getMe": lambda _: self.me,
            "getWebhookInfo": self._get_webhook_info,
            "setWebhook": self._set_webhook,
            "deleteWebhook": self._delete_webhook,
            "setMyCommands": self._set_my_commands,
            "sendMessage": self._send_message,
            "editMessageText": self._edit_message_text,
            "editMessageReplyMarkup": self._edit_reply_markup,
            "deleteMessage": self._delete_message,
            "sendChatAction": self._send_chat_action,
            "answerCallbackQuery": self._answer_callback_query,
            "sendDocument": self._send_document,
            "getFile": self._get_file,
            **({"sendMessageDraft": self._send_message_draft} if self.drafts else {}),
        }
        if call.method not in known:
            raise Refused(404, "Not Found: method not found")
        return known[call.method](call.params)

    async def _file(self, request: web.Request) -> web.Response:
        if self.file_gate is not None:
            await self.file_gate.wait()
        data = self.files.get(request.match_info["path"].removeprefix("f/"))
        if data is None or request.match_info["token"] != self.token:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        return web.Response(body=data)

    # Methods

    async def _get_updates(self, params: Json) -> list[Json]:
        """The newer of two polls ends the older one, as the real server does."""
        if self.webhook:
            raise Refused(
                409,
                "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete "
                "the webhook first",
            )
        if self._poll is not None:
            self._poll.set()
        mine = self._poll = asyncio.Event()
        self.polls += 1
        offset = params.get("offset", 0)
        self.updates = [update for update in self.updates if update["update_id"] >= offset]
        try:
            async with asyncio.timeout(params.get("timeout", 0)), self.changed:
                await self.changed.wait_for(lambda: bool(self.updates) or mine.is_set())
        except TimeoutError:
            pass
        if mine.is_set():
            raise Refused(
                409,
                "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running",
            )
        self._poll = None
        return self.updates[: params.get("limit", 100)]

    def _get_webhook_info(self, _: Json) -> Json:
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": len(self.updates)}

    def _set_webhook(self, params: Json) -> bool:
        if not params["url"].startswith("https://"):
            raise bad("bad webhook: An HTTPS URL must be provided for webhook")
        self.webhook = params["url"]
        return True

    def _delete_webhook(self, _: Json) -> bool:
        self.webhook = ""
        return True

    def _set_my_commands(self, params: Json) -> bool:
        self.commands = params["commands"]
        return True

    def _chat(self, params: Json, *, counts: bool = False) -> Json:
        """The chat that a call is for, if it may be written to now."""
        chat_id = int(params["chat_id"])
        if chat_id in self.chats.moved:
            raise Refused(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                migrate_to_chat_id=self.chats.moved[chat_id],
            )
        if chat_id in self.chats.gone:
            raise Refused(403, self.chats.gone[chat_id])
        if chat_id not in self.chats.kinds:
            raise bad("chat not found")
        if params.get("message_thread_id") in self.chats.topics_gone:
            raise bad("message thread not found")
        chat = self.chats.kinds[chat_id]
        if counts and self.limits:
            self._count(chat)
        return chat

    def _count(self, chat: Json) -> None:
        now = asyncio.get_running_loop().time()
        for key, most, seconds in ((chat["id"], 20, 60.0), (0, 30, 1.0)):
            if key == chat["id"] and chat["type"] == "private":
                continue
            times = self._sent[key]
            while times and times[0] <= now - seconds:
                times.popleft()
            if len(times) >= most:
                raise Refused(429, "Too Many Requests", retry_after=max(1, round(times[0] + seconds - now)))
            times.append(now)

    def _checked_text(self, params: Json, *, empty: bool = False) -> tuple[str, list[Json]]:
        text, entities = params.get("text", ""), params.get("entities", [])
        wrong = refusal(text, entities, empty=empty)
        if wrong is None and "parse_mode" in params:
            wrong = parse_mode_refusal(text, params["parse_mode"])
        if wrong is not None:
            raise Refused(400, wrong)
        for row in params.get("reply_markup", {}).get("inline_keyboard", []):
            for button in row:
                if not 1 <= len(button["callback_data"].encode()) <= 64:
                    raise bad("BUTTON_DATA_INVALID")
        return text, entities

    def _new_message(self, params: Json, content: Json) -> Json:
        chat = self._chat(params, counts=True)
        thread = params.get("message_thread_id")
        if thread == 1:
            raise bad("message thread not found")
        reply = params.get("reply_parameters")
        if reply and reply["message_id"] not in self.chats.messages[chat["id"]]:
            if not reply.get("allow_sending_without_reply"):
                raise bad("message to be replied not found")
            reply = None
        extra = {"reply_to": reply["message_id"]} if reply else {}
        if thread is not None:
            extra |= {"message_thread_id": thread, "is_topic_message": True}
        if "reply_markup" in params:
            extra["reply_markup"] = params["reply_markup"]
        self.chats.drafts.pop(chat["id"], None)
        return self.chats.add(chat, {"from": self.me, **content, **extra})

    def _send_message(self, params: Json) -> Json:
        text, entities = self._checked_text(params)
        return self._new_message(params, {"text": text, "entities": entities})

    def _send_document(self, params: Json) -> Json:
        data, name = params["document"]
        document = {"file_id": "d", "file_unique_id": "d", "file_name": name, "file_size": len(data)}
        message = self._new_message(params, {"document": document})
        self.files[f"sent/{message['message_id']}"] = data
        return message

    def _own(self, params: Json, missing: str) -> Json:
        chat = self._chat(params, counts=True)
        message = self.chats.messages[chat["id"]].get(int(params["message_id"]))
        if message is None:
            raise bad(missing)
        if message["from"]["id"] != BOT_ID:
            raise bad("message can't be edited")
        return message

    def _edit_message_text(self, params: Json) -> Json:
        text, entities = self._checked_text(params)
        message = self._own(params, "message to edit not found")
        new = {"text": text, "entities": entities}
        if "reply_markup" in params:
            new["reply_markup"] = params["reply_markup"]
        if new == {key: message[key] for key in ("text", "entities", "reply_markup") if key in message}:
            raise bad(
                "message is not modified: specified new message content and reply markup are exactly the same "
                "as a current content and reply markup of the message"
            )
        message.pop("reply_markup", None)
        message.update(new, edit_date=message["date"] + 1)
        return message

    def _edit_reply_markup(self, params: Json) -> Json:
        message = self._own(params, "message to edit not found")
        if params.get("reply_markup") == message.get("reply_markup"):
            raise bad("message is not modified")
        message.pop("reply_markup", None)
        return message

    def _delete_message(self, params: Json) -> bool:
        message = self._own(params, "message to delete not found")
        del self.chats.messages[message["chat"]["id"]][message["message_id"]]
        return True

    def _send_chat_action(self, params: Json) -> bool:
        self._chat(params)
        return True

    def _send_message_draft(self, params: Json) -> bool:
        text, _ = self._checked_text(params, empty=True)
        chat = self._chat(params)
        if chat["type"] != "private":
            raise bad("TEXTDRAFT_PEER_INVALID")
        if not params.get("draft_id"):
            raise bad("draft_id must be non-zero")
        self.chats.drafts[chat["id"]][params["draft_id"]] = text
        return True

    def _answer_callback_query(self, params: Json) -> bool:
        self.answered.append(params)
        return True

    def _get_file(self, params: Json) -> Json:
        if params["file_id"] not in self.files:
            raise bad("invalid file_id")
        size = len(self.files[params["file_id"]])
        path = f"f/{params['file_id']}"
        return {"file_id": params["file_id"], "file_unique_id": "u", "file_size": size, "file_path": path}


async def _params(request: web.Request) -> Json:
    """The parameters of a call: each a JSON value, or a text that is none; files as (bytes, name)."""
    params: Json = dict(request.query)
    if request.can_read_body:
        for key, value in (await request.post()).items():
            params[key] = (value.file.read(), value.filename) if isinstance(value, web.FileField) else value
    return {key: _value(key, value) for key, value in params.items()}


def _value(key: str, value: object) -> object:
    if not isinstance(value, str) or key in ("text", "caption", "url", "file_id", "callback_query_id"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


@dataclass
class Control:
    """The server, driven by another process. The bodies are JSON; each answer is, too."""

    server: TelegramServer
    people: dict[int, Json] = field(default_factory=dict)

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/control/say", self.say)
        app.router.add_post("/control/press", self.press)
        app.router.add_post("/control/fail", self.fail)
        app.router.add_get("/control/messages", self.messages)
        app.router.add_get("/control/calls", self.calls)
        app.router.add_get("/control/updates", self.updates)

    async def say(self, request: web.Request) -> web.Response:
        """{chat_id, text, user_id?, name?, update_id?, …fields of the message}: a negative chat id is a group."""
        body = await request.json()
        chat_id, text = body.pop("chat_id"), body.pop("text")
        user = person(body.pop("user_id", abs(chat_id)), body.pop("name", "Ann"))
        chat = private(chat_id) if chat_id > 0 else group(chat_id)
        return web.json_response(await self.server.say(chat, user, text, **body))

    async def press(self, request: web.Request) -> web.Response:
        """{chat_id, message_id, user_id?}"""
        body = await request.json()
        message = self.server.chats.messages[body["chat_id"]][body["message_id"]]
        return web.json_response(
            await self.server.press(message, person(body.get("user_id", abs(body["chat_id"]))))
        )

    async def fail(self, request: web.Request) -> web.Response:
        """{method, status?, description?, retry_after?, times?, after?, drop?}"""
        body = await request.json()
        self.server.fail(body.pop("method"), **body)
        return web.json_response({})

    async def messages(self, _: web.Request) -> web.Response:
        """{chat id: [message, …]}: all that is there now, people's and ours, in order."""
        chats = self.server.chats.messages
        return web.json_response({str(chat): list(each.values()) for chat, each in chats.items()})

    async def calls(self, _: web.Request) -> web.Response:
        calls = self.server.calls
        return web.json_response([{"method": call.method, "status": call.status, "at": call.at} for call in calls])

    async def updates(self, _: web.Request) -> web.Response:
        """What is not confirmed yet."""
        return web.json_response(self.server.updates)


async def main() -> None:
    parser = argparse.ArgumentParser(description="A small Telegram Bot API on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", default=TOKEN)
    parser.add_argument("--no-drafts", action="store_true")
    options = parser.parse_args()
    server = TelegramServer(token=options.token, drafts=not options.no_drafts)
    await server.serve(options.port, control=True)
    sys.stdout.write(f"{server.base_url}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
