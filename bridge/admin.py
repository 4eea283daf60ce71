"""What the command line does on the store beside a running bot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from bridge.errors import SteadybotError
from bridge.export import Format, export
from bridge.settings import Settings
from bridge.store.sqlite import SqliteStore


@asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[SqliteStore]:
    from bridge.app import DATABASE

    path = Path(settings.data_dir) / DATABASE
    if not path.exists():
        raise SteadybotError(f"there is no database at {path} yet; start the bot once, or give -c with its config")
    store = await SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.close()


async def allow(settings: Settings, channel: str, code: str, at: datetime) -> str:
    """Lets a person in and says who. Raises SteadybotError for a code that nobody has."""
    async with _store(settings) as store:
        user_id = await store.redeem(channel, code.strip().upper(), at)
        if user_id is not None:
            return f"{channel}: {user_id} may talk to the bot now"
        if channel == "telegram" and not code.isdigit():
            raise SteadybotError(
                f'no pairing code "{code}" for {channel}; it lasts a day, then writing to the bot gives a new one'
            )
        await store.allow(channel, code, at)
        return f"{channel}: {code} may talk to the bot now"


async def list_sessions(settings: Settings) -> list[str]:
    async with _store(settings) as store:
        return [
            f"{info.place.session_id}  {info.messages} messages, last {info.last_at:%Y-%m-%d %H:%M}"
            for info in await store.sessions()
        ]


async def export_session(settings: Settings, session_id: str, form: Format) -> str:
    """Raises SteadybotError for a session that there is not."""
    async with _store(settings) as store:
        if not await store.knows(session_id):
            raise SteadybotError(f'no session "{session_id}"; `steadybot sessions` lists them')
        return export(session_id, await store.history(session_id), form)


async def backup(settings: Settings, target: Path) -> None:
    async with _store(settings) as store:
        await store.backup(str(target))
