"""What a Slack workspace holds and what its Web API answers: plain state and rules, without any network."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

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


class Workspace:
    """Each `_m_…` is a method of the Web API. `origin` is the host and port under which files and sockets are."""

    def __init__(self, *, streaming: bool, status: bool) -> None:
        self.bot_token, self.app_token = BOT_TOKEN, APP_TOKEN
        self.streaming, self.status = streaming, status
        self.users = {
            "U1": person("U1", "Ann"),
            "U2": person("U2", "Bob & Co", tz="Asia/Tokyo"),
            "UGUEST": person("UGUEST", "Guest", is_restricted=True),
            "UGRID": person("UGRID", "Colleague", team_id="T9", enterprise_user={"enterprise_id": "E1"}),
            "UOTHER": person("UOTHER", "Other", team_id="T9"),
            "UEXT": person("UEXT", "Stranger", team_id="T9", is_stranger=True),
        }
        self.members = {"C1", "C2", "G1", "D1", "D2"}
        self.archived: set[str] = set()
        self.messages: dict[str, list[Body]] = defaultdict(list)
        self.ephemeral: list[Body] = []
        self.files: dict[str, Body] = {}
        self.streams: dict[str, bool] = {}
        self.opened = 0
        self.origin = ""
        self._ids = count(1)
        self._began = int(time.time())

    def next_id(self) -> int:
        return next(self._ids)

    def next_ts(self) -> str:
        return f"{self._began}.{self.next_id():06d}"

    def share(self, name: str, mimetype: str, data: bytes, *, size: int | None = None) -> Body:
        """A file object as it stands in an event."""
        file_id = f"F{self.next_id()}"
        self.files[file_id] = {"data": data, "mimetype": mimetype}
        url = f"http://{self.origin}/file/{file_id}"
        length = len(data) if size is None else size
        return {"id": file_id, "name": name, "mimetype": mimetype, "size": length, "url_private": url}

    def do(self, method: str, body: Body, token: str) -> Body:
        wanted = self.app_token if method == "apps.connections.open" else self.bot_token
        if token != wanted:
            other = token in (self.app_token, self.bot_token)
            raise Refused("not_allowed_token_type" if other else "invalid_auth")
        handler: Method | None = getattr(self, "_m_" + method.replace(".", "_"), None)
        if handler is None:
            raise Refused("unknown_method")
        return handler(body)

    def _m_auth_test(self, _body: Body) -> Body:
        return {
            "user_id": BOT_USER,
            "bot_id": BOT_ID,
            "team_id": TEAM,
            "enterprise_id": "E1",
            "user": "steadybot",
            "team": "Acme",
        }

    def _m_apps_connections_open(self, _body: Body) -> Body:
        self.opened += 1
        return {"url": f"ws://{self.origin}/socket?ticket={self.opened}"}

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
        file_id = f"F{self.next_id()}"
        self.files[file_id] = {"id": file_id, "name": body["filename"], "length": int(body["length"])}
        return {"file_id": file_id, "upload_url": f"http://{self.origin}/upload/{file_id}"}

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


def _kept(body: Body) -> Body:
    return {key: body[key] for key in ("channel", "thread_ts", "text", "blocks", "metadata") if key in body}


def _between(messages: list[Body], body: Body) -> list[Body]:
    oldest, latest = body.get("oldest", "0"), body.get("latest", "9" * 20)
    return [m for m in messages if float(oldest) < float(m["ts"]) < float(latest) or m["ts"] == body.get("ts")]
