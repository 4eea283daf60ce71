"""Delivery of final replies from the outbox: in order for each place, tried until they arrive or never can."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import structlog

from bridge.errors import StoreError
from bridge.metrics import Metrics
from bridge.ports import OutboxRow, Store
from channels.base import Channel, Outgoing, Place, TryLater, Undeliverable

log = structlog.get_logger()

MAX_ATTEMPTS = 20
"""Tries before a reply is set aside and reported; with the waits below that is about a day and a half."""

FIRST_DELAY, LONGEST_DELAY = 2.0, 7200.0
"""Seconds before the first and, doubled each time, before the later tries where the platform names no time."""


def delay_before(attempt: int, named: float | None, jitter: Callable[[], float] = random.random) -> float:
    """Seconds to wait before try `attempt` + 1; what the platform named wins."""
    if named is not None:
        return named
    return min(FIRST_DELAY * 2.0 ** min(attempt, 30), LONGEST_DELAY) * (1 + 0.2 * jitter())


class Delivery:
    """Owns one task for each place that has replies to deliver."""

    def __init__(self, store: Store, channels: Mapping[str, Channel], metrics: Metrics) -> None:
        self._store = store
        self._channels = channels
        self._metrics = metrics
        self._waiting: dict[Place, deque[OutboxRow]] = {}
        self._tasks: dict[Place, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    def is_delivering(self, place: Place) -> bool:
        return place in self._tasks

    def totals(self) -> int:
        return sum(len(rows) for rows in self._waiting.values())

    def put(self, row: OutboxRow) -> None:
        """Hands over a row that is in the store; it is not lost if this process ends."""
        place = row.outgoing.place
        if place.channel not in self._channels:
            log.warning("delivery.channel_off", channel=place.channel, row=row.id)
            return
        self._waiting.setdefault(place, deque()).append(row)
        if place not in self._tasks and not self._closing.is_set():
            self._tasks[place] = asyncio.create_task(self._work(place), name=f"delivery {place.session_id}")

    def put_unstored(self, outgoing: Outgoing) -> None:
        """For words that must reach the user although the store takes nothing: tried as others are, but kept in
        memory only."""
        now = datetime.now(UTC)
        self.put(OutboxRow(-1, None, outgoing, 0, now, now))

    async def drain(self, grace: float) -> None:
        """Waits `grace` seconds for what can go out now; what waits for a later try stays in the store."""
        self._closing.set()
        tasks = list(self._tasks.values())
        if not tasks:
            return
        _, unfinished = await asyncio.wait(tasks, timeout=grace)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    async def _work(self, place: Place) -> None:
        rows = self._waiting[place]
        try:
            while rows:
                await self._deliver(rows[0])
                rows.popleft()
        finally:
            del self._tasks[place]
            del self._waiting[place]

    async def _deliver(self, row: OutboxRow) -> None:
        """Until it has arrived or is given up, or until a later try meets the shutdown."""
        # A clock that jumped back must not hold a reply for years.
        wait = min((row.not_before - datetime.now(UTC)).total_seconds(), LONGEST_DELAY)
        outgoing, attempt = row.outgoing, row.attempts
        while True:
            if wait > 0 and await self._closes_within(wait):
                return
            attempt += 1
            try:
                with self._metrics.timed("delivery"):
                    posted = await self._channels[outgoing.place.channel].deliver(outgoing)
            except TryLater as error:
                if attempt >= MAX_ATTEMPTS:
                    await self._give_up(row, str(error))
                    return
                wait = delay_before(attempt, error.after)
                log.info("delivery.retry", row=row.id, attempt=attempt, seconds=round(wait, 1), error=str(error))
                outgoing = _again(outgoing, uncertain=error.uncertain)
                await self._note_retry(row, outgoing, wait)
            except Undeliverable as error:
                await self._give_up(row, str(error))
                return
            # The border to the platform's SDK: an error it was not expected to raise must not block the place.
            except Exception as error:
                log.exception("delivery.crashed", row=row.id)
                await self._give_up(row, type(error).__name__)
                return
            else:
                await self._note_sent(row, posted)
                return

    async def _closes_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _note_sent(self, row: OutboxRow, posted: tuple[str, ...]) -> None:
        self._metrics.count("delivery.sent")
        if row.id < 0:
            return
        try:
            await self._store.sent(row.id, posted, datetime.now(UTC))
        except StoreError as error:
            log.error("delivery.not_noted", row=row.id, error=str(error))

    async def _note_retry(self, row: OutboxRow, outgoing: Outgoing, wait: float) -> None:
        self._metrics.count("delivery.retry")
        if row.id < 0:
            return
        due = datetime.now(UTC) + timedelta(seconds=wait)
        try:
            await self._store.retry(row.id, due, outgoing.posted, uncertain=outgoing.uncertain)
        except StoreError as error:
            log.error("delivery.not_noted", row=row.id, error=str(error))

    async def _give_up(self, row: OutboxRow, why: str) -> None:
        log.warning("delivery.given_up", row=row.id, place=row.outgoing.place.session_id, why=why)
        self._metrics.count("delivery.given_up")
        if row.id < 0:
            return
        try:
            await self._store.give_up(row.id, why)
        except StoreError as error:
            log.error("delivery.not_noted", row=row.id, error=str(error))


def _again(outgoing: Outgoing, *, uncertain: bool) -> Outgoing:
    return Outgoing(
        outgoing.place,
        outgoing.text,
        outgoing.posted,
        outgoing.uncertain or uncertain,
        outgoing.reply_to,
        outgoing.files,
    )
