"""A store in trouble: one clear line, nothing written over, and all goes on once the trouble is over."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.messages import text_block
from bridge.errors import StoreError, StoreUnusable
from bridge.lock import DirectoryLock
from bridge.store import _connection
from bridge.store._connection import call
from bridge.store.sqlite import SqliteStore
from channels.base import Outgoing, Place
from tests.bridge.store.making import HERE, NOON, answered, asked

LONG = "x" * 20_000
ELSEWHERE = Place("test", "2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as store:
        yield store


async def set_room(store: SqliteStore, pages: int) -> None:
    """How many pages the file may have; SQLite takes the present size where that is more."""
    await call(store._writing, lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())


def is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as db:
        return bool(db.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


def change(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, values)


async def test_a_full_disk_is_told_and_what_follows_works_once_there_is_room(
    path: Path, store: SqliteStore
) -> None:
    first = asked("before")
    await store.accept(first)
    await set_room(store, 1)
    with pytest.raises(StoreError, match=r"store\.sqlite3: the disk is full; free some space"):
        await store.accept(asked(LONG, keys=["k"]))
    with pytest.raises(StoreError, match="the disk is full"):
        await store.finish(answered(first, text=LONG))
    assert [request.request_id for request in await store.unfinished()] == [first.request_id]
    assert await store.outbox() == []
    await set_room(store, 1_000_000)
    assert await store.accept(asked(LONG, keys=["k"])) is not None
    assert await store.finish(answered(first, text=LONG)) is not None
    await store.close()
    assert is_sound(path)


def write_until_it_fails() -> None:
    """In a process of its own: fills the disk (or meets the limit), says what it heard, gets room, goes on."""
    import asyncio

    folder, kind = Path(sys.argv[1]), sys.argv[2]

    async def run() -> None:
        store = await SqliteStore.open(folder / "store.sqlite3")
        ballast = folder / "ballast"
        if kind == "full":
            ballast.write_bytes(b"x" * 400_000)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        stored = 0
        try:
            while True:
                await store.accept(asked(LONG))
                stored += 1
        except StoreError as error:
            sys.stdout.write(f"{error}\n")
        ballast.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.accept(asked("there is room again"))
        await store.close()
        async with opened(folder / "store.sqlite3") as again:
            lost = stored + 1 - len(await again.unfinished())
        sys.stdout.write(f"{lost} {is_sound(folder / 'store.sqlite3')}\n")

    asyncio.run(run())


def python(function: Callable[[], None], *arguments: str, before: str = "") -> list[str]:
    """The lines that the function prints in a process that may have a mount namespace of its own."""
    code = f"from tests.bridge.store.test_faults import {function.__name__} as f; f()"
    command = [sys.executable, "-c", code, *arguments]
    if before:
        command = ["unshare", "-m", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "store.migrated" not in line]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return done.returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs the right to mount")


@needs_mount
def test_a_disk_that_is_really_full_is_told_and_loses_nothing(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    line, end = python(write_until_it_fails, str(tmp_path), "full", before=mount)
    assert line.endswith("store.sqlite3: the disk is full; free some space, nothing was written")
    assert end == "0 True"


def test_a_limit_on_file_sizes_is_told_and_loses_nothing(tmp_path: Path) -> None:
    line, end = python(write_until_it_fails, str(tmp_path), "limit")
    assert "store.sqlite3: the disk failed, or a limit on file sizes was met" in line
    assert end == "0 True"


def open_what_is_read_only() -> None:
    import asyncio

    folder = Path(sys.argv[1])
    try:
        with DirectoryLock(folder):
            pass
    except StoreUnusable as error:
        sys.stdout.write(f"{error}\n")
    try:
        asyncio.run(SqliteStore.open(folder / "store.sqlite3"))
    except StoreUnusable as error:
        sys.stdout.write(f"{error}\n")


@needs_mount
@pytest.mark.parametrize("exists", [True, False])
async def test_a_read_only_file_system_is_told(tmp_path: Path, exists: bool) -> None:
    if exists:
        await (await SqliteStore.open(tmp_path / "store.sqlite3")).close()
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    lock, opened = python(open_what_is_read_only, str(tmp_path), before=mount)
    assert lock.endswith("can't be used (Read-only file system); choose another, or mend its permissions")
    assert "store.sqlite3: " in opened
    assert "look at its" in opened


async def test_a_database_that_another_program_holds_is_told_and_then_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "BUSY_TIMEOUT", 0.05)
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another program holds the database"):
                await store.accept(asked(keys=["k"]))
            assert await store.unfinished() == []  # reading goes on meanwhile
            other.execute("ROLLBACK")
        assert await store.accept(asked(keys=["k"])) is not None


def remains(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in path.parent.iterdir() if item.is_file()}


def foreign(path: Path) -> None:
    change(path, "CREATE TABLE photos (name TEXT)")


def numbered_foreign(path: Path) -> None:
    foreign(path)
    change(path, "PRAGMA user_version = 1")


def scribble(path: Path) -> None:
    path.write_text("dear diary, " * 1000)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (foreign, "a SQLite database of another program"),
        (numbered_foreign, "a SQLite database of another program"),
        (scribble, "no SQLite file, or a damaged one"),
        (Path.mkdir, "can't be opened"),
    ],
)
async def test_what_is_not_ours_is_refused_and_left_as_it_is(
    path: Path, make: Callable[[Path], None], line: str
) -> None:
    make(path)
    before = remains(path)
    with pytest.raises(StoreUnusable, match=line):
        await SqliteStore.open(path)
    assert remains(path) == before


def overwrite_the_messages(path: Path) -> None:
    """The first page of their table, as a disk with a bad block would."""
    with closing(sqlite3.connect(path)) as db:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)


async def test_damage_in_the_middle_is_told_and_the_rest_goes_on(path: Path, tmp_path: Path) -> None:
    async with opened(path) as store:
        for n in range(60):
            await store.accept(asked(f"{n} {LONG}"))
        await store.count("before")
    overwrite_the_messages(path)
    target = tmp_path / "copy"
    async with opened(path) as store:
        for broken in (lambda: store.history(HERE.session_id), lambda: store.accept(asked())):
            with pytest.raises(StoreError, match="the database is damaged; restore a backup"):
                await broken()
        with pytest.raises(StoreError, match="damaged"):
            await store.backup(str(target))
        await store.count("after")
        assert await store.counters() == {"before": 1, "after": 1}
    assert [item.name for item in remaining(tmp_path)] == [path.name]


def remaining(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        "{not json",
        "[]",
        "null",
        '{"role": "user"}',
        '{"role": "system", "content": "x"}',
        '{"role": "user", "content": 5}',
        '{"role": "user", "content": ["text"]}',
        '{"role": "user", "content": [{"type": "text"}]}',
        '{"role": "user", "content": [{"text": "x"}]}',
        b"\xff\xfe",
        "\x00",
    ],
)
async def test_a_damaged_message_is_passed_over_with_a_line_in_the_log(
    path: Path, store: SqliteStore, damage: str | bytes
) -> None:
    requests = [asked(str(n)) for n in range(3)]
    for request in requests:
        await store.accept(request)
        await store.finish(answered(request))
    waiting = [asked(str(n), ELSEWHERE) for n in range(3)]
    for request in waiting:
        await store.accept(request)
    for request in (requests[1], waiting[1]):
        change(
            path,
            "UPDATE messages SET message = CAST(? AS TEXT) WHERE request_id = ? AND origin = 'user'",
            damage,
            request.request_id,
        )
    with capture_logs() as logs:
        unfinished = await store.unfinished()
        session = await store.session(HERE.session_id)
        history = await store.history(HERE.session_id)
    assert [r.request_id for r in unfinished] == [waiting[0].request_id, waiting[2].request_id]
    assert session is not None
    assert [row.request_id for row in session.messages if row.origin == "user"] == [
        requests[0].request_id,
        requests[2].request_id,
    ]
    assert len(history) == 5
    assert {entry["event"] for entry in logs} == {"store.corrupt_request", "store.corrupt_message"}
    new = asked("goes on")
    assert await store.accept(new) is not None
    assert await store.finish(answered(new)) is not None


@pytest.mark.parametrize(
    ("column", "damage"),
    [
        ("sender", "{"),
        ("sender", '{"id": "1"}'),
        ("sender", "[]"),
        ("posted", "5"),
        ("posted", "{"),
        ("received_at", "yesterday"),
    ],
)
async def test_a_damaged_request_is_passed_over_with_a_line_in_the_log(
    path: Path, store: SqliteStore, column: str, damage: str
) -> None:
    requests = [asked(), asked()]
    for request in requests:
        await store.accept(request)
    change(path, f"UPDATE inbox SET {column} = ? WHERE request_id = ?", damage, requests[0].request_id)  # noqa: S608
    with capture_logs() as logs:
        assert [r.request_id for r in await store.unfinished()] == [requests[1].request_id]
    assert [entry["event"] for entry in logs] == ["store.corrupt_request"]


@pytest.mark.parametrize(
    ("column", "damage"),
    [("outgoing", "{"), ("outgoing", "{}"), ("outgoing", "[]"), ("not_before", "x"), ("created_at", "")],
)
async def test_a_damaged_reply_is_passed_over_with_a_line_in_the_log(
    path: Path, store: SqliteStore, column: str, damage: str
) -> None:
    first = await store.enqueue(Outgoing(HERE, "first"), NOON)
    second = await store.enqueue(Outgoing(HERE, "second"), NOON)
    change(path, f"UPDATE outbox SET {column} = ? WHERE id = ?", damage, first.id)  # noqa: S608
    with capture_logs() as logs:
        assert await store.outbox() == [second]
    assert [entry["event"] for entry in logs] == ["store.corrupt_reply"]
    if damage == "{":
        with pytest.raises(StoreError):
            await store.sent(first.id, ["p"], NOON)


async def test_a_damaged_session_is_mended_by_its_next_message(path: Path, store: SqliteStore) -> None:
    await store.accept(asked())
    await store.accept(asked(place=ELSEWHERE))
    change(path, "UPDATE sessions SET place = '{' WHERE session_id = ?", HERE.session_id)
    with capture_logs() as logs:
        assert [info.place for info in await store.sessions()] == [ELSEWHERE]
        assert [request.place for request in await store.unfinished()] == [ELSEWHERE]
    assert {entry["event"] for entry in logs} == {"store.corrupt_session", "store.corrupt_request"}
    with pytest.raises(StoreError, match="its row is damaged"):
        await store.session(HERE.session_id)
    await store.accept(asked())
    assert len(await store.sessions()) == 2
    assert len(await store.unfinished()) == 3


async def test_a_message_that_can_not_be_stored_harms_nobody_else(store: SqliteStore) -> None:
    odd = asked()
    odd.message["content"] = [text_block("x"), {"type": "image", "source": object()}]  # type: ignore[typeddict-item]
    with pytest.raises(TypeError):
        await store.accept(odd)
    assert await store.accept(asked()) is not None
    assert len(await store.unfinished()) == 1


def test_a_lock_is_taken_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with DirectoryLock(tmp_path), pytest.raises(StoreUnusable, match="in use"), DirectoryLock(tmp_path):
        pass
