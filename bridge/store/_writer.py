"""Group commit: writes that arrive together share one transaction, one thread hop and one flush of the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import aiosqlite

from bridge.errors import StoreError
from bridge.store._connection import call, told_as, transaction

T = TypeVar("T")

WAITING_LIMIT = 1024
"""Writes that wait at once; more callers wait for room."""

BATCH_LIMIT = 256
"""Writes in one transaction, so that nobody waits for a very long one."""

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
        self._waiting: deque[_Write] = deque()
        self._room = asyncio.Semaphore(WAITING_LIMIT)
        self._woken = asyncio.Event()
        self._closed = False
        self._task = asyncio.create_task(self._work(), name="store writer")

    async def write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Runs the body in a transaction and returns after its commit. Raises StoreError; then nothing of this
        body was written. A caller that is cancelled leaves the write going on."""
        async with self._room:
            if self._closed or self._task.done():
                raise StoreError("the store is closed")
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Write(body, done))
            self._woken.set()
            return cast("T", await done)

    async def close(self) -> None:
        """After everything that waits was written."""
        self._closed = True
        self._woken.set()
        # Not the task itself: where it was cancelled, the connections must be closed all the same.
        await asyncio.wait({self._task})

    async def _work(self) -> None:
        while self._waiting or not self._closed:
            if self._waiting:
                size = min(len(self._waiting), BATCH_LIMIT)
                await self._write_all([self._waiting.popleft() for _ in range(size)])
            else:
                self._woken.clear()
                await self._woken.wait()

    async def _write_all(self, writes: list[_Write]) -> None:
        outcomes: Sequence[object]
        try:
            with told_as(StoreError, self._path):
                outcomes = await call(self._connection, _transaction, [write.body for write in writes])
            self.commits += 1
        except StoreError as error:
            outcomes = [error] * len(writes)
        # aiosqlite's word for a connection whose thread has ended; the callers must not wait for ever.
        except ValueError as error:
            outcomes = [StoreError(f"{self._path}: {error}")] * len(writes)
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
    with transaction(db):
        return [_guarded(db, body) for body in bodies]


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
