"""Events in, over a real Socket Mode connection."""

from __future__ import annotations

import asyncio

import pytest

from bridge.errors import StoreError
from channels.base import Accepted, Place
from tests.channels.slack.conftest import Rig, running
from tests.servers.slack_server import BOT_USER, SlackServer, person

MENTION = f"<@{BOT_USER}>"


async def acked(*envelopes: object) -> None:
    async with asyncio.timeout(10):
        for envelope in envelopes:
            await envelope.acked.wait()  # type: ignore[attr-defined]  # an Envelope


async def test_a_direct_message_is_taken_in_with_who_where_and_when(rig: Rig) -> None:
    [envelope] = await rig.server.say("hello", user="U2", channel="D1")
    [inbound] = await rig.hear()
    event = envelope.payload["event"]
    assert inbound.place == Place("slack", "D1", None, "direct")
    assert (inbound.sender.id, inbound.sender.name, inbound.sender.time_zone) == ("U2", "Bob & Co", "Asia/Tokyo")
    assert not inbound.sender.guest
    assert inbound.text == "hello"
    assert inbound.message_ref == event["ts"]
    assert inbound.event_keys == (f"slack:T1:{envelope.payload['event_id']}", f"slack:T1:D1:{event['ts']}")
    assert inbound.sent_at.timestamp() == pytest.approx(float(event["ts"]), abs=1e-3)
    assert inbound.bare_commands
    await acked(envelope)


async def test_a_mention_that_comes_as_two_events_is_one_message_in_its_own_thread(rig: Rig) -> None:
    envelopes = await rig.server.say(f"{MENTION} what is new?", channel="C1")
    assert len(envelopes) == 2
    await acked(*envelopes)
    [inbound] = rig.intake.inbound
    assert sorted(rig.intake.results) == [Accepted.DUPLICATE, Accepted.STORED]
    assert inbound.place == Place("slack", "C1", envelopes[0].payload["event"]["ts"], "group")
    assert inbound.text == "what is new?"


async def test_a_message_is_not_acknowledged_before_it_is_stored(rig: Rig) -> None:
    rig.intake.gate = asyncio.Event()
    [envelope] = await rig.server.say("slow disk")
    await rig.intake.until(lambda: rig.intake.tried == 1)
    assert not envelope.acked.is_set()
    rig.intake.gate.set()
    await acked(envelope)
    assert len(rig.intake.inbound) == 1


async def test_what_could_not_be_stored_is_sent_again_by_slack_and_then_taken(rig: Rig) -> None:
    rig.intake.failing = [StoreError("disk full")]
    [envelope] = await rig.server.say("keep me")
    await acked(envelope)
    assert envelope.sent == 2
    assert [inbound.text for inbound in rig.intake.inbound] == ["keep me"]


async def test_an_unexpected_fault_of_ours_leaves_the_message_with_slack(rig: Rig) -> None:
    rig.intake.failing = [RuntimeError("a bug")]
    [envelope] = await rig.server.say("keep me")
    await acked(envelope)
    assert envelope.sent == 2


async def test_thread_replies_are_answered_only_where_the_bot_was_before(rig: Rig) -> None:
    rig.intake.known = {"slack/C1/1.1"}
    await acked(*await rig.server.say("elsewhere", channel="C1", thread_ts="2.2"))
    await acked(*await rig.server.say("and more", channel="C1", thread_ts="1.1"))
    await acked(*await rig.server.say("talk", channel="C1"))
    await acked(*await rig.server.say("first of a thread", channel="C1", ts="1.1", thread_ts="1.1"))
    [inbound] = rig.intake.inbound
    assert (inbound.text, inbound.place) == ("and more", Place("slack", "C1", "1.1", "group"))


