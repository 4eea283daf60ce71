"""The bot while its store is in trouble: what a person waits for arrives, and nothing is done or stored twice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.messages import text_of
from agent.models.scripted import Say, ScriptedModel, forever
from agent.texts import ENGLISH as CORE
from bridge import delivery
from bridge.errors import StoreError
from bridge.store._connection import call
from bridge.store.sqlite import SqliteStore
from bridge.texts import ENGLISH
from channels.base import Accepted, Outgoing, Place
from tests.bridge.harness import PLACE, Bot, bot, said
from tests.bridge.store.making import NOON
from tests.bridge.test_road import parrot
from tests.waiting import until

LONG = "y" * 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bot.sqlite3"


async def set_room(b: Bot, pages: int) -> None:
    """A disk with no more room than is in use (1), or with plenty."""
    await call(b.store._writing, lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())


class Refusing:
    """Lets a method of the store fail for as long as `on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: SqliteStore, method: str) -> None:
        self.on = True
        real = getattr(store, method)

        async def refusing(*args: object) -> object:
            if self.on:
                raise StoreError("the disk is full")
            return await real(*args)

        monkeypatch.setattr(store, method, refusing)


async def stored_texts(b: Bot, place: Place = PLACE) -> list[str]:
    session = await b.store.session(place.session_id)
    assert session is not None
    return [
        text_of(row.message["content"]) for row in session.messages if not isinstance(row.message["content"], str)
    ]


async def test_a_reply_arrives_although_the_disk_became_full_and_is_stored_once_there_is_room(path: Path) -> None:
    release = asyncio.Event()
    model = ScriptedModel([Say(LONG, waits_for=release.wait), Say("two"), Say("three")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("first"))
        await b.channel.until(lambda: bool(b.channel.replies))
        await set_room(b, 1)
        release.set()
        assert await b.channel.texts(1) == [LONG]
        await b.idle()
        assert len(await b.store.unfinished()) == 1
        with pytest.raises(StoreError, match="the disk is full"):
            await b.inlet.accept(said(LONG))
        await set_room(b, 1_000_000)
        await b.inlet.accept(said("second"))
        assert await b.channel.texts(2) == [LONG, "two"]
        await b.idle()
        assert await b.store.unfinished() == []
        assert await b.store.outbox() == []
        assert await stored_texts(b) == ["first", LONG, "second", "two"]
    assert LONG in model.requests[1]  # the talk went on from it
    async with bot(path, parrot()) as b:
        await b.idle()
        assert b.channel.delivered == []


async def test_a_run_whose_end_was_never_stored_runs_again_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, parrot()) as b:
        Refusing(monkeypatch, b.store, "finish")
        await b.inlet.accept(said("hi"))
        assert await b.channel.texts(1) == ["you said hi"]
        await b.idle()
        assert b.metrics.counts()["run.end_not_stored"] == 1
    async with bot(path, parrot()) as b:
        assert await b.channel.texts(1) == ["you said hi"]
        await b.idle()
        assert await stored_texts(b) == ["hi", "you said hi"]


async def test_an_end_that_is_stored_late_does_not_bring_back_a_context_that_new_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, parrot()) as b:
        finish = Refusing(monkeypatch, b.store, "finish")
        await b.inlet.accept(said("I am Ann"))
        await b.channel.texts(1)
        await b.idle()
        await b.inlet.accept(said("/new"))
        await b.channel.texts(2)
        finish.on = False
        await b.inlet.accept(said("hi", Place("test", "2")))
        await b.channel.texts(3)
        await b.idle()
        assert await stored_texts(b) == []
        assert len(await b.store.history(PLACE.session_id)) == 2
        assert await b.store.unfinished() == []


async def test_another_conversations_run_stores_what_is_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bot(path, parrot()) as b:
        finish = Refusing(monkeypatch, b.store, "finish")
        await b.inlet.accept(said("one"))
        await b.channel.texts(1)
        await b.idle()
        finish.on = False
        await b.inlet.accept(said("two", Place("test", "2")))
        await b.channel.texts(2)
        await b.idle()
        assert await b.store.unfinished() == []


async def test_a_run_that_could_not_be_started_is_told_once_and_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, parrot()) as b:
        faults = [Refusing(monkeypatch, b.store, name) for name in ("start", "finish")]
        await b.inlet.accept(said("hi"))
        assert await b.channel.texts(1) == [ENGLISH.failed]
        await b.idle()
        for fault in faults:
            fault.on = False
        await b.inlet.accept(said("again"))
        assert (await b.channel.texts(2))[-1] == "you said again"
        await b.idle()
        assert await b.store.unfinished() == []


async def test_what_could_not_be_stored_is_taken_when_it_comes_again(path: Path) -> None:
    async with bot(path, parrot()) as b:
        await set_room(b, 1)
        event = said(LONG, key="test:same")
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full"):
                await b.inlet.accept(event)
        await set_room(b, 1_000_000)
        assert await b.inlet.accept(event) is Accepted.STORED
        assert await b.channel.texts(1) == [f"you said {LONG}"]
        await b.idle()
        assert len(b.channel.delivered) == 1


async def test_a_command_that_could_not_be_stored_is_carried_out_when_it_comes_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, parrot()) as b:
        fault = Refusing(monkeypatch, b.store, "accept_event")
        event = said("/help")
        with pytest.raises(StoreError):
            await b.inlet.accept(event)
        fault.on = False
        assert await b.inlet.accept(event) is Accepted.COMMAND
        assert await b.inlet.accept(event) is Accepted.DUPLICATE
        assert len(await b.channel.texts(1)) == 1


async def test_a_cancel_works_and_is_answered_although_nothing_can_be_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, ScriptedModel([Say("thinking", waits_for=forever)])) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        for method in ("accept_answered", "finish"):
            Refusing(monkeypatch, b.store, method)
        event = said("/cancel")
        assert await b.inlet.accept(event) is Accepted.COMMAND
        assert await b.inlet.accept(event) is Accepted.DUPLICATE
        texts = await b.channel.texts(2)
        assert sum(text.endswith(CORE.cancelled) for text in texts) == 1


@pytest.mark.parametrize("method", ["new_context", "enqueue"])
async def test_a_command_that_was_taken_is_answered_whatever_fails_then(
    path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async with bot(path, parrot()) as b:
        Refusing(monkeypatch, b.store, method)
        assert await b.inlet.accept(said("/new")) is Accepted.COMMAND
        (text,) = await b.channel.texts(1)
        assert (text == ENGLISH.failed) == (method == "new_context")


async def test_a_reply_whose_arrival_can_not_be_noted_arrives_and_blocks_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bot(path, parrot()) as b:
        Refusing(monkeypatch, b.store, "sent")
        for n in range(2):
            await b.inlet.accept(said(str(n)))
            await b.channel.texts(n + 1)
            await b.idle()
    async with bot(path, parrot()) as b:
        # Nobody knows whether these arrived: once more, said to be uncertain.
        await b.channel.texts(2)
        assert all(outgoing.uncertain for outgoing in b.channel.delivered)
        await b.idle()
        assert await b.store.outbox() == []


async def test_a_reply_that_a_jumping_clock_dated_far_ahead_goes_out_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LONGEST_DELAY", 0.01)
    store = await SqliteStore.open(path)
    row = await store.enqueue(Outgoing(PLACE, "from the future"), NOON)
    await store.retry(row.id, datetime.now(UTC) + timedelta(days=30_000), [], uncertain=False)
    await store.close()
    async with bot(path, parrot()) as b:
        assert await b.channel.texts(1) == ["from the future"]
        await until(lambda: not b.delivery.totals())
        assert await b.store.outbox() == []
