"""Values to columns and back. Times are ISO 8601 in UTC, so that their texts sort as they do."""

from __future__ import annotations

import base64
import json
import sqlite3
from datetime import UTC, datetime

import structlog

from agent.messages import Message
from bridge.ports import OutboxRow, Request, RequestState, SessionInfo, StoredMessage
from channels.base import OutFile, Outgoing, Place, Sender

log = structlog.get_logger()


class CorruptRow(Exception):
    """A row that can't be read; the others can."""


def time_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def time_value(text: str) -> datetime:
    return datetime.fromisoformat(text)


def json_text(value: object) -> str:
    """A lone surrogate, which a model can write and UTF-8 can't, is kept as an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _is_storable(text) else json.dumps(value, separators=(",", ":"))


def plain_text(text: str) -> str:
    """Text for a column of its own, which knows no escapes."""
    return text if _is_storable(text) else text.encode("utf-8", "replace").decode("utf-8")


def _is_storable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def place_text(place: Place) -> str:
    return json_text(_place_fields(place))


def _place_fields(place: Place) -> dict[str, object]:
    # Not dataclasses.asdict: it copies deeply, and this is written with every message.
    return {"channel": place.channel, "chat": place.chat, "thread": place.thread, "kind": place.kind}


def place_value(text: str) -> Place:
    return Place(**json.loads(text))


def sender_text(sender: Sender) -> str:
    return json_text({"id": sender.id, "name": sender.name, "guest": sender.guest, "time_zone": sender.time_zone})


def outgoing_text(outgoing: Outgoing) -> str:
    return json_text(
        {
            "place": _place_fields(outgoing.place),
            "text": outgoing.text,
            "posted": outgoing.posted,
            "uncertain": outgoing.uncertain,
            "reply_to": outgoing.reply_to,
            "files": [
                {"name": f.name, "media_type": f.media_type, "data": base64.b64encode(f.data).decode("ascii")}
                for f in outgoing.files
            ],
        }
    )


def outgoing_value(text: str) -> Outgoing:
    fields = json.loads(text)
    files = tuple(OutFile(f["name"], f["media_type"], base64.b64decode(f["data"])) for f in fields["files"])
    return Outgoing(
        Place(**fields["place"]),
        fields["text"],
        tuple(fields["posted"]),
        fields["uncertain"],
        fields["reply_to"],
        files,
    )


def message_value(text: str) -> Message:
    """Raises CorruptRow."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRow(str(error)) from error
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise CorruptRow("not a message")
    content = message.get("content")
    if not isinstance(content, str) and not (isinstance(content, list) and all(map(_is_block, content))):
        raise CorruptRow("no content")
    return Message(role=message["role"], content=content)


def _is_block(block: object) -> bool:
    if not isinstance(block, dict):
        return False
    if block.get("type") == "text":
        return isinstance(block.get("text"), str)
    return isinstance(block.get("type"), str)


def stored_message(row: sqlite3.Row) -> StoredMessage | None:
    """None for a row that is damaged, which is told in the log and keeps nobody from the others."""
    try:
        message = message_value(row["message"])
        return StoredMessage(row["id"], row["origin"], message, time_value(row["created_at"]), row["request_id"])
    except (CorruptRow, ValueError, TypeError) as error:
        log.error("store.corrupt_message", id=row["id"], error=str(error))
        return None


def request_value(row: sqlite3.Row) -> Request | None:
    """None for a row that is damaged."""
    try:
        return Request(
            request_id=row["request_id"],
            place=place_value(row["place"]),
            sender=Sender(**json.loads(row["sender"])),
            message=message_value(row["message"]),
            message_id=row["message_id"],
            state=RequestState(row["state"]),
            received_at=time_value(row["received_at"]),
            message_ref=row["message_ref"],
            attempts=row["attempts"],
            effects=row["effects"],
            posted=tuple(json.loads(row["posted"])),
        )
    except (CorruptRow, ValueError, KeyError, TypeError) as error:
        log.error("store.corrupt_request", request=row["request_id"], error=str(error))
        return None


def outbox_value(row: sqlite3.Row) -> OutboxRow | None:
    """None for a row that is damaged."""
    try:
        return OutboxRow(
            id=row["id"],
            request_id=row["request_id"],
            outgoing=outgoing_value(row["outgoing"]),
            attempts=row["attempts"],
            not_before=time_value(row["not_before"]),
            created_at=time_value(row["created_at"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        log.error("store.corrupt_reply", id=row["id"], error=str(error))
        return None


def session_info(row: sqlite3.Row) -> SessionInfo | None:
    """None for a row that is damaged."""
    try:
        place = place_value(row["place"])
        return SessionInfo(place, row["messages"], time_value(row["created_at"]), time_value(row["last_at"]))
    except (ValueError, TypeError) as error:
        log.error("store.corrupt_session", session=row["session_id"], error=str(error))
        return None