async def test_thread_replies_can_be_switched_off(server: SlackServer) -> None:
    async with running(server, thread_replies=False) as rig:
        rig.intake.known = {"slack/C1/1.1"}
        await acked(*await server.say("and more", channel="C1", thread_ts="1.1"))
        await acked(*await server.say(f"{MENTION} cancel", channel="C1", thread_ts="1.1"))
        [inbound] = rig.intake.inbound
        assert (inbound.text, inbound.bare_commands) == ("cancel", True)


async def test_a_thread_in_a_direct_message_is_its_own_place(rig: Rig) -> None:
    await rig.server.say("in the pane", channel="D1", thread_ts="5.5")
    [inbound] = await rig.hear()
    assert inbound.place == Place("slack", "D1", "5.5", "direct")


@pytest.mark.parametrize(
    "more",
    [
        {"subtype": "message_changed", "message": {"text": "x"}},
        {"subtype": "message_deleted"},
        {"subtype": "bot_message", "bot_id": "B2"},
        {"subtype": "channel_join"},
        {"bot_id": "B2"},
        {"app_id": "A2"},
        {"user": BOT_USER},
        {"user": "USLACKBOT"},
    ],
)
async def test_edits_bots_and_ourselves_are_acknowledged_and_never_answered(
    rig: Rig, more: dict[str, object]
) -> None:
    envelopes = await rig.server.say("loop?", **{"channel": "D1", **more})  # type: ignore[arg-type]  # see say()
    await acked(*envelopes)
    assert rig.intake.tried == 0


async def test_events_nobody_listens_to_are_acknowledged(rig: Rig) -> None:
    await acked(rig.server.event({"type": "reaction_added", "user": "U1", "item": {}}))
    await acked(rig.server.event({"type": "assistant_thread_started", "assistant_thread": {"user_id": "U1"}}))


async def test_guests_and_strangers_are_marked(rig: Rig) -> None:
    for user in ("UGUEST", "UEXT", "UOTHER", "UNKNOWN", "UGRID", "U1"):
        await rig.server.say("hi", user=user)
        await rig.hear(len(rig.intake.inbound) + 1)
    assert [(i.sender.id, i.sender.guest) for i in rig.intake.inbound] == [
        ("UGUEST", True),
        ("UEXT", True),
        ("UOTHER", True),
        ("UNKNOWN", True),
        ("UGRID", False),
        ("U1", False),
    ]


async def test_people_are_asked_for_once(rig: Rig) -> None:
    await rig.server.say("one")
    await rig.hear(1)
    await rig.server.say("two")
    await rig.hear(2)
    assert len(rig.server.of("users.info")) == 1


async def test_where_slack_does_not_say_who_it_is_nobody_is_let_in_by_guess(rig: Rig) -> None:
    rig.server.fail("users.info", "internal_error")
    [envelope] = await rig.server.say("hi", user="UGUEST")
    await acked(envelope)
    assert envelope.sent == 2
    assert rig.intake.inbound[0].sender.guest


async def test_names_links_and_entities_are_decoded(rig: Rig) -> None:
    link = "<https://e.org/?a=1&amp;b=2|this>"
    text = f"{MENTION}, ask <@U2> in <#C2|general> if a &lt; b &amp;&amp; c, see {link} <!here>"
    await rig.server.say(text, channel="C1")
    [inbound] = await rig.hear()
    assert inbound.text == ("ask @Bob & Co in #general if a < b && c, see this (https://e.org/?a=1&b=2) @here")


async def test_a_first_mention_in_a_thread_brings_its_earlier_talk(rig: Rig) -> None:
    first, *_ = await rig.server.say("who can help?", channel="C1", user="U2")
    thread = first.payload["event"]["ts"]
    await acked(*await rig.server.say("the robot &amp; <@U2>", channel="C1", user="U1", thread_ts=thread))
    await rig.server.say(f"{MENTION} please", channel="C1", user="U2", thread_ts=thread)
    [inbound] = await rig.hear()
    assert inbound.context == ("Bob & Co: who can help?", "Ann: the robot & @Bob & Co")
    rig.intake.known = {inbound.place.session_id}
    await rig.server.say("thanks", channel="C1", user="U2", thread_ts=thread)
    assert (await rig.hear(2))[1].context == ()


