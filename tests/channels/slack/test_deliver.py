"""Final texts out: whole, once, and in whatever form Slack takes."""

from __future__ import annotations

import asyncio

import pytest

from channels.base import OutFile, Place, TryLater, Undeliverable
from tests.channels.slack.conftest import Rig
from tests.servers.slack_rules import all_texts
from tests.servers.slack_server import SlackServer

THREAD = Place("slack", "C1", "1.1", "group")
DIRECT = Place("slack", "D1")
LONG = "\n\n".join(f"{number}: " + "word " * 300 for number in range(16))


async def test_a_short_text_is_one_message_in_its_thread(rig: Rig) -> None:
    posted = await rig.deliver("**Hi** <@U1> & all", THREAD)
    [message] = rig.shown()
    assert posted == (message["ts"],)
    assert message["thread_ts"] == "1.1"
    assert message["blocks"] == [{"type": "markdown", "text": "**Hi** &lt;@U1> & all"}]
    assert message["text"] == "**Hi** &lt;@U1&gt; &amp; all"


async def test_a_direct_message_is_answered_outside_of_any_thread(rig: Rig) -> None:
    await rig.deliver("hi", DIRECT)
    assert "thread_ts" not in rig.shown("D1")[0]


async def test_what_is_posted_already_is_edited_and_the_rest_follows(rig: Rig) -> None:
    [first] = await rig.deliver("half", THREAD)
    posted = await rig.deliver(LONG, THREAD, posted=(first,))
    assert posted[0] == first
    assert list(posted) == [message["ts"] for message in rig.shown()]
    text = "".join(all_texts(message)[1] for message in rig.shown())
    assert [f"{number}: " in text for number in range(16)] == [True] * 16
    assert len(rig.server.of("chat.update")) == 1


async def test_messages_of_the_live_showing_that_are_not_needed_go(rig: Rig) -> None:
    posted = await rig.deliver(LONG, THREAD)
    assert len(posted) > 1
    assert await rig.deliver("short after all", THREAD, posted=posted) == posted[:1]
    assert [message["ts"] for message in rig.shown()] == [posted[0]]


async def test_a_message_that_somebody_deleted_is_posted_anew(rig: Rig) -> None:
    posted = await rig.deliver("text", THREAD, posted=("9.9",))
    assert posted == (rig.shown()[0]["ts"],)


@pytest.mark.parametrize("error", ["invalid_blocks", "msg_too_long", "msg_blocks_too_long"])
async def test_where_the_markdown_block_is_refused_sections_are_sent(rig: Rig, error: str) -> None:
    rig.server.fail("chat.postMessage", error)
    await rig.deliver("**bold** & more", THREAD)
    [message] = rig.shown()
    assert all_texts(message)[1] == "*bold* &amp; more"


async def test_where_all_markup_is_refused_plain_text_arrives(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", "invalid_blocks", times=2)
    await rig.deliver(LONG, THREAD)
    assert all(message["blocks"] == [] for message in rig.shown())
    assert " ".join(str(m["text"]) for m in rig.shown()).split() == LONG.split()


async def test_a_form_that_is_refused_half_way_is_not_shown_twice(rig: Rig) -> None:
    text = "- top\n" + "  - item\n" * 1200  # one part; as mrkdwn, more deeply indented, two messages
    rig.server.fail("chat.postMessage", "invalid_blocks")
    rig.server.fail("chat.postMessage", "invalid_blocks", skip=1)
    posted = await rig.deliver(text, DIRECT)
    assert [message["ts"] for message in rig.shown("D1")] == list(posted)
    assert sum(str(message["text"]).count("item") for message in rig.shown("D1")) == 1200
    assert all(message["blocks"] == [] for message in rig.shown("D1"))


async def test_blank_text_still_says_something(rig: Rig) -> None:
    await rig.deliver("  \n", THREAD)
    assert rig.shown()[0]["text"] == "(no text)"


async def test_a_short_wait_is_waited_and_a_long_one_handed_back(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", retry_after="0")
    await rig.deliver("after a moment", THREAD)
    rig.server.fail("chat.postMessage", retry_after="60")
    with pytest.raises(TryLater) as caught:
        await rig.deliver("later", THREAD)
    assert caught.value.after == pytest.approx(60, abs=1)
    assert not caught.value.uncertain
    calls = len(rig.server.calls)
    with pytest.raises(TryLater) as caught:
        await rig.deliver("also later", THREAD)
    assert (caught.value.after or 0) > 50
    assert len(rig.server.calls) == calls
    await rig.deliver("elsewhere", DIRECT)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("channel_not_found", "/invite"),
        ("not_in_channel", "/invite"),
        ("is_archived", "archived"),
        ("account_inactive", "bot_token"),
        ("token_revoked", "bot_token"),
    ],
)
async def test_what_can_never_arrive_says_why(rig: Rig, error: str, says: str) -> None:
    rig.server.fail("chat.postMessage", error)
    with pytest.raises(Undeliverable, match=says) as caught:
        await rig.deliver("x", THREAD)
    assert "xoxb" not in str(caught.value)


