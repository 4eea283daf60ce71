"""Group commit: what comes together is written together, and each caller hears of its own write only."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.errors import StoreError
from bridge.store import _writer
from bridge.store.sqlite import SqliteStore
from channels.base import Place
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


class Gate:
    """Holds the writer's thread inside a transaction until it is opened."""

    def __init__(self, store: SqliteStore) -> None:
        self.inside = threading.Event()
        self.opened = threading.Event()
        self.task = asyncio.create_task(store._writer.write(self._hold))

    def _hold(self, db: sqlite3.Connection) -> None:
        self.inside.set()
        assert self.opened.wait(20)


async def test_writes_that_come_together_share_commits(store: SqliteStore) -> None:
    before = store.commits
    ids = await asyncio.gather(*(store.accept(asked(place=Place("test", str(n)))) for n in range(64)))
    assert len(set(ids)) == 64
    assert store.commits - before <= 3
    assert len(await store.unfinished()) == 64


async def test_one_event_that_comes_many_times_at_once_is_taken_once(store: SqliteStore) -> None:
    ids = await asyncio.gather(*(store.accept(asked(keys=["same"])) for _ in range(64)))
    assert sum(found is not None for found in ids) == 1
    assert len(await store.unfinished()) == 1


async def test_one_run_that_ends_many_times_at_once_ends_once(store: SqliteStore) -> None:
    new = asked()
    await store.accept(new)
    rows = await asyncio.gather(*(store.finish(answered(new)) for _ in range(8)))
    assert sum(row is not None for row in rows) == 1
    assert len(await store.history(HERE.session_id)) == 2


@pytest.mark.parametrize("failure", [sqlite3.IntegrityError("no"), RuntimeError("a bug"), KeyError("k")])
async def test_a_write_that_fails_undoes_itself_alone_and_its_caller_alone_hears_it(
    store: SqliteStore, failure: Exception
) -> None:
    def half(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO counters VALUES ('half', 1)")
        raise failure

    before = store.commits
    gate = Gate(store)
    await until(gate.inside.is_set)
    first = asyncio.create_task(store.count("a"))
    failing = asyncio.create_task(store._writer.write(half))
    last = asyncio.create_task(store.count("b"))
    await asyncio.sleep(0)
    gate.opened.set()
    await gate.task
    await first
    with pytest.raises(StoreError if isinstance(failure, sqlite3.Error) else type(failure)):
        await failing
    await last
    assert await store.counters() == {"a": 1, "b": 1}
    assert store.commits - before == 2


async def test_a_fault_that_ends_the_whole_transaction_is_told_to_all_in_it(store: SqliteStore) -> None:
    def ends_it(db: sqlite3.Connection) -> None:
        db.execute("ROLLBACK")  # as SQLite does by itself for some faults of the disk
        raise sqlite3.OperationalError("the disk is gone")

    gate = Gate(store)
    await until(gate.inside.is_set)
    together = [
        asyncio.create_task(call) for call in (store.count("a"), store._writer.write(ends_it), store.count("b"))
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    await gate.task
    for outcome in await asyncio.gather(*together, return_exceptions=True):
        assert isinstance(outcome, StoreError)
        assert "the disk is gone" in str(outcome)
    await store.count("c")
    assert await store.counters() == {"c": 1}


async def test_a_caller_that_is_cancelled_leaves_its_write_and_the_writer_going(store: SqliteStore) -> None:
    gate = Gate(store)
    await until(gate.inside.is_set)
    given_up = asyncio.create_task(store.accept(asked("given up")))
    stays = asyncio.create_task(store.accept(asked("stays")))
    await asyncio.sleep(0)
    given_up.cancel()
    gate.task.cancel()
    gate.opened.set()
    assert await stays is not None
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert len(await store.unfinished()) == 2


async def test_closing_writes_what_waits(path: Path, store: SqliteStore) -> None:
    gate = Gate(store)
    await until(gate.inside.is_set)
    waiting = [asyncio.create_task(store.count("n")) for _ in range(600)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="closed"):
        await store.count("late")
    gate.opened.set()
    await asyncio.gather(closing, *waiting)
    again = await SqliteStore.open(path)
    assert await again.counters() == {"n": 600}
    await again.close()


async def test_after_close_everything_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    await store.close()
    await store.close()
    for call in (
        store.accept(asked()),
        store.count("n"),
        store.unfinished(),
        store.backup(str(tmp_path / "copy")),
    ):
        with pytest.raises(StoreError, match="closed"):
            await call
    assert not await asyncio.to_thread((tmp_path / "copy").exists)


async def test_more_callers_than_there_is_room_for_wait_and_none_waits_for_ever(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._writer._room = asyncio.Semaphore(8)
    monkeypatch.setattr(_writer, "BATCH_LIMIT", 4)
    gate = Gate(store)
    await until(gate.inside.is_set)
    callers = [asyncio.create_task(store.count("n")) for _ in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    gate.opened.set()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        await closing
    assert {type(outcome) for outcome in outcomes} == {type(None), StoreError}


async def test_a_dead_connection_is_told_to_each_caller(store: SqliteStore) -> None:
    await store._writing.close()
    for _ in range(2):
        with pytest.raises(StoreError):
            await store.accept_event(["k"], NOON)
