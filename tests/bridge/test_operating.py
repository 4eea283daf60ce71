"""What whoever runs the bot sees and keeps: health, metrics, export, retention, idle conversations, fairness."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from agent.messages import Message
from agent.models.scripted import Call, Say, ScriptedModel
from agent.ports import ModelRequest
from bridge.app import open_app
from bridge.config import parse_settings
from bridge.errors import SteadybotError, StoreError
from bridge.export import export, file_name
from bridge.health import serve_health
from bridge.metrics import BUCKETS, Metrics
from bridge.ports import NewRequest
from bridge.retention import purge, retention
from bridge.settings import HealthSection
from bridge.store.sqlite import SqliteStore
from channels.base import Outgoing, Place
from tests.agent.harness import echo
from tests.bridge.harness import ALICE, PLACE, bot, said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bot.sqlite3"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, await response.text()


async def test_health_tells_of_life_readiness_and_numbers(tmp_path: Path) -> None:
    port = free_port()
    settings = parse_settings(
        f"data_dir: '{tmp_path}'\nhealth: {{port: {port}}}\nchannels: {{console: {{}}}}\n", "c", {}
    )
    async with open_app(settings) as app:
        assert await get(f"http://127.0.0.1:{port}/healthz") == (200, '{"ok": true}')
        status, body = await get(f"http://127.0.0.1:{port}/readyz")
        assert (status, json.loads(body)) == (503, {"store": True, "console": False})
        app.metrics.count("trim.turns", 3)
        app.metrics.observe("run", 0.3)
        status, text = await get(f"http://127.0.0.1:{port}/metrics")
        assert status == 200
        assert 'steadybot_events_total{event="trim.turns"} 3.0' in text
        assert 'steadybot_seconds_bucket{le="0.5",what="run"} 1.0' in text
        assert 'steadybot_seconds_bucket{le="0.25",what="run"} 0.0' in text
        assert 'steadybot_seconds_count{what="run"} 1.0' in text
        assert "steadybot_queued 0.0" in text


async def test_a_store_that_takes_nothing_is_not_ready() -> None:
    async def ready() -> dict[str, bool]:
        return {"store": False, "telegram": True}

    async with serve_health(HealthSection(port=free_port()), Metrics(), ready) as port:
        status, body = await get(f"http://127.0.0.1:{port}/readyz")
        assert (status, json.loads(body)) == (503, {"store": False, "telegram": True})


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = parse_settings(f"data_dir: '{tmp_path}'\nhealth: {{port: {port}}}\n", "c", {})
        with pytest.raises(SteadybotError, match=f"health: 127.0.0.1:{port} can't be used"):
            async with open_app(settings):
                pass


async def test_what_happens_is_counted_under_the_names_of_the_log(path: Path) -> None:
    model = ScriptedModel([Say("", [Call("echo", {})]), Say("done")])
    async with bot(path, model, tools=[echo()]) as b:
        event = said("hi")
        await b.inlet.accept(event)
        await b.channel.texts(1)
        await b.idle()
        await b.inlet.accept(event)
        counts = b.metrics.counts()
        assert counts["accept.stored"] == 1
        assert counts["accept.duplicate"] == 1
        assert counts["run.completed"] == 1
        assert counts["delivery.sent"] == 1
        times = b.metrics.times()
        assert set(times) == {"accept", "first_text", "run", "delivery"}
        assert sum(times["accept"].counts) == 2


def test_a_histogram_puts_each_time_into_its_bucket() -> None:
    metrics = Metrics()
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, BUCKETS[-1] + 1):
        metrics.observe("x", seconds)
    counts = metrics.times()["x"].counts
    assert (counts[0], counts[1], counts[-1]) == (2, 1, 1)


async def test_history_sends_the_whole_conversation_as_a_file(path: Path) -> None:
    async with bot(
        path, ScriptedModel([Say("Let me see.", [Call("echo", {"text": "x"})]), Say("It is x.")]), tools=[echo()]
    ) as b:
        await b.inlet.accept(said("what is it?"))
        await b.channel.texts(1)
        await b.inlet.accept(said("/history"))
        await b.channel.texts(2)
        (file,) = b.channel.delivered[1].files
        text = file.data.decode()
        assert file.name == "steadybot-test-1.md"
        for part in ("what is it?", "Let me see.", "- tool `echo`", "It is x."):
            assert part in text
        stored = await b.store.history(PLACE.session_id)
        whole = json.loads(export(PLACE.session_id, stored, "json"))
        assert [message["role"] for message in whole["messages"]] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("session", ["telegram/-1001/7", "slack/C1/../../etc", "console/local"])
def test_an_exports_name_stays_in_its_folder(session: str) -> None:
    assert "/" not in file_name(session, "md")
    assert ".." not in file_name(session, "md")


async def test_retention_deletes_what_is_old_and_leaves_what_is_open(path: Path) -> None:
    store = await SqliteStore.open(path)
    now = datetime.now(UTC)

    def asked(number: int, days: int) -> NewRequest:
        message: Message = {"role": "user", "content": f"question {number}"}
        return NewRequest(
            f"r{number}",
            (f"e{number}",),
            Place("test", str(number)),
            ALICE,
            message,
            now - timedelta(days=days),
        )

    for number, days in ((1, 40), (2, 40), (3, 1)):
        await store.accept(asked(number, days))
    async with bot(path, ScriptedModel(lambda request: Say("yes"))) as b:
        await b.channel.texts(3)
        await b.idle()
    await store.accept(asked(4, 40))
    await store.enqueue(Outgoing(PLACE, "not sent yet"), now - timedelta(days=40))
    await purge(store, 30)
    left = {info.place.chat: info.messages for info in await store.sessions()}
    assert left == {"1": 1, "2": 1, "3": 2, "4": 1}
    assert [request.request_id for request in await store.unfinished()] == ["r4"]
    assert len(await store.outbox()) == 1
    assert await store.purge_before(now + timedelta(days=1)) == 4
    assert {info.place.chat for info in await store.sessions()} == {"4"}
    await store.close()


async def test_retention_runs_at_start_and_is_off_unless_configured(path: Path) -> None:
    rounds: list[datetime] = []

    class Counting(SqliteStore):
        async def purge_before(self, at: datetime) -> int:
            rounds.append(at)
            raise StoreError("the disk is full")

    store = await Counting.open(path)
    async with retention(store, None):
        assert rounds == []
    async with retention(store, 30):
        assert len(rounds) == 1
    await store.close()


async def test_idle_conversations_leave_memory_and_come_back_as_they_were(path: Path) -> None:
    def says(request: ModelRequest) -> Say:
        return Say(f"{len(request.messages)} messages")

    async with bot(path, ScriptedModel(says)) as b:
        await b.inlet.accept(said("one"))
        await b.channel.texts(1)
        await b.idle()
        before = await b.conversations.get(PLACE)
        before.last_used -= 7200
        assert b.conversations.evict_idle({PLACE.session_id}) == 0
        assert b.conversations.evict_idle(set()) == 1
        assert len(b.conversations) == 0
        await b.inlet.accept(said("two"))
        assert await b.channel.texts(2) == ["1 messages", "3 messages"]


async def test_a_busy_conversation_does_not_starve_another(path: Path) -> None:
    release = asyncio.Event()

    def says(request: ModelRequest) -> Say:
        return Say("answer", waits_for=release.wait)

    other = Place("test", "2")
    async with bot(path, ScriptedModel(says), max_running=1) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        for n in range(5):
            await b.inlet.accept(said(f"more {n}"))
        await b.inlet.accept(said("only one", other))
        await b.channel.until(lambda: len(b.channel.replies) == 2)
        release.set()
        await b.channel.texts(3)
        assert [outgoing.place for outgoing in b.channel.delivered[:2]] == [PLACE, other]