async def test_a_missing_scope_is_named(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", "missing_scope", needed="chat:write")
    with pytest.raises(Undeliverable, match="chat:write"):
        await rig.deliver("x", THREAD)


@pytest.mark.parametrize(("status", "error"), [(502, ""), (200, "internal_error"), (500, "fatal_error")])
async def test_a_server_fault_may_have_posted_it(rig: Rig, status: int, error: str) -> None:
    rig.server.fail("chat.postMessage", error, status=status)
    with pytest.raises(TryLater) as caught:
        await rig.deliver("x", THREAD)
    assert caught.value.uncertain


async def test_a_connection_that_breaks_is_not_tried_again_behind_our_back(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", after=True, drop=True)
    with pytest.raises(TryLater) as caught:
        await rig.deliver("x", THREAD)
    assert caught.value.uncertain
    assert len(rig.server.of("chat.postMessage")) == 1


async def test_a_server_that_is_not_there_is_no_uncertainty(rig: Rig, server: SlackServer) -> None:
    await server.stop()
    with pytest.raises(TryLater) as caught:
        await rig.deliver("x", THREAD)
    assert not caught.value.uncertain


@pytest.mark.parametrize("place", [THREAD, DIRECT])
async def test_after_an_uncertain_try_the_message_is_found_and_not_posted_twice(rig: Rig, place: Place) -> None:
    rig.server.fail("chat.postMessage", status=502, after=True)
    with pytest.raises(TryLater):
        await rig.deliver("exactly once", place)
    posted = await rig.deliver("exactly once", place, uncertain=True)
    assert [message["ts"] for message in rig.shown(place.chat)] == list(posted)


async def test_a_delivery_that_broke_off_goes_on_where_it_was(rig: Rig) -> None:
    rig.server.fail("chat.postMessage", times=1, retry_after="0")
    whole = len(await rig.deliver(LONG, DIRECT))
    gone = rig.server.slack.messages["D1"].copy()
    rig.server.slack.messages["D1"].clear()
    assert whole == len(gone) > 2

    task = asyncio.create_task(rig.deliver(LONG, THREAD))
    before = len(rig.server.of("chat.postMessage"))
    await rig.server.until(lambda: len(rig.server.of("chat.postMessage")) > before)
    rig.server.fail("chat.postMessage", "internal_error")
    with pytest.raises(TryLater):
        await task
    assert 0 < len(rig.shown()) < whole
    posted = await rig.deliver(LONG, THREAD)
    assert [message["ts"] for message in rig.shown()] == list(posted)
    assert len(posted) == whole


async def test_files_are_uploaded_into_the_thread_once(rig: Rig) -> None:
    files = (OutFile("a.txt", "text/plain", b"one"), OutFile("b.txt", "text/plain", b"two"))
    rig.server.fail("files.completeUploadExternal", "internal_error", skip=1)
    with pytest.raises(TryLater):
        await rig.deliver("with files", THREAD, files=files)
    await rig.deliver("with files", THREAD, files=files)
    done = [file for file in rig.server.slack.files.values() if "channel" in file]
    assert [(file["data"], file["channel"], file["thread_ts"]) for file in done] == [
        (b"one", "C1", "1.1"),
        (b"two", "C1", "1.1"),
    ]
    assert len(rig.shown()) == 1


async def test_a_slash_command_in_a_channel_is_answered_to_its_author_only(rig: Rig) -> None:
    rig.server.slash("/status", user="U2", channel="C1")
    [inbound] = await rig.hear()
    await rig.deliver("all is well", inbound.place, reply_to=inbound.message_ref)
    [whisper] = rig.server.slack.ephemeral
    assert (whisper["user"], whisper["channel"]) == ("U2", "C1")
    assert rig.shown("C1") == []


async def test_where_the_bot_is_no_member_a_slash_command_is_answered_at_its_own_address(rig: Rig) -> None:
    rig.server.slash("/status", channel="C9")
    [inbound] = await rig.hear()
    await rig.deliver("all is well", inbound.place, reply_to=inbound.message_ref)
    [response] = rig.server.responses
    assert response["response_type"] == "ephemeral"
    assert "all is well" in response["text"]


async def test_a_slash_command_in_a_direct_message_is_answered_there(rig: Rig) -> None:
    rig.server.slash("/status", channel="D1")
    [inbound] = await rig.hear()
    await rig.deliver("all is well", inbound.place, reply_to=inbound.message_ref)
    assert len(rig.shown("D1")) == 1
