"""The store on SQLite: one writer with shared commits, reads beside it (bridge-and-channels §1)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import aiosqlite

from bridge.errors import StoreError
from bridge.ports import (
    FinishedRun,
    ModelFact,
    NewRequest,
    OutboxRow,
    Request,
    RequestState,
    SessionInfo,
    StoredMessage,
    StoredSession,
)
from bridge.store import _reads, _writes
from bridge.store._connection import call, connect, told_as
from bridge.store._writer import GroupWriter
from channels.base import Outgoing

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """Implements bridge.ports.Store on one file."""

    def __init__(self, path: Path, writing: aiosqlite.Connection, reading: aiosqlite.Connection) -> None:
        """Use `SqliteStore.open`."""
        self._path = path
        self._writing = writing
        self._reading = reading
        self._writer = GroupWriter(writing, path)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path) -> SqliteStore:
        """Opens or makes the file and brings it to this version. Raises bridge.errors.StoreUnusable."""
        async with AsyncExitStack() as undo:
            writing = await connect(path)
            undo.push_async_callback(writing.close)
            reading = await connect(path, read_only=True)
            undo.pop_all()
        return cls(path, writing, reading)

    @property
    def commits(self) -> int:
        """Transactions so far; fewer than writes, where writes came together."""
        return self._writer.commits

    async def close(self) -> None:
        """After all that was begun. A caller that is cancelled leaves it going on; the next one waits for it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="store close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # Each connection is a thread that would keep the process from ending. The writing one goes last: the last
        # connection folds the WAL into the file.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._writing.close)
            stack.push_async_callback(self._reading.close)
            await self._writer.close()

    async def accept(self, request: NewRequest) -> int | None:
        return await self._write(_writes.accept, request)

    async def accept_event(self, event_keys: Sequence[str], at: datetime) -> bool:
        return await self._write(_writes.accept_event, event_keys, at)

    async def accept_answered(self, event_keys: Sequence[str], at: datetime, reply: Outgoing) -> OutboxRow | None:
        return await self._write(_writes.accept_answered, event_keys, at, reply)

    async def start(self, request_ids: Sequence[str]) -> None:
        await self._write(_writes.start, request_ids)

    async def count_effect(self, request_id: str) -> None:
        await self._write(_writes.count_effect, request_id)

    async def note_posted(self, request_id: str, posted: Sequence[str]) -> None:
        await self._write(_writes.note_posted, request_id, posted)

    async def finish(self, run: FinishedRun) -> OutboxRow | None:
        return await self._write(_writes.finish, run)

    async def set_state(self, request_ids: Sequence[str], state: RequestState) -> None:
        await self._write(_writes.set_state, request_ids, state)

    async def unfinished(self) -> Sequence[Request]:
        return await self._read(_reads.unfinished)

    async def session(self, session_id: str) -> StoredSession | None:
        return await self._read(_reads.session, session_id)

    async def knows(self, session_id: str) -> bool:
        return await self._read(_reads.knows, session_id)

    async def new_context(self, session_id: str) -> None:
        await self._write(_writes.new_context, session_id)

    async def set_summary(self, session_id: str, summary: str, turns: int) -> None:
        await self._write(_writes.set_summary, session_id, summary, turns)

    async def history(self, session_id: str) -> Sequence[StoredMessage]:
        return await self._read(_reads.history, session_id)

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._read(_reads.sessions)

    async def purge_before(self, at: datetime) -> int:
        return await self._write(_writes.purge_before, at)

    async def enqueue(self, outgoing: Outgoing, at: datetime) -> OutboxRow:
        return await self._write(_writes.enqueue, outgoing, at)

    async def outbox(self) -> Sequence[OutboxRow]:
        return await self._read(_reads.outbox)

    async def sent(self, row_id: int, posted: Sequence[str], at: datetime) -> None:
        await self._write(_writes.sent, row_id, posted, at)

    async def retry(self, row_id: int, not_before: datetime, posted: Sequence[str], *, uncertain: bool) -> None:
        await self._write(_writes.retry, row_id, not_before, posted, uncertain=uncertain)

    async def give_up(self, row_id: int, why: str) -> None:
        await self._write(_writes.give_up, row_id, why)

    async def allow(self, channel: str, user_id: str, at: datetime) -> None:
        await self._write(_writes.allow, channel, user_id, at)

    async def disallow(self, channel: str, user_id: str) -> bool:
        return await self._write(_writes.disallow, channel, user_id)

    async def allowed(self, channel: str) -> frozenset[str]:
        return await self._read(_reads.allowed, channel)

    async def pairing_code(self, channel: str, user_id: str, fresh: str, at: datetime) -> tuple[str, bool]:
        return await self._write(_writes.pairing_code, channel, user_id, fresh, at)

    async def redeem(self, channel: str, code: str, at: datetime) -> str | None:
        return await self._write(_writes.redeem, channel, code, at)

    async def count(self, name: str, by: int = 1) -> None:
        await self._write(_writes.count, name, by)

    async def counters(self) -> Mapping[str, int]:
        return await self._read(_reads.counters)

    async def model_facts(self) -> Mapping[str, ModelFact]:
        return await self._read(_reads.model_facts)

    async def save_model_fact(self, model: str, fact: ModelFact) -> None:
        await self._write(_writes.save_model_fact, model, fact)

    async def backup(self, target: str) -> None:
        self._must_be_open()
        path = Path(target)
        # A connection of its own: a large copy must not hold up the reads.
        copying = await connect(self._path, read_only=True)
        try:
            with told_as(StoreError, path):
                made = await call(copying, _reads.copy_into, path)
        except OSError as error:
            raise StoreError(f"{path}: can't be written ({error.strerror})") from error
        finally:
            await copying.close()
        if not made:
            raise StoreError(f"{path}: exists already; name another file")

    async def _write(
        self,
        body: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        self._must_be_open()
        return await self._writer.write(lambda db: body(db, *args, **kwargs))

    async def _read(
        self, body: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._must_be_open()
        with told_as(StoreError, self._path):
            return await call(self._reading, _at_one_moment, lambda db: body(db, *args, **kwargs))

    def _must_be_open(self) -> None:
        if self._closing is not None:
            raise StoreError("the store is closed")


def _at_one_moment(db: sqlite3.Connection, body: Callable[[sqlite3.Connection], T]) -> T:
    """In one read transaction, so that a commit between two statements of the body is not half seen."""
    db.execute("BEGIN")
    try:
        return body(db)
    finally:
        db.execute("ROLLBACK")