async def test_an_unreadable_thread_is_no_reason_to_stay_silent(rig: Rig) -> None:
    rig.server.fail("conversations.replies", "missing_scope")
    await rig.server.say(f"{MENTION} please", channel="C1", thread_ts="1.1")
    assert (await rig.hear())[0].context == ()


async def test_files_come_along_as_pictures_text_and_names(rig: Rig) -> None:
    share = rig.server.slack.share
    evil = share("evil.png", "image/png", b"\x89PNG...")
    files = [
        share("cat.png", "image/png", b"\x89PNG..."),
        share("notes.txt", "text/plain", "grüße".encode()),
        share("song.mp3", "audio/mpeg", b"ID3"),
        share("huge.png", "image/png", b"x", size=50_000_000),
        share("bin.txt", "text/plain", b"\xff\xfe\x00"),
        {**evil, "url_private": evil["url_private"].replace("127.0.0.1", "localhost")},
    ]
    await rig.server.say("look", subtype="file_share", files=files)
    [inbound] = await rig.hear()
    got = [(a.kind, a.name, a.data, a.text) for a in inbound.attachments]
    assert got == [
        ("image", "cat.png", b"\x89PNG...", None),
        ("text", "notes.txt", None, "grüße"),
        ("voice", "song.mp3", None, None),
        ("file", "huge.png", None, None),
        ("file", "bin.txt", None, None),
        ("file", "evil.png", None, None),
    ]


@pytest.mark.parametrize(
    ("typed", "rest", "text"),
    [
        ("/cancel", "", "/cancel"),
        ("/Stop", "", "/stop"),
        ("/new", "topic &amp; more", "/new topic & more"),
        ("/steadybot", "status", "/status"),
        ("/steadybot", "", "/help"),
        ("/steadybot-status", "", "/status"),
        ("/steadybot", "/remind me <@U2>", "/remind me @Bob & Co"),
    ],
)
async def test_slash_commands_are_commands_of_the_channel(rig: Rig, typed: str, rest: str, text: str) -> None:
    envelope = rig.server.slash(typed, rest, channel="C1")
    [inbound] = await rig.hear()
    assert (inbound.text, inbound.place) == (text, Place("slack", "C1", None, "group"))
    assert inbound.event_keys == (f"slack:T1:slash:{envelope.payload['trigger_id']}",)
    await acked(envelope)
    assert not envelope.answer


async def test_messages_of_one_conversation_keep_their_order(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.server.fail("users.info", "", gate=gate)
    await rig.server.say("first", user="U1")
    await rig.server.until(lambda: len(rig.server.of("users.info")) == 1)
    rig.server.slack.users["U3"] = person("U3", "Cy")
    await rig.server.say("second", user="U3")
    await rig.server.say("other place", user="U3", channel="D2")
    await rig.hear(1)
    gate.set()
    assert [inbound.text for inbound in await rig.hear(3)] == ["other place", "first", "second"]


async def test_reconnects_lose_nothing(rig: Rig) -> None:
    server = rig.server
    await server.say("one")
    await rig.hear(1)
    await server.disconnect()
    await server.say("two")
    await rig.hear(2)
    await server.drop()
    await server.say("three")
    await rig.hear(3)
    assert [inbound.text for inbound in rig.intake.inbound] == ["one", "two", "three"]
    assert server.slack.opened >= 3


async def test_a_redelivered_event_is_recognised_by_its_keys(rig: Rig) -> None:
    [envelope] = await rig.server.say("once")
    await acked(envelope)
    await acked(rig.server.send("events_api", envelope.payload))
    assert rig.intake.results == [Accepted.STORED, Accepted.DUPLICATE]
    assert len(rig.intake.inbound) == 1
