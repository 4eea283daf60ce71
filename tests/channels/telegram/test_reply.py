"""The running reply: typing, live text, tool lines, the Cancel button; at the pace that Telegram allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from bridge.errors import StoreError
from channels.base import LiveView, Place, ToolLine
from channels.telegram.pace import Limits
from tests.channels.telegram.conftest import FAST, HERE, THERE, Rig, opened
from tests.servers.telegram_rules import units
from tests.servers.telegram_server import DIRECT_ID, GROUP_ID, Json, TelegramServer
from tests.waiting import until


def button(message: Json) -> str | None:
    rows = message.get("reply_markup", {}).get("inline_keyboard")
    return rows[0][0]["callback_data"] if rows else None


def texts(server: TelegramServer, chat: int = GROUP_ID) -> list[str]:
    return server.chats.texts(chat)


def drafts(server: TelegramServer) -> list[str]:
    return [call.params["text"] for call in server.called("sendMessageDraft", ok=True)]


def shown_in_drafts(server: TelegramServer, wanted: str) -> bool:
    return any(wanted in text for text in drafts(server))


def held(rig: Rig) -> bool:
    assert rig.channel._started is not None
    return rig.channel._started.wire.pacer.held(str(GROUP_ID)) > 0


def is_typing() -> bool:
    return any(task.get_name().startswith("telegram typing") for task in asyncio.all_tasks())


@pytest.fixture
async def plain_rig(server: TelegramServer) -> AsyncIterator[Rig]:
    """A server that has no drafts."""
    server.drafts = False
    async with opened(server) as rig:
        yield rig


# By edits


async def test_live_text_is_one_message_that_grows_under_a_cancel_button(quiet: Rig) -> None:
    server, view, noted = quiet.server, LiveView(), list[tuple[str, ...]]()

    async def note(posted: object) -> None:
        assert isinstance(posted, tuple)
        noted.append(posted)

    asked = server.chats.add(server.chats.kinds[GROUP_ID], {"from": {"id": 7}, "text": "?"})
    reply_to = str(asked["message_id"])
    async with quiet.channel.reply(quiet.context(view, THERE, note_posted=note, reply_to=reply_to)) as stream:
        view.append("The **answer")
        await server.wait_for(lambda: texts(server) == ["The **answer"])
        (message,) = server.chats.shown(GROUP_ID)
        assert button(message) == "cancel:req-1"
        assert message["reply_to"] == asked["message_id"]
        view.append("** is 42")
        await server.wait_for(lambda: texts(server) == ["The answer is 42"])
        assert message["entities"] == [{"type": "bold", "offset": 4, "length": 6}]
        assert button(message) == "cancel:req-1"
        posted = await stream.stop()
    assert posted == (str(message["message_id"]),)
    assert noted == [posted]
    await quiet.deliver("The **answer** is 42.", THERE, posted=posted)
    assert texts(server) == ["The answer is 42."]
    assert button(message) is None


async def test_while_there_is_no_text_a_message_tells_what_is_done(quiet: Rig) -> None:
    view = LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)):
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["…"])
        view.tool("t1", ToolLine("calculator", "2 + 2\n**x**", "running"))
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["⏳ calculator 2 + 2 **x**"])
        view.tool_done("t1", failed=False)
        view.status("trying again in 30 s")
        await quiet.server.wait_for(
            lambda: texts(quiet.server) == ["✓ calculator 2 + 2 **x**\n⏳ trying again in 30 s"]
        )
        view.append("Four.")
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["Four.\n\n✓ calculator 2 + 2 **x**"])


async def test_a_quick_answer_posts_nothing_of_its_own(server: TelegramServer) -> None:
    paces = replace(FAST, reply=replace(FAST.reply, patience=30.0))
    async with opened(server, paces=paces) as rig:
        view = LiveView()
        async with rig.channel.reply(rig.context(view)) as stream:
            view.append("42")
            await server.wait_for(lambda: len(server.called("sendChatAction")) >= 3)
            assert await stream.stop() == ()
        assert not server.called("sendMessage")


async def test_nothing_is_called_when_nothing_that_can_be_seen_has_changed(plain_rig: Rig) -> None:
    server, view = plain_rig.server, LiveView()
    async with plain_rig.channel.reply(plain_rig.context(view)):
        view.append("word")
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["word"])
        for _ in range(5):
            view.append(" ")
            await asyncio.sleep(0)
        view.append("\n\nend")
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["word\n\nend"])
        before = len(server.called("editMessageText"))
        view.append("")
        view.replace("word\n\nend")
        view.tool("t", ToolLine("time", "", "running"))
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["word\n\nend\n\n⏳ time"])
        assert len(server.called("editMessageText")) == before + 1


async def test_a_long_live_text_goes_on_in_more_messages_the_button_under_the_last(plain_rig: Rig) -> None:
    server, view = plain_rig.server, LiveView()
    async with plain_rig.channel.reply(plain_rig.context(view)) as stream:
        view.append("a" * 1000 + "\n")
        await server.wait_for(lambda: len(server.chats.shown(DIRECT_ID)) == 1)
        view.append(("b" * 1000 + "\n") * 5)
        await server.wait_for(lambda: len(server.chats.shown(DIRECT_ID)) == 2)
        view.append("the end")
        await server.wait_for(lambda: texts(server, DIRECT_ID)[-1].endswith("the end"))
        first, second = server.chats.shown(DIRECT_ID)
        assert (button(first), button(second)) == (None, "cancel:req-1")
        posted = await stream.stop()
    whole = "a" * 1000 + "\n" + ("b" * 1000 + "\n") * 5 + "the end"
    assert await plain_rig.deliver(whole, posted=posted) == posted
    assert "".join(texts(server, DIRECT_ID)).replace("\n", "") == whole.replace("\n", "")
    assert [button(message) for message in server.chats.shown(DIRECT_ID)] == [None, None]


async def test_a_text_longer_than_all_live_messages_stops_being_edited(plain_rig: Rig) -> None:
    server, view = plain_rig.server, LiveView()
    async with plain_rig.channel.reply(plain_rig.context(view)):
        view.append("word " * 10_000)
        await server.wait_for(lambda: len(server.chats.shown(DIRECT_ID)) == 5)
        before = len(server.calls)
        view.append("more " * 1000)
        await asyncio.sleep(0.05)  # a call that would come too much has had its time
        assert [call.method for call in server.calls[before:] if "Message" in call.method] == []
    assert all(units(text) <= 4096 for text in texts(server, DIRECT_ID))


async def test_markup_that_is_refused_is_shown_plain(quiet: Rig) -> None:
    quiet.server.fail("sendMessage", description="Bad Request: can't parse entities: no")
    view = LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)):
        view.append("**bold**")
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["**bold**"])


async def test_a_live_message_that_somebody_deleted_is_posted_anew(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)) as stream:
        view.append("one")
        await server.wait_for(lambda: texts(server) == ["one"])
        server.chats.messages[GROUP_ID].clear()
        view.append(" two")
        await server.wait_for(lambda: texts(server) == ["one two"])
        posted = await stream.stop()
    assert posted == (str(server.chats.shown(GROUP_ID)[0]["message_id"]),)


async def test_after_a_restart_the_messages_that_are_there_are_edited(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    left = server.chats.add(server.chats.kinds[DIRECT_ID], {"from": server.me, "text": "half an ans"})
    async with quiet.channel.reply(quiet.context(view, posted=(str(left["message_id"]),))) as stream:
        view.append("an answer")
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["an answer"])
        assert await stream.stop() == (str(left["message_id"]),)
    assert not server.called("sendMessageDraft")


async def test_a_store_that_fails_to_note_the_message_stops_nothing(quiet: Rig) -> None:
    async def note(posted: object) -> None:
        raise StoreError("disk full")

    view = LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE, note_posted=note)):
        view.append("one")
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["one"])
        view.append(" two")
        await quiet.server.wait_for(lambda: texts(quiet.server) == ["one two"])


# Waits


async def test_a_wait_is_obeyed_and_newer_text_replaces_older_in_the_meantime(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)) as stream:
        view.append("one")
        await server.wait_for(lambda: texts(server) == ["one"])
        server.fail("editMessageText", status=429, description="Too Many Requests", retry_after=1)
        view.append(" two")
        await until(lambda: held(quiet))
        await asyncio.sleep(0.01)  # now it waits, with " two" in hand
        view.append(" three")
        await server.wait_for(lambda: texts(server) == ["one two three"])
        first, second = server.called("editMessageText")
        assert second.at - first.at >= 1
        posted = await stream.stop()
    assert len(posted) == 1


async def test_stop_does_not_wait_for_a_wait_but_the_final_text_does(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)) as stream:
        view.append("one")
        await server.wait_for(lambda: texts(server) == ["one"])
        server.fail("editMessageText", status=429, description="Too Many Requests", retry_after=1)
        view.append(" two")
        await server.wait_for(lambda: server.called("editMessageText"))
        posted = await stream.stop()
    assert len(server.called("editMessageText")) == 1
    assert await quiet.deliver("one two three", THERE, posted=posted) == posted
    assert texts(server) == ["one two three"]
    first, second = server.called("editMessageText")
    assert second.at - first.at >= 1


async def test_a_wait_of_one_chat_holds_no_other(quiet: Rig) -> None:
    server, view, other = quiet.server, LiveView(), LiveView()
    server.fail("sendMessage", status=429, description="Too Many Requests", retry_after=600, chat=GROUP_ID)
    async with (
        quiet.channel.reply(quiet.context(view, THERE)),
        quiet.channel.reply(quiet.context(other, Place("telegram", "-1002", None, "group"))),
    ):
        view.append("held")
        await server.wait_for(lambda: server.called("sendMessage"))
        other.append("free")
        await server.wait_for(lambda: texts(server, -1002) == ["free"])
    assert texts(server) == []


async def test_stop_waits_for_the_call_under_way(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    gate = server.fail("sendMessage", status=200, gate=asyncio.Event()).gate
    assert gate is not None
    async with quiet.channel.reply(quiet.context(view, THERE)) as stream:
        view.append("one")
        await server.wait_for(lambda: server.called("sendMessage"))
        stopping = asyncio.create_task(stream.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        gate.set()
        assert await stopping == (str(server.chats.shown(GROUP_ID)[0]["message_id"]),)


@pytest.mark.parametrize("fault", [{"status": 502, "description": "Bad Gateway"}, {"drop": True}, {"status": 400}])
async def test_a_live_update_that_fails_is_made_up_for_by_the_next(quiet: Rig, fault: Json) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view, THERE)):
        view.append("one")
        await server.wait_for(lambda: texts(server) == ["one"])
        server.fail("editMessageText", **fault)
        view.append(" two")
        await server.wait_for(lambda: texts(server) == ["one two"])


async def test_a_blocked_bot_shows_nothing_and_raises_nothing(quiet: Rig) -> None:
    quiet.server.chats.gone[DIRECT_ID] = "Forbidden: bot was blocked by the user"
    view = LiveView()
    async with quiet.channel.reply(quiet.context(view)) as stream:
        view.append("hello")
        await quiet.server.wait_for(lambda: quiet.server.called("sendMessage"))
        assert await stream.stop() == ()
    assert len(quiet.server.called("sendMessage")) == 1


async def test_an_error_in_the_run_ends_the_showing(quiet: Rig) -> None:
    async def fail() -> None:
        async with quiet.channel.reply(quiet.context(LiveView(), THERE)):
            await quiet.server.wait_for(lambda: texts(quiet.server) == ["…"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("telegram reply")]


# Typing


@pytest.mark.parametrize(
    ("place", "thread"),
    [
        (HERE, None),
        (Place("telegram", "-1002", "55", "group"), 55),
        (Place("telegram", "-1002", "1", "group"), 1),
    ],
)
async def test_typing_is_shown_at_once_and_until_text_is_seen(
    quiet: Rig, place: Place, thread: int | None
) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view, place)):
        await server.wait_for(lambda: len(server.called("sendChatAction")) >= 2)
        assert server.called("sendChatAction")[0].params.get("message_thread_id") == thread
        assert is_typing()
        view.append("text")
        await server.wait_for(lambda: server.called("sendMessageDraft", ok=True) or "text" in texts(server, -1002))
        await until(lambda: not is_typing())


async def test_typing_that_hangs_delays_nothing(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    server.fail("sendChatAction", gate=asyncio.Event(), times=99)
    async with quiet.channel.reply(quiet.context(view, THERE)) as stream:
        view.append("text")
        await server.wait_for(lambda: texts(server) == ["text"])
        await stream.stop()
    await quiet.deliver("text.", THERE)
    assert texts(server) == ["text", "text."]


async def test_the_general_topic_is_left_out_when_sending(quiet: Rig) -> None:
    general, topic = Place("telegram", "-1002", "1", "group"), Place("telegram", "-1002", "55", "group")
    for place in (general, topic):
        view = LiveView()
        async with quiet.channel.reply(quiet.context(view, place)) as stream:
            view.append("text")
            await quiet.server.wait_for(lambda: "text" in texts(quiet.server, -1002)[-1:])
            await quiet.deliver("final", place, posted=await stream.stop())
        await quiet.deliver("other", place)
    threads = [call.params.get("message_thread_id") for call in quiet.server.called("sendMessage", ok=True)]
    assert threads == [None, None, 55, 55]


# Drafts


async def test_in_private_the_text_grows_in_a_draft_under_a_panel_with_the_button(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view)) as stream:
        view.append("The **answer**")
        await server.wait_for(lambda: drafts(server) == ["The answer"])
        (panel,) = server.chats.shown(DIRECT_ID)
        assert (panel["text"], button(panel)) == ("…", "cancel:req-1")
        assert server.called("sendMessage")[0].params["disable_notification"] is True
        view.tool("t", ToolLine("time", "", "running"))
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["⏳ time"])
        view.append(" is 42")
        await server.wait_for(lambda: drafts(server)[-1] == "The answer is 42")
        assert len({call.params["draft_id"] for call in server.called("sendMessageDraft")}) == 1
        posted = await stream.stop()
    assert posted == ()
    assert texts(server, DIRECT_ID) == []
    await quiet.deliver("The **answer** is 42", posted=posted)
    assert texts(server, DIRECT_ID) == ["The answer is 42"]
    assert len(server.called("sendMessage")) == 2


async def test_no_message_is_posted_once_a_draft_is_shown(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view)):
        for number in range(6):
            view.append(f"{number} " + "x" * 1200 + "\n")
            view.tool(str(number), ToolLine("time", str(number), "running"))
            wanted = f"{number} x"
            await server.wait_for(partial(shown_in_drafts, server, wanted))
    assert len(server.called("sendMessage")) == 1
    assert all(units(text) <= 4096 for text in drafts(server))
    assert len({call.params["draft_id"] for call in server.called("sendMessageDraft")}) == 3


async def test_a_draft_is_shown_again_before_it_fades(server: TelegramServer) -> None:
    async with opened(server, paces=replace(FAST, reply=replace(FAST.reply, draft_again=0.05))) as rig:
        view = LiveView()
        async with rig.channel.reply(rig.context(view)):
            view.append("waiting for a tool")
            await server.wait_for(lambda: len(drafts(server)) >= 3)
    assert set(drafts(server)) == {"waiting for a tool"}


async def test_a_server_without_drafts_is_asked_once_and_edits_take_over(plain_rig: Rig) -> None:
    server = plain_rig.server
    for _ in range(2):
        view = LiveView()
        async with plain_rig.channel.reply(plain_rig.context(view)) as stream:
            view.append("one")
            await server.wait_for(lambda: texts(server, DIRECT_ID)[-1:] == ["one"])
            view.append(" two")
            await server.wait_for(lambda: texts(server, DIRECT_ID)[-1:] == ["one two"])
            assert len(await stream.stop()) == 1
    assert len(server.called("sendMessageDraft")) == 1


async def test_a_chat_that_refuses_drafts_is_served_by_edits_others_are_not(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    server.fail("sendMessageDraft", description="Bad Request: TEXTDRAFT_PEER_INVALID")
    async with quiet.channel.reply(quiet.context(view)):
        view.append("one")
        await server.wait_for(lambda: texts(server, DIRECT_ID) == ["one"])
    view = LiveView()
    async with quiet.channel.reply(quiet.context(view)):
        view.append("two")
        await server.wait_for(lambda: drafts(server) == ["two"])


async def test_a_panel_that_can_not_be_removed_takes_the_final_text(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    server.fail("deleteMessage", status=502, description="Bad Gateway")
    async with quiet.channel.reply(quiet.context(view)) as stream:
        view.append("one")
        await server.wait_for(lambda: drafts(server) == ["one"])
        posted = await stream.stop()
    assert len(posted) == 1
    await quiet.deliver("one", posted=posted)
    assert texts(server, DIRECT_ID) == ["one"]


async def test_a_chat_that_must_be_left_alone_is_left_alone_at_the_end_too(quiet: Rig) -> None:
    server, view = quiet.server, LiveView()
    async with quiet.channel.reply(quiet.context(view)) as stream:
        view.append("one")
        await server.wait_for(lambda: drafts(server) == ["one"])
        server.fail("sendMessageDraft", status=429, description="Too Many Requests", retry_after=600)
        view.append(" two")
        await server.wait_for(lambda: server.called("sendMessageDraft")[-1].status == 429)
        assert len(await stream.stop()) == 1
    assert not server.called("deleteMessage")


# Pace


@asynccontextmanager
async def limited(server: TelegramServer) -> AsyncIterator[Rig]:
    """With the real windows, a hundred times as fast."""
    limits = Limits(((2, 0.02),), ((1, 0.03), (14, 0.6)), ((5, 0.05),), ((3, 0.03), (19, 0.6)))
    async with opened(server, paces=replace(FAST, limits=limits)) as rig:
        yield rig


async def test_a_group_is_edited_at_most_so_often_and_room_is_left_for_the_final_text(
    server: TelegramServer,
) -> None:
    async with limited(server) as rig:
        view = LiveView()
        async with rig.channel.reply(rig.context(view, THERE)) as stream:
            for number in range(40):
                view.append(f"{number} ")
                await asyncio.sleep(0.005)
            posted = await stream.stop()
        live = [call.at for call in server.calls if call.method in ("sendMessage", "editMessageText")]
        await rig.deliver("done", THERE, posted=posted)
    assert 2 <= len(live) <= 14
    assert texts(server) == ["done"]
