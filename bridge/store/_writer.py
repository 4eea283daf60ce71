"""Group commit: writes that arrive together share one transaction, one thread hop and one flush of the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import aiosqlite

from bridge.errors import StoreError
from bridge.store._connection import call, told_as

T = TypeVar("T")

QUEUE_LIMIT = 1024
BATCH_LIMIT = 256

Body = Callable[[sqlite3.Connection], object]


@dataclass(frozen=True, slots=True)
class _Write:
    body: Body
    done: asyncio.Future[object]


class GroupWriter:
    """Owns the writing connection and the one task that uses it. `commits` counts transactions."""

    def __init__(self, connection: aiosqlite.Connection, path: Path) -> None:
        self.commits = 0
        self._connection = connection
        self._path = path
        self._queue: asyncio.Queue[_Write | None] = asyncio.Queue(QUEUE_LIMIT)
        self._closed = False
        self._task = asyncio.create_task(self._work(), name="store writer")

    async def write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Runs the body in a transaction and returns after its commit. Raises StoreError; then nothing of this
        body was written. A caller that is cancelled leaves the write going on."""
        if self._closed:
            raise StoreError("the store is closed")
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Write(body, done))
        return cast("T", await done)

    async def close(self) -> None:
        """After everything that waits was written."""
        if not self._closed:
            self._closed = True
            await self._queue.put(None)
        await self._task

    async def _work(self) -> None:
        closing = False
        while not closing:
            batch = [await self._queue.get()]
            while len(batch) < BATCH_LIMIT and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            closing = None in batch
            writes = [write for write in batch if write is not None]
            if writes:
                await self._write_all(writes)

    async def _write_all(self, writes: list[_Write]) -> None:
        try:
            with told_as(StoreError, self._path):
                outcomes = await call(self._connection, _transaction, [write.body for write in writes])
        except StoreError as error:
            outcomes = [error] * len(writes)
        self.commits += 1
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.done.done():  # its caller was cancelled
                continue
            if isinstance(outcome, sqlite3.Error):
                write.done.set_exception(_told(outcome, self._path))
            elif isinstance(outcome, Exception):
                write.done.set_exception(outcome)
            else:
                write.done.set_result(outcome)


def _transaction(db: sqlite3.Connection, bodies: list[Body]) -> list[object]:
    """Results of the bodies, or the exception of each that failed, which undid that one alone."""
    db.execute("BEGIN IMMEDIATE")
    try:
        outcomes: list[object] = [_guarded(db, body) for body in bodies]
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return outcomes


def _guarded(db: sqlite3.Connection, body: Body) -> object:
    db.execute("SAVEPOINT write")
    try:
        result = body(db)
    # Whatever a body raises is its own caller's to hear, not the others'.
    except Exception as error:
        if not db.in_transaction:  # disk full and the like end the whole transaction
            raise
        db.execute("ROLLBACK TO write")
        result = error
    db.execute("RELEASE write")
    return result


def _told(error: sqlite3.Error, path: Path) -> StoreError:
    try:
        with told_as(StoreError, path):
            raise error
    except StoreError as told:
        return told
