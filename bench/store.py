"""The store: durable messages a second, and what a large file costs. `python -m bench.store`."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import structlog

from agent.messages import assistant_message, text_block, user_message
from bench._common import quantile, table
from bridge.ports import ContextMark, FinishedRun, NewRequest
from bridge.store import _writes
from bridge.store.sqlite import SqliteStore
from channels.base import Outgoing, Place, Sender

SENDER = Sender("7", "Somebody")
AT_ONCE = 64
WRITES = 1280
ROUNDS = 3
STORED = 100_000
LONG_SESSION = 10_000
LONG_PLACE = Place("bench", "long")


def requests(places: int) -> Iterator[NewRequest]:
    for n in count():
        place = Place("bench", str(n % places))
        text = user_message(text_block(f"message {n} " + "word " * 40))
        yield NewRequest(f"r{n}", (f"bench:{n}",), place, SENDER, text, datetime.now(UTC), str(n))


async def accepts(path: Path, at_once: int, writes: int) -> tuple[float, float, float]:
    """Durable accepts a second, messages a commit, and CPU microseconds a message, with so many callers."""
    store = await SqliteStore.open(path)
    waiting = requests(AT_ONCE)

    async def caller(number: int) -> None:
        for _ in range(number):
            await store.accept(next(waiting))

    before, cpu, commits = time.monotonic(), time.process_time(), store.commits
    await asyncio.gather(*(caller(writes // at_once) for _ in range(at_once)))
    seconds, cpu = time.monotonic() - before, time.process_time() - cpu
    shared = writes / (store.commits - commits)
    await store.close()
    return writes / seconds, shared, cpu / writes * 1e6


def finished(request: NewRequest) -> FinishedRun:
    answer = [assistant_message(text_block("word " * 80))]
    reply = Outgoing(request.place, "word " * 80)
    return FinishedRun((request.request_id,), request.place, answer, reply, ContextMark(), datetime.now(UTC))


async def finishes(path: Path) -> float:
    """CPU microseconds for the end of a run, with 64 ending at once."""
    store = await SqliteStore.open(path)
    stream = requests(AT_ONCE)
    new = [next(stream) for _ in range(WRITES)]
    await asyncio.gather(*(store.accept(request) for request in new))
    cpu = time.process_time()
    for start in range(0, WRITES, AT_ONCE):
        await asyncio.gather(*(store.finish(finished(request)) for request in new[start : start + AT_ONCE]))
    cpu = time.process_time() - cpu
    await store.close()
    return cpu / WRITES * 1e6


def fill(path: Path) -> None:
    """100,000 messages in 900 sessions and a long one; the last 50 requests unfinished, 50 replies unsent."""
    stream = requests(900)
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        for n in range(STORED // 2):
            request = next(stream)
            if n < LONG_SESSION // 2:
                request = NewRequest(
                    *(request.request_id, request.event_keys, LONG_PLACE, SENDER, request.message),
                    request.received_at,
                )
            _writes.accept(db, request)
            if n < STORED // 2 - 50:
                row = _writes.finish(db, finished(request))
                if row is not None and n < STORED // 2 - 100:
                    _writes.sent(db, row.id, ("1",), datetime.now(UTC))
        db.commit()


async def opening(path: Path) -> tuple[float, float]:
    """Seconds to open with what recovery reads, and to read the long session."""
    before = time.monotonic()
    store = await SqliteStore.open(path)
    assert len(await store.unfinished()) == 50
    assert len(await store.outbox()) == 50
    opened = time.monotonic() - before
    before = time.monotonic()
    session = await store.session(LONG_PLACE.session_id)
    read = time.monotonic() - before
    assert session is not None
    assert len(session.messages) == LONG_SESSION
    await store.close()
    return opened, read


async def measure(folder: Path) -> list[tuple[str, str]]:
    names = (folder / f"{n}.sqlite3" for n in count())
    pairs = [
        (await accepts(next(names), 1, WRITES // 4), await accepts(next(names), AT_ONCE, WRITES))
        for _ in range(ROUNDS)
    ]
    ratios = [together[0] / alone[0] for alone, together in pairs]
    ratio = quantile(ratios, 0.5)
    (alone, _, alone_cpu), (together, shared, cpu) = pairs[ratios.index(ratio)]
    finish_cpu = await finishes(next(names))
    large = next(names)
    await (await SqliteStore.open(large)).close()
    await asyncio.to_thread(fill, large)
    opened, read = zip(*[await opening(large) for _ in range(ROUNDS)], strict=True)
    return [
        ("durable accepts, one commit each", f"{alone:,.0f}/s, {alone_cpu:.0f} µs CPU each"),
        (
            f"durable accepts, {AT_ONCE} at once",
            f"{together:,.0f}/s, {shared:.0f} a commit, {cpu:.0f} µs CPU each; ratio {ratio:.1f} (target ≥ 5)",
        ),
        (f"ends of runs, {AT_ONCE} at once", f"{finish_cpu:.0f} µs CPU each"),
        (
            f"open with {STORED:,} messages",
            f"{quantile(opened, 0.5):.3f} s with what is unfinished and unsent (target < 1.5)",
        ),
        (f"read a session of {LONG_SESSION:,} messages", f"{quantile(read, 0.5):.3f} s"),
    ]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder)))
    table(rows)


if __name__ == "__main__":
    main()
