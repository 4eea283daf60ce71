"""What the store reads: plain functions of a connection, run in its thread."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import structlog

from agent.messages import without_tool_blocks
from bridge.errors import StoreError
from bridge.ports import ModelFact, OutboxRow, Request, SessionInfo, StoredMessage, StoredSession
from bridge.store._rows import outbox_value, place_value, request_value, session_info, stored_message
from channels.base import Place

log = structlog.get_logger()

T = TypeVar("T")


def unfinished(db: sqlite3.Connection) -> list[Request]:
    rows = db.execute(
        "SELECT inbox.*, messages.message, sessions.place FROM inbox"
        " JOIN messages ON messages.id = inbox.message_id"
        " JOIN sessions ON sessions.session_id = inbox.session_id"
        " WHERE inbox.state IN ('queued', 'running') ORDER BY inbox.message_id"
    )
    return _readable(rows, request_value)


def session(db: sqlite3.Connection, session_id: str) -> StoredSession | None:
    found = db.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if found is None:
        return None
    rows = db.execute(
        "SELECT * FROM messages WHERE session_id = ? AND id >= ? AND NOT EXISTS ("
        "  SELECT 1 FROM inbox WHERE inbox.message_id = messages.id AND inbox.state IN ('queued', 'running'))"
        " ORDER BY id",
        (session_id, found["context_from"]),
    )
    answered = in_answer_order(_readable(rows, stored_message))
    messages = [stripped for row in answered if (stripped := _stripped(row)) is not None]
    return StoredSession(_place_of(found), messages, found["summary"], found["summary_turns"])


def in_answer_order(rows: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Each question before its own answer. What a person writes during a run is stored before that run's answer,
    and would else be read back as if it had been asked before it.

    A run's rows carry the id of the last request that it answered; the answer to a question that is not among
    the rows (it lies before the context's start) is left out.
    """
    ordered: list[StoredMessage] = []
    waiting: deque[StoredMessage] = deque()
    answering: str | None = None
    for row in rows:
        if row.origin == "user":
            waiting.append(row)
            continue
        if row.request_id != answering:
            if all(question.request_id != row.request_id for question in waiting):
                continue
            answering = row.request_id
            while waiting and (not ordered or ordered[-1].request_id != answering):
                ordered.append(waiting.popleft())
        ordered.append(row)
    return [*ordered, *waiting]


def knows(db: sqlite3.Connection, session_id: str) -> bool:
    return db.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone() is not None


def history(db: sqlite3.Connection, session_id: str) -> list[StoredMessage]:
    rows = db.execute("SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session_id,))
    return _readable(rows, stored_message)


def sessions(db: sqlite3.Connection) -> list[SessionInfo]:
    rows = db.execute(
        "SELECT session_id, place, created_at, last_at, (SELECT count(*) FROM messages"
        " WHERE messages.session_id = sessions.session_id) AS messages FROM sessions ORDER BY last_at DESC"
    )
    return _readable(rows, session_info)


def outbox(db: sqlite3.Connection) -> list[OutboxRow]:
    return _readable(db.execute("SELECT * FROM outbox WHERE state = 'pending' ORDER BY id"), outbox_value)


def allowed(db: sqlite3.Connection, channel: str) -> frozenset[str]:
    return frozenset(row[0] for row in db.execute("SELECT user_id FROM allowed WHERE channel = ?", (channel,)))


def counters(db: sqlite3.Connection) -> dict[str, int]:
    return {row["name"]: row["value"] for row in db.execute("SELECT * FROM counters")}


def model_facts(db: sqlite3.Connection) -> dict[str, ModelFact]:
    return {
        row["model"]: ModelFact(row["ratio"], row["input_limit"])
        for row in db.execute("SELECT * FROM model_facts")
    }


def copy_into(db: sqlite3.Connection, target: Path) -> bool:
    """A consistent copy of one moment, writers going on meanwhile; False where the target exists already.

    It gets its name when it is whole, so that a copy that was cut off is never taken for a backup.
    """
    if target.exists():
        return False
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    copy = sqlite3.connect(part)
    try:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, that needs no -wal beside it
        if copy.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("the copy is damaged, so the database is too; keep your older backups")
        copy.close()
        part.rename(target)
    finally:
        copy.close()
        part.unlink(missing_ok=True)
    return True


def _readable(rows: Iterable[sqlite3.Row], value: Callable[[sqlite3.Row], T | None]) -> list[T]:
    return [found for row in rows if (found := value(row)) is not None]


def _stripped(row: StoredMessage) -> StoredMessage | None:
    """§6 of four-defences: no tool or thinking block comes back from the store."""
    kept = without_tool_blocks([row.message])
    return StoredMessage(row.id, row.origin, kept[0], row.created_at, row.request_id) if kept else None


def _place_of(row: sqlite3.Row) -> Place:
    try:
        return place_value(row["place"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"session {row['session_id']}: its row is damaged ({error})") from error
