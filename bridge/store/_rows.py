"""Values to columns and back. Times are ISO 8601 in UTC, so that their texts sort as they do."""

from __future__ import annotations

import base64
import json
import sqlite3
from dataclasses import asdict
from datetime import UTC, datetime

import structlog

from agent.messages import Message
from bridge.ports import OutboxRow, Request, RequestState, StoredMessage
from channels.base import OutFile, Outgoing, Place, Sender

log = structlog.get_logger()


class CorruptRow(Exception):
    """A row that can't be read; the others can."""


def time_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def time_value(text: str) -> datetime:
    return datetime.fromisoformat(text)


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def place_text(place: Place) -> str:
    return json_text(asdict(place))


def place_value(text: str) -> Place:
    return Place(**json.loads(text))


def sender_text(sender: Sender) -> str:
    return json_text(asdict(sender))


def outgoing_text(outgoing: Outgoing) -> str:
    fields = asdict(outgoing)
    for file in fields["files"]:
        file["data"] = base64.b64encode(file["data"]).decode("ascii")
    return json_text(fields)


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
    except ValueError as error:
        raise CorruptRow(str(error)) from error
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise CorruptRow("not a message")
    return Message(role=message["role"], content=message["content"])


def stored_message(row: sqlite3.Row) -> StoredMessage | None:
    """None for a row that is damaged, which is told in the log and keeps nobody from the others."""
    try:
        message = message_value(row["message"])
    except (CorruptRow, KeyError) as error:
        log.error("store.corrupt_message", id=row["id"], error=str(error))
        return None
    return StoredMessage(row["id"], row["origin"], message, time_value(row["created_at"]), row["request_id"])


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
