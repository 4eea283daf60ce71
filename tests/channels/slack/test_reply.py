"""The running reply: one owner of its messages, at Slack's pace, with a Stop button until the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from bridge.errors import StoreError
from channels.base import CancelReply, LiveView, Place, ReplyStream, ToolLine
from channels.slack.reply import Pace
from tests.channels.slack.conftest import Rig, running
from tests.servers.slack_rules import all_texts
from tests.servers.slack_server import SlackServer

THREAD = Place("slack", "C1", "1.1", "group")
PANE = Place("slack", "D1", "5.5", "direct")
DIRECT = Place("slack", "D1")


def button_of(message: dict[str, object]) -> str | None:
    blocks = message.get("blocks") or []
    assert isinstance(blocks, list)
    return next((b["elements"][0]["value"] for b in blocks if b["type"] == "actions"), None)


def body_of(message: dict[str, object]) -> str:
    return "\n".join(all_texts({"blocks": message.get("blocks", [])}))


@asynccontextmanager
async def replying(rig: Rig, place: Place, **more: object) -> AsyncIterator[tuple[LiveView, ReplyStream]]:
    view = LiveView()
    async with rig.channel.reply(rig.context(place, view, **more)) as stream:
        yield view, stream


async def test_a_reply_grows_in_one_message_and_ends_as_the_final_text(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, stream):
        view.append("Once ")
        await rig.server.until(lambda: bool(rig.shown()))
        view.append("upon a time")
        await rig.server.until(lambda: "upon a time" in body_of(rig.shown()[0]))
        assert button_of(rig.shown()[0]) == "req-1"
        posted = await stream.stop()
    assert await rig.deliver("Once upon a time.", THREAD, posted=posted) == posted
    [message] = rig.shown()
    assert (message["ts"], message["thread_ts"]) == (posted[0], "1.1")
    assert button_of(message) is None
    assert body_of(message) == "Once upon a time."


async def test_a_long_wait_shows_that_we_are_at_work_with_a_button(rig: Rig) -> None:
    async with replying(rig, DIRECT) as (view, stream):
        await rig.server.until(lambda: bool(rig.shown("D1")))
        [message] = rig.shown("D1")
        assert "Working" in body_of(message)
        assert button_of(message) == "req-1"
        view.tool("t1", ToolLine("search", "<!here> " + "x" * 500, "running"))
        await rig.server.until(lambda: "search" in body_of(rig.shown("D1")[0]))
        view.tool("t1", ToolLine("search", "q", "done"))
        view.status("waiting & trying again")
        await rig.server.until(lambda: "&amp; trying again" in body_of(rig.shown("D1")[0]))
        assert "✓ search q" in body_of(rig.shown("D1")[0])
        assert await stream.stop() == (message["ts"],)


async def test_a_quick_answer_needs_no_live_message(rig: Rig) -> None:
    async with replying(rig, THREAD) as (_, stream):
        assert await stream.stop() == ()
        assert await stream.stop() == ()
    assert rig.shown() == []


async def test_thinking_is_shown_next_to_our_name(rig: Rig) -> None:
    async with replying(rig, THREAD) as (_, stream):
        await rig.server.until(lambda: bool(rig.server.of("assistant.threads.setStatus")))
        [status] = rig.server.of("assistant.threads.setStatus")
        assert (status["channel_id"], status["thread_ts"]) == ("C1", "1.1")
        await stream.stop()


async def test_a_workspace_without_status_is_asked_once(server: SlackServer) -> None:
    server.slack.status = False
    async with running(server) as rig:
        for _ in range(3):
            server.slack.messages.clear()
            async with replying(rig, THREAD):
                await server.until(lambda: bool(rig.shown()))
    assert len(server.of("assistant.threads.setStatus")) == 1


async def test_a_status_that_hangs_delays_neither_the_end_nor_the_answer(server: SlackServer) -> None:
    fault = server.fail("assistant.threads.setStatus", gate=asyncio.Event())
    async with running(server, pace=Pace(patience=60)) as rig, replying(rig, THREAD) as (_, stream):
        await server.until(lambda: bool(server.of("assistant.threads.setStatus")))
        await asyncio.wait_for(stream.stop(), 5)
    assert fault.gate is not None
    fault.gate.set()


async def test_nothing_is_called_when_nothing_changed(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, stream):
        view.append("same")
        await rig.server.until(lambda: bool(rig.shown()))
        before = len(rig.server.of("chat.update"))
        for _ in range(5):
            view.status(None)
            await asyncio.sleep(0.03)  # several intervals: the absence of a call has no event
        assert len(rig.server.of("chat.update")) == before
        await stream.stop()


async def test_asked_to_wait_the_newest_text_wins(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, stream):
        view.append("1 ")
        await rig.server.until(lambda: bool(rig.shown()))
        rig.server.fail("chat.update", retry_after="0.3")
        view.append("2 ")
        await rig.server.until(lambda: bool(rig.server.of("chat.update")))
        for number in range(3, 9):
            view.append(f"{number} ")
            await asyncio.sleep(0.01)
        await rig.server.until(lambda: len(rig.server.of("chat.update")) == 2)
        assert "8" in body_of(rig.shown()[0])
        await stream.stop()


async def test_a_long_wait_does_not_hold_up_the_end(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, stream):
        view.append("1 ")
        await rig.server.until(lambda: bool(rig.shown()))
        rig.server.fail("chat.update", retry_after="120")
        view.append("2 ")
        await rig.server.until(lambda: bool(rig.server.of("chat.update")))
        assert len(await asyncio.wait_for(stream.stop(), 2)) == 1


async def test_a_long_reply_goes_on_in_further_messages(rig: Rig) -> None:
    text = "\n\n".join("word " * 200 for _ in range(20))
    async with replying(rig, THREAD) as (view, stream):
        view.append(text)
        await rig.server.until(lambda: len(rig.shown()) == 2)
        first, second = rig.shown()
        assert (button_of(first), button_of(second)) == (None, "req-1")
        posted = await stream.stop()
    assert await rig.deliver(text, THREAD, posted=posted) == posted
    assert [button_of(message) for message in rig.shown()] == [None, None]


async def test_a_replaced_text_replaces_what_is_shown(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, _stream):
        view.append("wrong way")
        await rig.server.until(lambda: bool(rig.shown()))
        view.replace("right way")
        await rig.server.until(lambda: body_of(rig.shown()[0]).startswith("right way"))


async def test_posted_messages_are_noted_at_once_and_a_full_disk_stops_nothing(rig: Rig) -> None:
    noted: list[Sequence[str]] = []

    async def note(posted: Sequence[str]) -> None:
        noted.append(tuple(posted))
        raise StoreError("disk full")

    async with replying(rig, THREAD, note_posted=note) as (view, _stream):
        view.append("one")
        await rig.server.until(lambda: bool(rig.shown()))
        view.append(" two")
        await rig.server.until(lambda: "two" in body_of(rig.shown()[0]))
    assert noted == [(rig.shown()[0]["ts"],)]


async def test_after_a_restart_the_old_message_is_used_again(rig: Rig) -> None:
    [old] = await rig.deliver("half an answer", THREAD)
    async with replying(rig, THREAD, posted=(old,)) as (view, stream):
        view.append("anew")
        await rig.server.until(lambda: "anew" in body_of(rig.shown()[0]))
        assert await stream.stop() == (old,)
    assert len(rig.shown()) == 1


async def test_a_live_message_that_somebody_deletes_is_shown_again(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, stream):
        view.append("one")
        await rig.server.until(lambda: bool(rig.shown()))
        rig.server.slack.messages["C1"].clear()
        view.append(" two")
        await rig.server.until(lambda: bool(rig.shown()))
        assert await stream.stop() == (rig.shown()[0]["ts"],)


async def test_a_live_post_whose_answer_was_lost_is_found_at_the_end(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", status=502, after=True)
    async with replying(rig, THREAD) as (view, stream):
        view.append("one")
        await rig.server.until(lambda: bool(rig.shown()))
        posted = await stream.stop()
    await rig.deliver("one.", THREAD, posted=posted)
    assert [body_of(message) for message in rig.shown()] == ["one."]


@pytest.mark.parametrize("error", ["invalid_blocks", "not_in_channel", "internal_error", "some_new_error"])
async def test_no_fault_of_slack_comes_out_of_the_live_showing(rig: Rig, error: str) -> None:
    rig.server.fail("chat.postMessage", error, times=1000)
    async with replying(rig, THREAD) as (view, stream):
        view.append("one")
        await rig.server.until(lambda: bool(rig.server.of("chat.postMessage")))
        assert await stream.stop() == ()


async def test_where_the_markdown_block_is_refused_the_words_are_shown_plainly(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", "invalid_blocks")
    async with replying(rig, THREAD) as (view, _stream):
        view.append("**one**")
        await rig.server.until(lambda: bool(rig.shown()))
        assert body_of(rig.shown()[0]).startswith("**one**")
        assert button_of(rig.shown()[0]) == "req-1"


async def test_calls_that_fail_again_and_again_become_rare(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", "not_in_channel", times=1000)
    async with replying(rig, THREAD) as (view, _stream):
        view.append("one")
        await asyncio.sleep(0.6)  # at the plain interval that would be some 30 calls
    assert len(rig.server.of("chat.postMessage")) <= 6


async def test_a_cancelled_run_leaves_no_task_behind(rig: Rig) -> None:
    async def run() -> None:
        async with replying(rig, THREAD) as (view, _stream):
            view.append("one")
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    task = asyncio.create_task(run())
    await rig.server.until(lambda: bool(rig.shown()))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not {t for t in asyncio.all_tasks() - before if t.get_name().startswith("slack reply")}


# ---- native streaming


async def test_the_assistant_pane_is_streamed_natively_with_the_button_beside_it(rig: Rig) -> None:
    noted: list[tuple[str, ...]] = []

    async def note(posted: Sequence[str]) -> None:
        noted.append(tuple(posted))

    async with replying(rig, PANE, asker="U1", note_posted=note) as (view, stream):
        view.append("Once\n")
        await rig.server.until(lambda: bool(rig.server.of("chat.startStream")))
        [start] = rig.server.of("chat.startStream")
        assert (start["thread_ts"], start["recipient_user_id"], start["recipient_team_id"]) == ("5.5", "U1", "T1")
        view.append("upon\n")
        view.append("a time\n")
        await rig.server.until(lambda: any("a time" in str(m["text"]) for m in rig.shown("D1")))
        panel, streamed = rig.shown("D1")
        assert button_of(panel) == "req-1"
        posted = await stream.stop()
    assert posted == (streamed["ts"],)
    assert rig.server.slack.streams == {posted[0]: False}
    assert set(noted[-1]) == {panel["ts"], streamed["ts"]}
    await rig.deliver("Once\nupon\na time.", PANE, posted=posted)
    assert [body_of(message) for message in rig.shown("D1")] == ["Once\nupon\na time."]


async def test_a_workspace_without_streaming_is_asked_once_and_gets_edits(server: SlackServer) -> None:
    server.slack.streaming = False
    async with running(server) as rig:
        for number in range(2):
            async with replying(rig, PANE, asker="U1", request_id=f"r{number}") as (view, stream):
                view.append("text\n")
                await server.until(
                    partial(lambda n: len(rig.shown("D1")) > n and "text" in body_of(rig.shown("D1")[n]), number)
                )
                posted = await stream.stop()
            assert posted == (rig.shown("D1")[-1]["ts"],)
    assert len(server.of("chat.startStream")) == 1
    assert len(rig.shown("D1")) == 2


async def test_a_stream_that_slack_ended_goes_on_by_edits(rig: Rig) -> None:
    async with replying(rig, PANE, asker="U1") as (view, stream):
        view.append("one\n")
        await rig.server.until(lambda: bool(rig.server.slack.streams))
        rig.server.slack.streams = dict.fromkeys(rig.server.slack.streams, False)
        view.append("two\n")
        await rig.server.until(lambda: any("two" in body_of(m) for m in rig.shown("D1")))
        posted = await stream.stop()
    assert len(rig.shown("D1")) == 1
    assert posted == (rig.shown("D1")[0]["ts"],)


async def test_a_replaced_text_ends_the_stream_and_replaces_it(rig: Rig) -> None:
    async with replying(rig, PANE, asker="U1") as (view, _stream):
        view.append("wrong\n")
        await rig.server.until(lambda: bool(rig.server.slack.streams))
        view.replace("right\n")
        await rig.server.until(lambda: any("right" in body_of(m) for m in rig.shown("D1")))
    assert not any(rig.server.slack.streams.values())


async def test_a_stream_left_open_by_a_crash_is_ended_by_the_final_text(rig: Rig) -> None:
    async with replying(rig, PANE, asker="U1") as (view, _stream):
        view.append("half\n")
        await rig.server.until(lambda: bool(rig.server.slack.streams))
        [ts] = rig.server.slack.streams
    rig.server.slack.streams[ts] = True
    await rig.deliver("whole", PANE, posted=(ts,))
    assert body_of(rig.shown("D1")[0]) == "whole"


async def test_streaming_in_channels_names_its_recipient(server: SlackServer) -> None:
    async with (
        running(server, stream_in_channels=True) as rig,
        replying(rig, THREAD, asker="U1") as (view, stream),
    ):
        view.append("hello\n")
        await server.until(lambda: bool(server.slack.streams))
        await stream.stop()


async def test_tokens_in_a_stream_call_nobody(rig: Rig) -> None:
    async with replying(rig, PANE, asker="U1") as (view, _stream):
        view.append("hi <!here")
        await asyncio.sleep(0.1)  # a half token must not go out; its absence has no event
        view.append("> and\nthen @chan")
        await rig.server.until(lambda: bool(rig.server.slack.streams))
        await asyncio.sleep(0.1)  # as above
        view.append("nel\nall\n")
        await rig.server.until(lambda: any("all" in str(m["text"]) for m in rig.shown("D1")))
    assert all("<!" not in str(m["text"]) and "@channel" not in str(m["text"]) for m in rig.shown("D1"))
    assert rig.server.of("chat.update") == []  # the stream went on


# ---- the button


async def test_a_press_on_stop_reaches_the_bridge(rig: Rig) -> None:
    async with replying(rig, THREAD) as (view, _stream):
        view.append("text")
        await rig.server.until(lambda: bool(rig.shown()))
        envelope = rig.server.press(rig.shown()[0], user="U2")
        await asyncio.wait_for(envelope.acked.wait(), 10)
    [(request_id, place, sender)] = rig.intake.cancels
    assert (request_id, place, sender.id) == ("req-1", THREAD, "U2")
    assert rig.server.slack.ephemeral == []


@pytest.mark.parametrize("answer", [CancelReply.NOTHING_RUNNING, CancelReply.NOT_ALLOWED])
async def test_a_press_that_stopped_nothing_is_answered_to_its_author(rig: Rig, answer: CancelReply) -> None:
    rig.intake.cancel_reply = answer
    async with replying(rig, THREAD) as (view, _stream):
        view.append("text")
        await rig.server.until(lambda: bool(rig.shown()))
    envelope = rig.server.press(rig.shown()[0], user="U2")
    await asyncio.wait_for(envelope.acked.wait(), 10)
    [whisper] = rig.server.slack.ephemeral
    assert (whisper["user"], whisper["thread_ts"]) == ("U2", "1.1")
    left = button_of(rig.shown()[0])
    assert left is (None if answer is CancelReply.NOTHING_RUNNING else left)
    assert (left is None) == (answer is CancelReply.NOTHING_RUNNING)
