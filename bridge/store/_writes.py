"""The bodies of the store's write transactions: plain functions of a connection, run in its thread.

Each runs inside a savepoint of a shared transaction, so what it raises undoes it alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta

from bridge.ports import FinishedRun, ModelFact, NewRequest, OutboxRow, RequestState
from bridge.store._rows import (
    json_text,
    outgoing_text,
    place_text,
    plain_text,
    sender_text,
    time_text,
)
from channels.base import Outgoing, Place

CODE_LASTS = timedelta(days=1)
EVENTS_LAST = timedelta(days=7)
"""How much longer than messages the names of events are kept."""


def accept(db: sqlite3.Connection, new: NewRequest) -> int | None:
    at = time_text(new.received_at)
    if not _take_event(db, new.event_keys, at):
        return None
    _touch_session(db, new.place, at)
    message_id = _insert_message(db, new.place, new.request_id, "user", json_text(new.message), at)
    db.execute(
        "INSERT INTO inbox (request_id, session_id, message_id, sender, message_ref, state, received_at)"
        " VALUES (?, ?, ?, ?, ?, 'queued', ?)",
        (new.request_id, new.place.session_id, message_id, sender_text(new.sender), new.message_ref, at),
    )
    return message_id


def accept_event(db: sqlite3.Connection, event_keys: Sequence[str], at: datetime) -> bool:
    return _take_event(db, event_keys, time_text(at))


def accept_answered(
    db: sqlite3.Connection, event_keys: Sequence[str], at: datetime, reply: Outgoing
) -> OutboxRow | None:
    return enqueue(db, reply, at) if accept_event(db, event_keys, at) else None


def start(db: sqlite3.Connection, request_ids: Sequence[str]) -> None:
    db.executemany(
        "UPDATE inbox SET state = 'running', attempts = attempts + 1"
        " WHERE request_id = ? AND state IN ('queued', 'running')",
        [(request_id,) for request_id in request_ids],
    )


def count_effect(db: sqlite3.Connection, request_id: str) -> None:
    db.execute("UPDATE inbox SET effects = effects + 1 WHERE request_id = ?", (request_id,))


def note_posted(db: sqlite3.Connection, request_id: str, posted: Sequence[str]) -> None:
    db.execute("UPDATE inbox SET posted = ? WHERE request_id = ?", (json_text(list(posted)), request_id))


def set_state(db: sqlite3.Connection, request_ids: Sequence[str], state: RequestState) -> None:
    db.executemany(
        "UPDATE inbox SET state = ? WHERE request_id = ?",
        [(state.value, request_id) for request_id in request_ids],
    )


def finish(db: sqlite3.Connection, run: FinishedRun) -> OutboxRow | None:
    marks = ", ".join("?" * len(run.request_ids))
    ended = db.execute(
        f"UPDATE inbox SET state = ? WHERE request_id IN ({marks}) AND state IN ('queued', 'running')",  # noqa: S608
        (run.state.value, *run.request_ids),
    )
    if ended.rowcount == 0:
        return None
    at = time_text(run.finished_at)
    _touch_session(db, run.place, at)
    for message in run.messages:
        _insert_message(db, run.place, run.request_ids[-1], "run", json_text(message), at)
    if run.mark.context_from is not None:
        db.execute(
            "UPDATE sessions SET context_from = ?, summary = ?, summary_turns = ? WHERE session_id = ?",
            (run.mark.context_from, plain_text(run.mark.summary), run.mark.summary_turns, run.place.session_id),
        )
    if run.reply is None:
        return None
    return enqueue(db, run.reply, run.finished_at, run.request_ids[-1])


def new_context(db: sqlite3.Connection, session_id: str) -> None:
    db.execute(
        "UPDATE sessions SET summary = '', summary_turns = 0,"
        " context_from = (SELECT coalesce(max(id), 0) + 1 FROM messages) WHERE session_id = ?",
        (session_id,),
    )


def set_summary(db: sqlite3.Connection, session_id: str, summary: str, turns: int) -> None:
    # Only while the summary still stands for the same turns; a newer run may have written another.
    db.execute(
        "UPDATE sessions SET summary = ? WHERE session_id = ? AND summary_turns = ?",
        (plain_text(summary), session_id, turns),
    )


def enqueue(db: sqlite3.Connection, outgoing: Outgoing, at: datetime, request_id: str | None = None) -> OutboxRow:
    row_id = db.execute(
        "INSERT INTO outbox (request_id, outgoing, not_before, created_at) VALUES (?, ?, ?, ?) RETURNING id",
        (request_id, outgoing_text(outgoing), time_text(at), time_text(at)),
    ).fetchone()[0]
    return OutboxRow(row_id, request_id, outgoing, 0, at, at)


def sent(db: sqlite3.Connection, row_id: int, posted: Sequence[str], at: datetime) -> None:
    _set_outgoing(db, row_id, posted, uncertain=False)
    # Without its files: each /history would else stay in the database as a copy of all that is in it.
    db.execute(
        "UPDATE outbox SET state = 'sent', sent_at = ?, outgoing = json_set(outgoing, '$.files', json('[]'))"
        " WHERE id = ?",
        (time_text(at), row_id),
    )


def retry(
    db: sqlite3.Connection, row_id: int, not_before: datetime, posted: Sequence[str], *, uncertain: bool
) -> None:
    _set_outgoing(db, row_id, posted, uncertain=uncertain)
    db.execute(
        "UPDATE outbox SET attempts = attempts + 1, not_before = ? WHERE id = ?", (time_text(not_before), row_id)
    )


def give_up(db: sqlite3.Connection, row_id: int, why: str) -> None:
    db.execute("UPDATE outbox SET state = 'given_up', why = ? WHERE id = ?", (plain_text(why), row_id))


def purge_before(db: sqlite3.Connection, at: datetime) -> int:
    limit = time_text(at)
    db.execute("DELETE FROM inbox WHERE state IN ('done', 'failed') AND received_at < ?", (limit,))
    gone = db.execute(
        "DELETE FROM messages WHERE created_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.message_id = messages.id)",
        (limit,),
    ).rowcount
    db.execute("DELETE FROM outbox WHERE state <> 'pending' AND created_at < ?", (limit,))
    # A platform may send an event again for some days; its name holds nothing that anybody said.
    db.execute("DELETE FROM events WHERE seen_at < ?", (time_text(at - EVENTS_LAST),))
    db.execute("UPDATE sessions SET summary = '', summary_turns = 0 WHERE last_at < ?", (limit,))
    db.execute(
        "DELETE FROM sessions WHERE last_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.session_id = sessions.session_id)"
        " AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.session_id = sessions.session_id)",
        (limit,),
    )
    return gone


def allow(db: sqlite3.Connection, channel: str, user_id: str, at: datetime) -> None:
    db.execute("INSERT OR IGNORE INTO allowed VALUES (?, ?, ?)", (channel, user_id, time_text(at)))
    db.execute("DELETE FROM pairing WHERE channel = ? AND user_id = ?", (channel, user_id))


def disallow(db: sqlite3.Connection, channel: str, user_id: str) -> bool:
    gone = db.execute("DELETE FROM allowed WHERE channel = ? AND user_id = ?", (channel, user_id))
    return gone.rowcount > 0


def pairing_code(db: sqlite3.Connection, channel: str, user_id: str, fresh: str, at: datetime) -> tuple[str, bool]:
    db.execute("DELETE FROM pairing WHERE created_at < ?", (time_text(at - CODE_LASTS),))
    found = db.execute("SELECT code FROM pairing WHERE channel = ? AND user_id = ?", (channel, user_id)).fetchone()
    if found is not None:
        return found[0], False
    db.execute("INSERT INTO pairing VALUES (?, ?, ?, ?)", (channel, user_id, fresh, time_text(at)))
    return fresh, True


def redeem(db: sqlite3.Connection, channel: str, code: str, at: datetime) -> str | None:
    found = db.execute(
        "SELECT user_id FROM pairing WHERE channel = ? AND code = ? AND created_at >= ?",
        (channel, code, time_text(at - CODE_LASTS)),
    ).fetchone()
    if found is None:
        return None
    allow(db, channel, found[0], at)
    return str(found[0])


def count(db: sqlite3.Connection, name: str, by: int) -> None:
    db.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        (name, by),
    )


def save_model_fact(db: sqlite3.Connection, model: str, fact: ModelFact) -> None:
    db.execute("INSERT OR REPLACE INTO model_facts VALUES (?, ?, ?)", (model, fact.ratio, fact.limit))


def _take_event(db: sqlite3.Connection, event_keys: Sequence[str], at: str) -> bool:
    """All keys or none: any one that was seen means that the event was."""
    for key in event_keys:
        if db.execute("SELECT 1 FROM events WHERE event_key = ?", (key,)).fetchone():
            return False
    db.executemany("INSERT OR IGNORE INTO events VALUES (?, ?)", [(key, at) for key in event_keys])
    return True


def _touch_session(db: sqlite3.Connection, place: Place, at: str) -> None:
    db.execute(
        "INSERT INTO sessions (session_id, channel, place, created_at, last_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET place = excluded.place,"
        " last_at = max(last_at, excluded.last_at)",
        (place.session_id, place.channel, place_text(place), at, at),
    )


def _insert_message(
    db: sqlite3.Connection, place: Place, request_id: str, origin: str, message: str, at: str
) -> int:
    row = db.execute(
        "INSERT INTO messages (session_id, request_id, origin, message, created_at)"
        " VALUES (?, ?, ?, ?, ?) RETURNING id",
        (place.session_id, request_id, origin, message, at),
    ).fetchone()
    return int(row[0])


def _set_outgoing(db: sqlite3.Connection, row_id: int, posted: Sequence[str], *, uncertain: bool) -> None:
    db.execute(
        "UPDATE outbox SET outgoing = json_set(outgoing, '$.posted', json(?), '$.uncertain', json(?))"
        " WHERE id = ?",
        (json_text(list(posted)), json_text(uncertain), row_id),
    )
