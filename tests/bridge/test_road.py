"""A message's way through the bridge: stored first, run in its order, stored once, delivered (§1, §6)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agent.messages import text_block
from agent.models.scripted import Call, Say, ScriptedModel, forever
from agent.ports import ModelRequest
from agent.texts import ENGLISH as CORE
from bridge.access import AccessPolicy
from bridge.recovery import MAX_RUNS
from bridge.store.sqlite import SqliteStore
from bridge.texts import ENGLISH
from channels.base import Accepted, CancelReply, Place, Sender, TryLater, Undeliverable
from tests.agent.harness import FunctionTool, HangingTool, echo
from tests.bridge.harness import ALICE, PLACE, KeepingChannel, bot, said
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bot.sqlite3"


def last_user_text(request: ModelRequest) -> str:
    content = request.messages[-1]["content"]
    assert not isinstance(content, str)
    return "|".join(block["text"] for block in content if block["type"] == "text")


def parrot() -> ScriptedModel:
    return ScriptedModel(lambda request: Say(f"you said {last_user_text(request)}"))


async def test_a_message_is_answered_and_everything_is_stored_once(path: Path) -> None:
    model = ScriptedModel([Say("Let me see.", [Call("echo", {"text": "x"})]), Say("It is x.")])
    async with bot(path, model, tools=[echo()]) as b:
        assert await b.inlet.accept(said("what is it?")) is Accepted.STORED
        assert await b.channel.texts(1) == ["Let me see.\n\nIt is x."]
        await b.idle()
        rows = await b.store.history(PLACE.session_id)
        assert [(row.origin, row.message["role"]) for row in rows] == [
            ("user", "user"),
            ("run", "assistant"),
            ("run", "user"),
            ("run", "assistant"),
        ]
        assert await b.store.unfinished() == []
        assert await b.store.outbox() == []
        assert len(b.registry) == 0


async def test_a_message_is_in_the_store_before_it_is_worked_on(path: Path) -> None:
    seen: list[int] = []

    async def look() -> None:
        other = await SqliteStore.open(path)
        seen.append(len(await other.history(PLACE.session_id)))
        await other.close()

    async with bot(path, ScriptedModel([Say("ok", waits_for=look)])) as b:
        await b.inlet.accept(said("hi"))
        await b.channel.texts(1)
    assert seen == [1]


async def test_the_next_message_knows_what_was_said(path: Path) -> None:
    model = ScriptedModel([Say("Hello Ann"), Say("Ann")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("I am Ann"))
        await b.idle()
        await b.inlet.accept(said("who am I?"))
        await b.channel.texts(2)
    assert "I am Ann" in model.requests[1]
    assert "Hello Ann" in model.requests[1]


async def test_after_a_restart_the_conversation_goes_on_without_its_tool_blocks(path: Path) -> None:
    async with bot(path, ScriptedModel([Say("one", [Call("echo", {})]), Say("two")]), tools=[echo()]) as b:
        await b.inlet.accept(said("first"))
        await b.channel.texts(1)
        await b.idle()
    model = ScriptedModel([Say("three")])
    async with bot(path, model, tools=[echo()]) as b:
        await b.inlet.accept(said("second"))
        await b.channel.texts(1)
    assert "tool_use" not in model.requests[0]
    for text in ("first", "one", "two", "second"):
        assert text in model.requests[0]


@pytest.mark.parametrize("times", [2, 10])
async def test_one_event_is_one_run_however_often_it_comes(path: Path, times: int) -> None:
    async with bot(path, parrot()) as b:
        event = said("hello", key="test:same")
        results = await asyncio.gather(*(b.inlet.accept(event) for _ in range(times)))
        assert sorted(results) == [Accepted.DUPLICATE] * (times - 1) + [Accepted.STORED]
        await b.channel.texts(1)
        await b.idle()
    async with bot(path, parrot()) as b:
        assert await b.inlet.accept(event) is Accepted.DUPLICATE
        await b.idle()
        assert b.channel.delivered == []


async def test_messages_that_pile_up_are_answered_together_and_in_order(path: Path) -> None:
    release = asyncio.Event()
    model = ScriptedModel([Say("first answer", waits_for=release.wait), Say("second answer")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        await b.inlet.accept(said("two"))
        await b.inlet.accept(said("three"))
        release.set()
        assert await b.channel.texts(2) == ["first answer", "second answer"]
    assert model.requests[1].index("two") < model.requests[1].index("three")


async def test_interrupt_stops_the_running_answer_and_takes_the_new_message(path: Path) -> None:
    model = ScriptedModel([Say("a long one", waits_for=forever), Say("the new one")])
    async with bot(path, model, busy="interrupt") as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        await b.inlet.accept(said("two"))
        texts = await b.channel.texts(2)
    assert texts[0].endswith(CORE.cancelled)
    assert texts[1] == "the new one"


async def test_steer_puts_the_new_message_into_the_running_answer(path: Path) -> None:
    hang = HangingTool()
    model = ScriptedModel([Say(calls=[Call("hang")]), Say("with both in mind")])
    async with bot(path, model, tools=[hang], busy="steer") as b:
        await b.inlet.accept(said("one"))
        await hang.started.wait()
        await b.inlet.accept(said("and also two"))
        hang.release.set()
        assert await b.channel.texts(1) == ["with both in mind"]
        await b.idle()
        assert await b.store.unfinished() == []
        assert len(b.channel.delivered) == 1
    assert "and also two" in model.requests[1]


async def test_a_full_queue_says_so_and_takes_nothing(path: Path) -> None:
    release = asyncio.Event()
    model = ScriptedModel([Say("a", waits_for=release.wait), Say("b")])
    async with bot(path, model, queue_limit=1) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        assert await b.inlet.accept(said("two")) is Accepted.STORED
        assert await b.inlet.accept(said("three")) is Accepted.FULL
        assert await b.channel.texts(1) == [ENGLISH.queue_full.format(limit=1)]
        release.set()
        await b.channel.texts(3)
        assert len(await b.store.history(PLACE.session_id)) == 4


async def test_cancel_stops_the_running_and_the_waiting_and_says_how_many(path: Path) -> None:
    model = ScriptedModel([Say("thinking", waits_for=forever), Say("fine again")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        await b.inlet.accept(said("two"))
        assert await b.inlet.accept(said("/cancel")) is Accepted.COMMAND
        texts = await b.channel.texts(2)
        assert ENGLISH.cancelled_many.format(count=2) in texts
        assert sum(text.endswith(CORE.cancelled) for text in texts) == 1
        await b.idle()
        await b.inlet.accept(said("three"))
        assert (await b.channel.texts(3))[-1] == "fine again"
        assert len(b.registry) == 0


async def test_cancel_with_nothing_running_says_so(path: Path) -> None:
    async with bot(path, parrot()) as b:
        await b.inlet.accept(said("/STOP"))
        assert await b.channel.texts(1) == [ENGLISH.nothing_running]


async def test_a_redelivered_cancel_does_not_stop_the_next_run(path: Path) -> None:
    release = asyncio.Event()
    async with bot(path, ScriptedModel([Say("kept", waits_for=release.wait)])) as b:
        again = said("/cancel")
        await b.inlet.accept(again)
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        assert await b.inlet.accept(again) is Accepted.DUPLICATE
        release.set()
        assert "kept" in await b.channel.texts(2)


async def test_the_button_stops_its_own_request_only(path: Path) -> None:
    async with bot(path, ScriptedModel([Say("thinking", waits_for=forever)])) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
        request_id = b.channel.replies[0].request_id
        assert await b.inlet.cancel("another", PLACE, ALICE) is CancelReply.NOTHING_RUNNING
        assert await b.inlet.cancel(request_id, PLACE, ALICE) is CancelReply.STOPPED
        await b.channel.texts(1)
        await b.idle()
        assert await b.inlet.cancel(request_id, PLACE, ALICE) is CancelReply.NOTHING_RUNNING


async def test_a_slash_command_without_a_thread_stops_what_this_person_started_there(path: Path) -> None:
    thread_a = Place("test", "C1", "t1", "group")
    thread_b = Place("test", "C1", "t2", "group")
    bob = Sender("bob", "Bob")
    async with bot(path, ScriptedModel([Say("a", waits_for=forever), Say("b", waits_for=forever)])) as b:
        await b.inlet.accept(said("one", thread_a, ALICE))
        await b.inlet.accept(said("two", thread_b, bob))
        await b.channel.until(lambda: len(b.channel.replies) == 2)
        await b.inlet.accept(said("/cancel", Place("test", "C1", None, "group"), ALICE))
        await b.channel.texts(2)
        assert b.lines.counts(thread_a) == (0, 0)
        assert b.lines.counts(thread_b) == (1, 0)


async def test_new_starts_an_empty_context_and_keeps_the_history(path: Path) -> None:
    model = ScriptedModel([Say("Hello Ann"), Say("I do not know")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("I am Ann"))
        await b.channel.texts(1)
        await b.inlet.accept(said("/new"))
        await b.channel.texts(2)
        await b.inlet.accept(said("who am I?"))
        await b.channel.texts(3)
        assert len(await b.store.history(PLACE.session_id)) == 4
    assert "Ann" not in model.requests[1]
    async with bot(path, model := ScriptedModel([Say("no")])) as b:
        await b.inlet.accept(said("and now?"))
        await b.channel.texts(1)
    assert "Ann" not in model.requests[0]
    assert "who am I?" in model.requests[0]


async def test_a_run_that_new_cut_off_does_not_bring_its_context_back(path: Path) -> None:
    model = ScriptedModel([Say("Hello Ann", waits_for=forever), Say("no")])
    async with bot(path, model) as b:
        await b.inlet.accept(said("I am Ann"))
        await b.channel.until(lambda: bool(b.channel.replies))
        await b.inlet.accept(said("/new"))
        await b.idle()
        await b.inlet.accept(said("who am I?"))
        await b.idle()
    assert "Ann" not in model.requests[1]


async def test_status_shows_model_context_and_defences(path: Path) -> None:
    async with bot(path, ScriptedModel([Say("", []), Say("hi")])) as b:
        await b.inlet.accept(said("hello"))
        await b.channel.texts(1)
        await b.inlet.accept(said("/status"))
        status = (await b.channel.texts(2))[-1]
    assert "scripted" in status
    assert "200,000 tokens" in status
    assert "empty answer asked for again ×1" in status


async def test_help_lists_the_commands(path: Path) -> None:
    async with bot(path, parrot()) as b:
        await b.inlet.accept(said("/help"))
        (text,) = await b.channel.texts(1)
    assert all(f"/{name}" in text for name in ("cancel", "new", "status", "help"))


async def test_a_reply_that_cannot_go_out_yet_is_tried_again_and_arrives(path: Path) -> None:
    channel = KeepingChannel(faults=[TryLater("busy", 0.0), TryLater("timed out", 0.0, uncertain=True)])
    async with bot(path, parrot(), channel=channel) as b:
        await b.inlet.accept(said("hi"))
        await b.channel.texts(1)
        await b.idle()
        assert b.channel.delivered[0].uncertain
        assert await b.store.outbox() == []


@pytest.mark.parametrize("fault", [Undeliverable("blocked"), RuntimeError("a bug")])
async def test_a_reply_that_can_never_arrive_does_not_block_the_next(path: Path, fault: Exception) -> None:
    channel = KeepingChannel(faults=[fault])
    async with bot(path, parrot(), channel=channel) as b:
        await b.inlet.accept(said("one"))
        await b.idle()
        await b.inlet.accept(said("two"))
        assert await b.channel.texts(1) == ["you said two"]
        await b.idle()
        assert await b.store.outbox() == []


async def test_a_crash_inside_a_run_is_told_and_the_line_goes_on(path: Path) -> None:
    model = parrot()
    model.max_output_tokens = "x"  # type: ignore[assignment]  # a bug in a part
    async with bot(path, model) as b:
        await b.inlet.accept(said("one"))
        assert await b.channel.texts(1) == [ENGLISH.failed]
        await b.idle()
        model.max_output_tokens = 4096
        await b.inlet.accept(said("two"))
        assert "you said two" in (await b.channel.texts(2))[-1]


async def test_what_was_stored_but_not_answered_is_answered_after_a_restart(path: Path) -> None:
    async with bot(path, ScriptedModel([Say("half", waits_for=forever)])) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
    async with bot(path, ScriptedModel([Say("whole")])) as b:
        assert await b.channel.texts(1) == ["whole"]
        await b.idle()
        assert [row.origin for row in await b.store.history(PLACE.session_id)] == ["user", "run"]


async def test_a_restart_after_a_tool_with_effects_asks_and_does_not_repeat_it(path: Path) -> None:
    hang = HangingTool()
    async with bot(path, ScriptedModel([Say(calls=[Call("hang")])]), tools=[hang]) as b:
        await b.inlet.accept(said("do it"))
        await hang.started.wait()
    model = ScriptedModel([Say("going on")])
    async with bot(path, model, tools=[hang]) as b:
        assert await b.channel.texts(1) == [ENGLISH.interrupted.format(count=1)]
        await b.inlet.accept(said("go on"))
        await b.channel.texts(2)
    assert "do it" in model.requests[0]
    assert "I was restarted" in model.requests[0]


async def test_a_request_that_ends_the_process_each_time_is_set_aside(path: Path) -> None:
    async with bot(path, ScriptedModel(lambda request: Say("half", waits_for=forever))) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
    for _ in range(MAX_RUNS - 1):
        async with bot(path, ScriptedModel(lambda request: Say("half", waits_for=forever))) as b:
            await b.channel.until(lambda: bool(b.channel.replies))
    async with bot(path, ScriptedModel([])) as b:
        assert await b.channel.texts(1) == [ENGLISH.set_aside.format(attempts=MAX_RUNS)]


async def test_a_reply_that_was_stored_but_not_sent_is_sent_after_a_restart(path: Path) -> None:
    channel = KeepingChannel(faults=[TryLater("down", 1000.0)])
    async with bot(path, parrot(), channel=channel) as b:
        await b.inlet.accept(said("one"))
        await until(lambda: not channel.faults and not any(b.lines.totals()))
        assert len(await b.store.outbox()) == 1
    # The wait that the platform named is over before long: a clock that is asked again says so.
    with sqlite3.connect(path) as db:
        db.execute("UPDATE outbox SET not_before = created_at")
    db.close()
    async with bot(path, ScriptedModel([])) as b:
        assert await b.channel.texts(1) == ["you said one"]
        assert b.channel.delivered[0].uncertain
        await b.idle()
        assert await b.store.outbox() == []


async def test_the_messages_that_show_a_reply_are_edited_after_a_restart(path: Path) -> None:
    channel = KeepingChannel(posts=("live-1",))
    async with bot(path, ScriptedModel([Say("half", waits_for=forever)]), channel=channel) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: bool(b.channel.replies))
    async with bot(path, ScriptedModel([Say("whole")])) as b:
        await b.channel.texts(1)
        assert b.channel.replies[0].posted == ("live-1",)


async def test_an_unknown_person_gets_one_pairing_code_and_is_let_in_by_it(path: Path) -> None:
    async with bot(path, parrot(), policy=AccessPolicy("listed")) as b:
        assert await b.inlet.accept(said("hi")) is Accepted.DENIED
        assert await b.inlet.accept(said("hello?")) is Accepted.DENIED
        (text,) = await b.channel.texts(1)
        await b.idle()
        assert len(b.channel.delivered) == 1
        assert await b.store.history(PLACE.session_id) == []
        assert (await b.store.counters())["denied.test"] == 2
        code = text.rsplit(" ", 1)[-1]
        assert await b.store.redeem("test", code, said("x").sent_at) == "alice"
        assert await b.inlet.accept(said("now?")) is Accepted.STORED


async def test_unknown_people_in_groups_get_silence(path: Path) -> None:
    group = Place("test", "G", None, "group")
    async with bot(path, parrot(), policy=AccessPolicy("listed", frozenset({"alice"}))) as b:
        assert await b.inlet.accept(said("hi", group, Sender("mallory", "M"))) is Accepted.DENIED
        assert await b.inlet.cancel("r", group, Sender("mallory", "M")) is CancelReply.NOT_ALLOWED
        await b.inlet.accept(said("hi", group))
        assert await b.channel.texts(1) == ["you said Alice: hi"]


async def test_guests_talk_only_where_listed(path: Path) -> None:
    async with bot(path, parrot(), policy=AccessPolicy("members", frozenset({"g1"}))) as b:
        assert await b.inlet.accept(said("hi", sender=Sender("g1", "G", guest=True))) is Accepted.STORED
        assert await b.inlet.accept(said("hi", sender=Sender("g2", "G", guest=True))) is Accepted.DENIED
        assert await b.inlet.accept(said("hi", sender=Sender("m", "M"))) is Accepted.STORED


async def test_runs_beyond_the_limit_wait_and_say_so(path: Path) -> None:
    release = asyncio.Event()
    model = ScriptedModel(lambda request: Say("done", waits_for=release.wait))
    async with bot(path, model, max_running=1) as b:
        await b.inlet.accept(said("one"))
        await b.channel.until(lambda: len(b.channel.replies) == 1)
        await b.inlet.accept(said("two", Place("test", "2")))
        await b.channel.until(lambda: len(b.channel.replies) == 2)
        await until(lambda: b.channel.shown(1).status == ENGLISH.waiting_for_slot)
        release.set()
        await b.channel.texts(2)


async def test_a_long_conversation_is_read_back_from_where_its_context_starts(path: Path) -> None:
    async with bot(path, parrot(), max_context_turns=4) as b:
        for n in range(9):
            await b.inlet.accept(said(f"message {n}"))
            await b.channel.texts(n + 1)
            await b.idle()
        before = b.conversations.peek(PLACE)
        assert before is not None
    async with bot(path, model := parrot(), max_context_turns=4) as b:
        conversation = await b.conversations.get(PLACE)
        assert conversation.query_ids == before.query_ids
        assert conversation.summary == before.summary
        await b.inlet.accept(said("the last"))
        await b.channel.texts(1)
        assert len(await b.store.history(PLACE.session_id)) == 20
    assert "[Earlier conversation," in model.requests[0]
    assert conversation.messages[-2] != {"role": "user", "content": [text_block("message 0")]}


async def test_a_tool_with_effects_is_counted_before_it_runs(path: Path) -> None:
    counted: list[int] = []

    async def look(args: object) -> str:
        counted.append((await b.store.unfinished())[0].effects)
        return "ok"

    tool = FunctionTool("effect", look, effects=True)
    async with bot(path, ScriptedModel([Say(calls=[Call("effect")]), Say("done")]), tools=[tool]) as b:
        await b.inlet.accept(said("go"))
        await b.channel.texts(1)
    assert counted == [1]


async def test_a_model_written_summary_takes_the_digests_place_before_the_next_run(path: Path) -> None:
    written = ScriptedModel(lambda request: Say("Ann likes tea."))
    model = parrot()
    async with bot(path, model, max_context_turns=4, summary_model=written) as b:
        for n in range(5):
            await b.inlet.accept(said(f"message {n}"))
            await b.channel.texts(n + 1)
            await b.idle()
        await until(lambda: (c := b.conversations.peek(PLACE)) is not None and c.written_summary)
        await b.inlet.accept(said("the last"))
        await b.channel.texts(6)
        await b.idle()
    assert "Ann likes tea." in model.requests[-1]
    assert "Ann likes tea." not in model.requests[-2]
    async with bot(path, model := parrot(), max_context_turns=4) as b:
        await b.inlet.accept(said("after a restart"))
        await b.channel.texts(1)
    assert "Ann likes tea." in model.requests[0]


async def test_a_summary_that_fails_leaves_the_digest(path: Path) -> None:
    model = parrot()
    async with bot(path, model, max_context_turns=4, summary_model=ScriptedModel([RuntimeError("no")])) as b:
        for n in range(6):
            await b.inlet.accept(said(f"message {n}"))
            await b.channel.texts(n + 1)
            await b.idle()
    assert "asked: message 0" in model.requests[-1]
