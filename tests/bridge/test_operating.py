"""What whoever runs the bot sees and keeps: health, metrics, export, retention, idle conversations, fairness."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from agent.messages import Message, assistant_message, text_block
from agent.models.scripted import Call, Say, ScriptedModel, forever
from agent.ports import ModelRequest
from bridge.app import App, open_app
from bridge.commands import in_words
from bridge.config import parse_settings
from bridge.errors import SteadybotError, StoreError
from bridge.export import export, file_name
from bridge.health import serve_health
from bridge.metrics import BUCKETS, FROM_THE_START, Metrics
from bridge.ports import NewRequest, StoredMessage
from bridge.retention import purge, retention
from bridge.settings import HealthSection
from bridge.store.sqlite import SqliteStore
from bridge.texts import CHINESE, ENGLISH, BridgeTexts
from channels.base import Channel, ChannelError, Intake, Outgoing, Place
from tests.agent.harness import echo
from tests.bridge.harness import ALICE, PLACE, Bot, KeepingChannel, bot, said
from tests.waiting import until


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


async def test_a_store_that_hangs_or_refuses_is_named_and_the_bot_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_: SqliteStore, name: str) -> None:
        await asyncio.Event().wait()

    async def refuses(_: SqliteStore, name: str) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("bridge.app.PROBE_TIMEOUT", 0.01)
    port = free_port()
    settings = parse_settings(f"data_dir: '{tmp_path}'\nhealth: {{port: {port}}}\n", "c", {})
    async with open_app(settings) as app:
        for count in (hangs, refuses):
            monkeypatch.setattr(SqliteStore, "count", count)
            status, body = await get(f"http://127.0.0.1:{port}/readyz")
            assert (status, json.loads(body)["store"]) == (503, False)
            assert (await get(f"http://127.0.0.1:{port}/healthz"))[0] == 200
        assert isinstance(app, App)


async def test_events_to_be_alarmed_by_are_there_before_the_first_one_and_in_the_documentation() -> None:
    async def ready() -> dict[str, bool]:
        return {"store": True}

    async with serve_health(HealthSection(port=free_port()), Metrics(), ready) as port:
        assert await get(f"http://127.0.0.1:{port}/readyz") == (200, '{"store": true}')
        _, text = await get(f"http://127.0.0.1:{port}/metrics")
    for event in FROM_THE_START:
        assert f'steadybot_events_total{{event="{event}"}} 0.0' in text
    assert "process_resident_memory_bytes" in text
    told = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    missing = [event for event in {*FROM_THE_START, *defence_events()} if f"`{event}`" not in told]
    assert missing == []


def defence_events() -> set[str]:
    """The names under which the agent tells of its defences, as its source has them."""
    sources = {
        path.name: path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "agent").glob("*.py")
    }
    named = {name for text in sources.values() for name in re.findall(r'DefenceActed\("([a-z_.]+)"', text)}
    rules = set(re.findall(r'Verdict\(True, .*, (?:True|False), "([a-z_]+)"\)', sources["breaker.py"]))
    assert len(named) > 10
    assert len(rules) > 4
    return {*named, *(f"breaker.{rule}" for rule in rules), "recovery.wait"}


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE])
def test_status_has_words_for_whatever_a_defence_does(texts: BridgeTexts) -> None:
    assert set(texts.acted) == defence_events()
    several = Counter({"breaker.repeat": 2, "breaker.cycle": 1, "unheard.of": 1})
    words = in_words(several, texts)
    assert f"{texts.acted['breaker.repeat']} ×3" in words
    assert "unheard.of ×1" in words


class EndingChannel(KeepingChannel):
    async def run(self, intake: Intake) -> None:
        raise ChannelError("another poller")


async def test_ready_names_the_channel_that_ended_and_is_ready_only_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels: dict[str, Channel] = {"telegram": KeepingChannel("telegram")}
    monkeypatch.setattr("bridge.app.open_channels", lambda settings, data_dir: channels)
    port = free_port()
    settings = parse_settings(f"data_dir: '{tmp_path}'\nhealth: {{port: {port}}}\n", "c", {})

    async def ready_while_serving() -> tuple[int, dict[str, bool]]:
        async with open_app(settings) as app:
            stop = asyncio.Event()
            serving = asyncio.create_task(app.serve(stop))
            await asyncio.sleep(0)  # the channels' tasks begin
            await asyncio.sleep(0)
            status, body = await get(f"http://127.0.0.1:{port}/readyz")
            stop.set()
            await serving
            assert (await get(f"http://127.0.0.1:{port}/readyz"))[0] == 503
            return status, json.loads(body)

    assert await ready_while_serving() == (200, {"store": True, "telegram": True})
    channels["slack"] = EndingChannel("slack")
    assert await ready_while_serving() == (503, {"store": True, "telegram": True, "slack": False})


async def test_commands_answer_in_the_language_that_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = KeepingChannel("console")
    monkeypatch.setattr("bridge.app.open_channels", lambda settings, data_dir: {"console": channel})
    settings = parse_settings(f"data_dir: '{tmp_path}'\nagent: {{language: zh}}\n", "c", {})
    async with open_app(settings) as app:
        await app.inlet.accept(said("/help", Place("console", "local")))
        assert (await channel.texts(1))[0].startswith(CHINESE.help_heading)


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


async def test_cancels_are_counted_however_they_come(path: Path) -> None:
    def says(request: ModelRequest) -> Say:
        return Say("answer", waits_for=forever)

    async with bot(path, ScriptedModel(says)) as b:
        for how in ("/cancel", "button"):
            seen = len(b.channel.replies)
            await b.inlet.accept(said("hi"))
            await until(lambda: len(b.channel.replies) == seen + 1)  # noqa: B023  # awaited in this round
            if how == "button":
                await b.inlet.cancel(b.channel.replies[-1].request_id, PLACE, ALICE)
            else:
                await b.inlet.accept(said(how))
            await b.idle()
        await b.inlet.accept(said("/cancel"))
        counts = b.metrics.counts()
        assert (counts["cancel"], counts["run.cancelled"]) == (2, 2)


async def test_waiting_for_a_provider_is_counted_and_told(path: Path) -> None:
    async with bot(path, ScriptedModel([ConnectionError("lost"), Say("there")])) as b:
        await b.inlet.accept(said("hi"))
        await b.channel.texts(1)
        await b.inlet.accept(said("/status"))
        status = (await b.channel.texts(2))[-1]
        assert b.metrics.counts()["recovery.wait"] == 1
    assert f"{ENGLISH.acted['recovery.wait']} ×1" in status


@pytest.mark.parametrize(("asked", "new"), [("hello there", False), ("hello there", True), ("你好，在吗", False)])
async def test_status_knows_model_and_context_also_after_a_restart_or_new(
    path: Path, asked: str, new: bool
) -> None:
    async def status(b: Bot) -> str:
        seen = len(b.channel.delivered)
        await b.inlet.accept(said("/status"))
        return (await b.channel.texts(seen + 1))[-1]

    async with bot(path, ScriptedModel([Say("hello to you, too")])) as b:
        await b.inlet.accept(said(asked))
        await b.channel.texts(1)
        await b.idle()
        before = await status(b)
        if new:
            await b.inlet.accept(said("/new"))
            await b.channel.texts(3)
            assert await status(b) != before
    if not new:
        async with bot(path, ScriptedModel([])) as b:
            assert await status(b) == before
    texts = ENGLISH if asked.isascii() else CHINESE
    assert before.splitlines()[0] == "- " + texts.status_model.format(model="scripted")
    assert texts.status_requests.format(running=0, queued=0) in before
    assert texts.status_quiet in before
    assert "200,000" in before


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


def row(text: str, origin: str = "run") -> StoredMessage:
    return StoredMessage(1, origin, assistant_message(text_block(text)), datetime(2026, 5, 4, 3, 2, tzinfo=UTC))


def test_an_export_tells_who_and_when_and_closes_what_an_answer_left_open() -> None:
    text = export(
        "test/1",
        [row("do it", "user"), row("```py\nprint()"), row("~~~~\n```\n~~~"), row("```\nx\n```"), row("```a``` b")],
        "md",
    )
    assert text.split("\n\n") == [
        "# test/1",
        "## Person, 2026-05-04 03:02 UTC",
        "do it",
        "## steadybot, 2026-05-04 03:02 UTC",
        "```py\nprint()\n```",
        "## steadybot, 2026-05-04 03:02 UTC",
        "~~~~\n```\n~~~\n~~~~",
        "## steadybot, 2026-05-04 03:02 UTC",
        "```\nx\n```",
        "## steadybot, 2026-05-04 03:02 UTC",
        "```a``` b\n",
    ]


def test_a_tool_call_is_one_short_line_in_markdown_and_whole_in_json() -> None:
    call: Message = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "echo", "input": {"text": "a\nb" * 500}}],
    }
    stored = StoredMessage(1, "run", call, datetime(2026, 5, 4, tzinfo=UTC))
    (line,) = [line for line in export("s", [stored], "md").splitlines() if "echo" in line]
    assert len(line) < 250
    assert json.loads(export("s", [stored], "json"))["messages"][0]["content"] == call["content"]


async def test_half_a_character_does_not_stand_in_the_way_of_an_export(path: Path) -> None:
    half = "half \ud83d of it"
    for form in ("md", "json"):
        export("s", [row(half)], form).encode("utf-8")
    assert json.loads(export("s", [row(half)], "json"))["messages"][0]["content"][0]["text"] == half
    async with bot(path, ScriptedModel([Say(half)])) as b:
        await b.inlet.accept(said("hi"))
        await b.channel.texts(1)
        await b.inlet.accept(said("/history"))
        await b.channel.texts(2)
        assert b.channel.delivered[1].files[0].data.decode().endswith("half ? of it\n")


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


async def test_every_foreign_key_has_an_index_so_that_deleting_does_not_read_whole_tables(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    db = sqlite3.connect(path)
    missing = []
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        whole = [index for _, index, _, _, partial in db.execute(f"PRAGMA index_list({table})") if not partial]
        led_by = {db.execute(f"PRAGMA index_info({index})").fetchone()[2] for index in whole}
        keys = {key[3] for key in db.execute(f"PRAGMA foreign_key_list({table})")}
        missing += [(table, key) for key in keys - led_by]
    db.close()
    assert missing == []


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
    async with retention(store, 30, every=0.01):
        await until(lambda: len(rounds) > 3)
    over = len(rounds)
    assert rounds[-1] > rounds[1]
    assert datetime.now(UTC) - rounds[-1] >= timedelta(days=30)
    await asyncio.sleep(0)
    assert len(rounds) == over
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
