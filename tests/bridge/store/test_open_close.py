"""From the first look at the file to the last thread: what is refused is left alone, and what is closed is closed."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.errors import StoreError, StoreUnusable
from bridge.lock import DirectoryLock
from bridge.store import _connection, _reads
from bridge.store.sqlite import SqliteStore
from channels.base import OutFile, Outgoing
from tests.bridge.store.making import HERE, NOON, answered, asked
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path)
    yield opened
    await opened.close()


def database_threads() -> list[str]:
    """Threads of aiosqlite: each would keep the process from ending."""
    return [thread.name for thread in threading.enumerate() if "_connection_worker_thread" in thread.name]


def contents(*paths: Path) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def killed_with_a_wal(path: Path, *statements: str) -> None:
    """Leaves a file whose last changes are in its WAL only, as a killed process does."""
    code = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode = WAL')\n"
        "for statement in sys.argv[2:]: db.execute(statement)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), *statements])
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("statements", "line"),
    [
        (["CREATE TABLE later (x)", "PRAGMA user_version = 99"], "made by a newer steadybot"),
        (["CREATE TABLE photos (name)"], "another program"),
    ],
)
async def test_what_is_refused_keeps_its_wal_as_it_was(path: Path, statements: list[str], line: str) -> None:
    killed_with_a_wal(path, *statements)
    wal = path.with_name(f"{path.name}-wal")
    before = contents(path, wal)
    assert before[1]
    with pytest.raises(StoreUnusable, match=line):
        await SqliteStore.open(path)
    assert contents(path, wal) == before
    await until(lambda: not database_threads())


async def test_what_a_killed_process_left_in_the_wal_is_there(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.close()
    killed_with_a_wal(path, "INSERT INTO counters VALUES ('n', 7)")
    store = await SqliteStore.open(path)
    assert await store.counters() == {"n": 7}
    await store.close()
    assert [item.name for item in path.parent.iterdir()] == [path.name]


async def test_a_close_that_is_cancelled_still_closes(path: Path, store: SqliteStore) -> None:
    writes = [asyncio.create_task(store.count("n")) for _ in range(20)]
    await asyncio.sleep(0)
    closing_store = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing_store.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing_store
    with pytest.raises(StoreError, match="closed"):
        await store.count("late")
    await asyncio.gather(*writes)
    await store.close()
    await until(lambda: not database_threads())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT value FROM counters").fetchall() == [(20,)]


async def test_a_writer_that_was_cancelled_is_no_reason_to_stay_open(store: SqliteStore) -> None:
    store._writer._task.cancel()
    await asyncio.wait({store._writer._task})
    with pytest.raises(StoreError, match="closed"):
        await store.count("n")
    await store.close()
    await until(lambda: not database_threads())


async def test_a_reading_is_of_one_moment(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.count("n")
    between = threading.Event()
    written = threading.Event()
    counted: list[dict[str, int]] = []

    def twice(db: sqlite3.Connection, session_id: str) -> None:
        counted.append(counters(db))
        between.set()
        assert written.wait(20)
        counted.append(counters(db))

    counters = _reads.counters
    monkeypatch.setattr(_reads, "session", twice)
    reading = asyncio.create_task(store.session(HERE.session_id))
    await until(between.is_set)
    await store.count("n")
    written.set()
    await reading
    assert counted == [{"n": 1}, {"n": 1}]
    assert await store.counters() == {"n": 2}


async def test_json_that_is_nested_without_end_is_a_damaged_row(path: Path, store: SqliteStore) -> None:
    new = asked("before")
    await store.accept(new)
    await store.finish(answered(new))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE messages SET message = ? WHERE origin = 'user'", ("[" * 100_000,))
    assert [row.origin for row in await store.history(HERE.session_id)] == ["run"]


async def test_what_was_sent_is_kept_without_its_files(path: Path, store: SqliteStore) -> None:
    file = OutFile("history.md", "text/markdown", b"x" * 50_000)
    row = await store.enqueue(Outgoing(HERE, "your history", files=(file,)), NOON)
    await store.retry(row.id, NOON, [], uncertain=True)
    assert [waiting.outgoing.files for waiting in await store.outbox()] == [(file,)]
    await store.sent(row.id, ["9"], NOON)
    with closing(sqlite3.connect(path)) as db:
        state, outgoing = db.execute("SELECT state, outgoing FROM outbox").fetchone()
    assert state == "sent"
    assert "your history" in outgoing
    assert len(outgoing) < 500


def test_a_migration_without_its_last_semicolon_is_no_migration() -> None:
    assert list(_connection._statements("CREATE TABLE a (x);\n\n-- the end\n")) == ["CREATE TABLE a (x);\n"]
    with pytest.raises(ValueError, match="CREATE TABLE b"):
        list(_connection._statements("CREATE TABLE a (x);\nCREATE TABLE b (x)\n"))


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(path)
    await store.count("n")
    await store.close()
    steps = _connection.migrations()
    monkeypatch.setattr(
        _connection, "migrations", lambda: [*steps, "CREATE TABLE fresh (x);\nINSERT INTO missing VALUES (1);\n"]
    )
    with pytest.raises(StoreUnusable, match="no such table: missing"):
        await SqliteStore.open(path)
    await until(lambda: not database_threads())
    monkeypatch.undo()
    store = await SqliteStore.open(path)
    assert await store.counters() == {"n": 1}
    await store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'fresh'").fetchone() == (0,)


def test_a_file_system_without_locks_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StoreUnusable, match=r"can't be locked \(No locks available\)"), DirectoryLock(tmp_path):
        pass
