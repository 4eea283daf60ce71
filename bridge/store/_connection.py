"""Opening the database file: settings, migrations, and what its errors are called."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote

import aiosqlite
import structlog

from bridge.errors import StoreError, StoreUnusable

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""Seconds that a statement waits for another process (backup, `steadybot allow`) to let go of the file."""


async def connect(path: Path, *, read_only: bool = False) -> aiosqlite.Connection:
    """A connection with a thread of its own. Raises StoreUnusable."""
    uri = _uri(path, read_only=read_only)
    with told_as(StoreUnusable, path):
        if not read_only:
            await asyncio.to_thread(_refuse_others, path)
        # Tried first without aiosqlite: its thread outlives an opening that failed, and then speaks to a loop that
        # may be gone, with a traceback beside our one clear line.
        await asyncio.to_thread(lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT).close())
        # Transactions are begun by us: the driver's own would not cover savepoints.
        connection = await aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(connection.close)
            await call(connection, _prepare, read_only)
            undo.pop_all()
    return connection


def _uri(path: Path, *, read_only: bool) -> str:
    return f"file:{quote(str(path))}?mode={'ro' if read_only else 'rwc'}"


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Committed at the end; where it does not come to its end, or the commit fails, nothing was written."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


async def call(
    connection: aiosqlite.Connection,
    function: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Runs a function of the bare connection in the connection's thread.

    Each public await of aiosqlite is a thread hop; a transaction of ten statements would be ten. It has no public
    way to run a function there, so this one place uses the method that all its public ones are made of.
    """
    raw = connection._conn
    execute = cast("Callable[[Callable[[], T]], Awaitable[T]]", connection._execute)
    return await execute(partial(function, raw, *args, **kwargs))


@contextmanager
def told_as(kind: type[StoreError], path: Path) -> Iterator[None]:
    """SQLite's errors as one clear line each."""
    try:
        yield
    except sqlite3.Error as error:
        raise kind(_line(error, path)) from error


_KNOWN = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, nothing was written",
    sqlite3.SQLITE_BUSY: "another program holds the database; close it, nothing was written",
    sqlite3.SQLITE_NOTADB: "no SQLite file, or a damaged one; move it away or restore a backup",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; restore a backup",
    sqlite3.SQLITE_READONLY: "the database can't be written; look at its permissions",
    sqlite3.SQLITE_CANTOPEN: "can't be opened; look at its directory and permissions",
    sqlite3.SQLITE_IOERR: "the disk failed, or a limit on file sizes was met; look at the system's log",
}
"""By SQLite's primary result codes; an extended code holds its primary one in its low byte."""


def _line(error: sqlite3.Error, path: Path) -> str:
    known = _KNOWN.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return f"{path}: {known}" if known else f"{path}: the database refused: {error}"


def _prepare(db: sqlite3.Connection, read_only: bool) -> None:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    if read_only:
        # One text with a broken byte must not make its whole table unreadable.
        db.text_factory = partial(str, encoding="utf-8", errors="replace")
        return
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    _migrate(db, _version(db))
    # A file that may only be read opens without a word: this finds out now and not at the first message.
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _refuse_others(path: Path) -> None:
    """Raises StoreUnusable for a file that is not ours to write to; blocks.

    On a connection that can't write: one that can would fold a left-over WAL into the file on its way out, even
    into one that it refused.
    """
    if not os.path.isfile(path):  # unlike Path's, it raises nothing: opening tells better what is wrong
        return
    with closing(sqlite3.connect(_uri(path, read_only=True), uri=True, timeout=BUSY_TIMEOUT)) as db:
        version = _version(db)
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    known = len(migrations())
    if version > known:
        raise StoreUnusable(
            f"{path}: made by a newer steadybot (version {version}, this one knows {known}); upgrade it"
        )
    # A new file is empty; in one that has a version our tables are.
    if tables and not (version and {"messages", "inbox", "outbox"} <= tables):
        raise StoreUnusable(
            f"{path}: a SQLite database of another program; move it away or choose another data_dir"
        )


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """Brings the file from this version to the program's, each step in a transaction."""
    steps = migrations()
    for number in range(version + 1, len(steps) + 1):
        with transaction(db):
            # Another process may have done this step while we waited for the lock.
            if _version(db) < number:
                for statement in _statements(steps[number - 1]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")
        log.info("store.migrated", version=number)


def migrations() -> list[str]:
    """The SQL of all steps; the file NNN_*.sql is step NNN."""
    folder = files("bridge.store") / "migrations"
    found = sorted((item.name, item.read_text("utf-8")) for item in folder.iterdir() if item.name.endswith(".sql"))
    numbers = [int(name.split("_", 1)[0]) for name, _ in found]
    if numbers != list(range(1, len(found) + 1)):
        raise AssertionError(f"migrations are not numbered one by one: {numbers}")
    return [text for _, text in found]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script: executescript would commit the transaction that they belong in.

    Raises ValueError where the last one has no end.
    """
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in statement.splitlines()):
        raise ValueError(f"a statement without its semicolon: {statement.strip()}")
