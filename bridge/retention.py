"""Deletes what is older than `retention_days`, once at start and then daily. Off unless configured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog

from bridge.errors import StoreError
from bridge.ports import Store

log = structlog.get_logger()

DAY = 86400.0
LATE = 3600
"""Seconds by which a daily run may be late (a sleeping machine) and is still made."""


@asynccontextmanager
async def retention(store: Store, days: int | None, every: float = DAY) -> AsyncIterator[None]:
    """Runs while it is entered, `every` so many seconds."""
    if days is None:
        yield
        return
    # Imported here: most bots keep everything.
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    scheduler = AsyncIOScheduler(timezone=UTC)
    scheduler.add_job(purge, "interval", (store, days), seconds=every, misfire_grace_time=LATE, coalesce=True)
    await purge(store, days)
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=False)


async def purge(store: Store, days: int) -> None:
    """One round; a store in trouble is told in the log, and tomorrow is another day."""
    try:
        gone = await store.purge_before(datetime.now(UTC) - timedelta(days=days))
    except StoreError as error:
        log.warning("retention.failed", error=str(error))
    else:
        log.info("retention.purged", messages=gone, days=days)
