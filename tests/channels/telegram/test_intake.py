"""Updates in: what reaches the bridge, when Telegram may forget it, and what becomes of faults."""

from __future__ import annotations

import asyncio

import pytest

from bridge.errors import StoreError
from channels.base import Accepted, CancelReply, LiveView, Place
from tests.channels.telegram.conftest import ANN, DIRECT, FORUM, GROUP, HERE, THERE, Rig, running, slow_polls
from tests.servers.telegram_server import BOT_ID, USERNAME, Json, TelegramServer, person, private


async def test_a_private_message_reaches_the_bridge_with_its_keys(rig: Rig) -> None:
    said = await rig.server.say(DIRECT, ANN, "hello")
    inbound = (await rig.intake.hear())[0]
    assert (inbound.place, inbound.text, inbound.sender.id, inbound.sender.name) == (HERE, "hello", "7", "Ann")
    assert inbound.message_ref == str(said["message_id"])
    assert inbound.event_keys == (f"telegram:{BOT_ID}:1001", f"telegram:{BOT_ID}:7:{said['message_id']}")
    await rig.confirmed()
    assert rig.server.called("getUpdates")[0].params["allowed_updates"] == ["message", "callback_query"]


async def test_an_update_is_confirmed_only_after_it_is_stored(rig: Rig) -> None:
    gate = rig.intake.gates["first"] = asyncio.Event()
    await rig.server.say(DIRECT, ANN, "first")
    await rig.intake.until(lambda: rig.intake.tried)
    polls = rig.server.polls
    await rig.server.wait_for(lambda: rig.server.polls >= polls + 3)
    assert [update["update_id"] for update in rig.server.updates] == [1001]
    gate.set()
    await rig.confirmed()
    assert [inbound.text for inbound in rig.intake.inbound] == ["first"]


async def test_a_message_that_can_not_be_stored_is_tried_until_it_is(rig: Rig) -> None:
    rig.intake.failing = [StoreError("disk full"), StoreError("disk full")]
    await rig.server.say(DIRECT, ANN, "keep me")
    await rig.intake.hear()
    assert rig.intake.tried == 3
    await rig.confirmed()


async def test_a_restart_before_the_confirmation_gives_the_message_again_under_the_same_keys(
    server: TelegramServer,
) -> None:
    async with running(server) as rig:
        server.fail("getUpdates", status=200)
        server.fail("getUpdates", gate=asyncio.Event(), times=9)  # no poll after the first gets through
        first = await server.say(DIRECT, ANN, "hello")
        stored = (await rig.intake.hear())[0]
    assert [update["message"] for update in server.updates] == [first]
    server.faults.clear()
    async with running(server) as rig:
        await rig.intake.hear()
        await rig.confirmed()
        assert rig.intake.inbound[0].event_keys == stored.event_keys


async def test_one_slow_conversation_delays_no_other_and_keeps_its_own_order(rig: Rig) -> None:
    gate = rig.intake.gates["slow"] = asyncio.Event()
    await rig.server.say(DIRECT, ANN, "slow")
    await rig.server.say(DIRECT, ANN, "after slow")
    await rig.server.say(private(8), person(8, "Ben"), "quick")
    assert [inbound.text for inbound in await rig.intake.hear()] == ["quick"]
    gate.set()
    assert [inbound.text for inbound in await rig.intake.hear(3)] == ["quick", "slow", "after slow"]
    await rig.confirmed()


async def test_an_update_that_crashes_us_is_dropped_and_hides_no_other(rig: Rig) -> None:
    rig.intake.failing = [ZeroDivisionError()]
    await rig.server.say(DIRECT, ANN, "poison")
    await rig.server.say(DIRECT, ANN, "fine")
    assert [inbound.text for inbound in await rig.intake.hear()] == ["fine"]
    await rig.confirmed()


async def test_an_update_that_the_sdk_can_not_read_hides_no_other(rig: Rig) -> None:
    await rig.server.update(message={"message_id": "what", "date": {}, "chat": 3})
    await rig.server.update(something_new={"id": 1})
    await rig.server.say(DIRECT, ANN, "fine")
    assert [inbound.text for inbound in await rig.intake.hear()] == ["fine"]
    await rig.confirmed()


async def test_ids_that_start_anew_lower_are_still_received(server: TelegramServer) -> None:
    async with running(server, paces=slow_polls(poll=1.0)) as rig:
        await server.say(DIRECT, ANN, "one")
        await rig.intake.hear()
        await rig.confirmed()
        await server.wait_for(lambda: "offset" not in server.called("getUpdates")[-1].params)
        await server.update(5, message=server.chats.add(DIRECT, {"from": ANN, "text": "two"}))
        assert [inbound.text for inbound in await rig.intake.hear(2)] == ["one", "two"]


# Who and where

GROUP_TALK = [
    ("hello all", None),
    (f"@{USERNAME} hello", "hello"),
    (f"hello @{USERNAME}", "hello"),
    (f"ask @{USERNAME} about it", f"ask @{USERNAME} about it"),
    (f"@{USERNAME.upper()}, hello", "hello"),
    (f"@{USERNAME}2 hello", None),
    ("@other_bot hello", None),
    (f"/new@{USERNAME}", "/new"),
    (f"/new@{USERNAME} now", "/new now"),
    ("/new", "/new"),
    ("/stop", "/stop"),
    ("/new@other_bot", None),
    (f"/new@{USERNAME}2", None),
    (f"/new@other_bot @{USERNAME}", None),
    ("/weather", None),
    (f"😀😀 @{USERNAME}", "😀😀"),
]


@pytest.mark.parametrize(("said", "heard"), GROUP_TALK)
async def test_in_a_group_only_what_is_for_us_is_heard(rig: Rig, said: str, heard: str | None) -> None:
    await rig.server.say(GROUP, ANN, said)
    await rig.server.say(DIRECT, ANN, "the end")
    inbound = await rig.intake.hear(1 if heard is None else 2)
    assert [each.text for each in inbound if each.place == THERE] == ([] if heard is None else [heard])


async def test_with_the_trigger_all_everything_is_heard_but_commands_for_others(server: TelegramServer) -> None:
    async with running(server, group_trigger="all") as rig:
        for text in ("hello all", "/new@other_bot", "/weather@" + USERNAME, "bye"):
            await server.say(GROUP, ANN, text)
        heard = await rig.intake.hear(3)
        assert [each.text for each in heard] == ["hello all", "/weather", "bye"]


async def test_a_reply_to_us_is_for_us_and_gives_what_it_answers(rig: Rig) -> None:
    ours = rig.server.chats.add(GROUP, {"from": rig.server.me, "text": "the answer is 42"})
    theirs = rig.server.chats.add(GROUP, {"from": ANN, "text": "no idea"})
    await rig.server.say(GROUP, ANN, "not for the bot", reply_to_message=theirs)
    await rig.server.say(GROUP, ANN, "why?", reply_to_message=ours)
    inbound = (await rig.intake.hear())[0]
    assert (inbound.text, inbound.quoted) == ("why?", "the answer is 42")


async def test_earlier_talk_of_the_group_is_given_once_when_we_are_called(rig: Rig) -> None:
    await rig.server.say(GROUP, ANN, "pizza or pasta?")
    await rig.server.say(GROUP, person(8, "Ben"), "pasta")
    await rig.confirmed()
    await rig.server.say(GROUP, ANN, f"@{USERNAME} decide")
    await rig.server.say(GROUP, ANN, f"@{USERNAME} sure?")
    first, second = await rig.intake.hear(2)
    assert (first.context, second.context) == (("Ann: pizza or pasta?", "Ben: pasta"), ())


async def test_topics_of_a_forum_are_places_of_their_own(rig: Rig) -> None:
    made = rig.server.chats.add(
        FORUM, {"from": rig.server.me, "forum_topic_created": {"name": "T", "icon_color": 1}}
    )
    topic = {"message_thread_id": 55, "is_topic_message": True, "reply_to_message": made}
    await rig.server.say(FORUM, ANN, "not for us", **topic)
    await rig.server.say(FORUM, ANN, f"@{USERNAME} in the topic", **topic)
    await rig.server.say(FORUM, ANN, f"@{USERNAME} in general")
    await rig.confirmed()
    assert {inbound.text: (inbound.place, inbound.quoted) for inbound in rig.intake.inbound} == {
        "in the topic": (Place("telegram", "-1002", "55", "group"), None),
        "in general": (Place("telegram", "-1002", "1", "group"), None),
    }


async def test_a_chain_of_replies_outside_of_a_forum_is_no_topic(rig: Rig) -> None:
    await rig.server.say(GROUP, ANN, f"@{USERNAME} hi", message_thread_id=12)
    assert (await rig.intake.hear())[0].place == THERE


@pytest.mark.parametrize(
    "message",
    [
        {"from": person(9, is_bot=True), "text": f"@{USERNAME} hi"},
        {"from": person(BOT_ID), "text": f"@{USERNAME} hi"},
        {"from": person(5), "text": f"@{USERNAME} hi", "is_automatic_forward": True},
        {"from": ANN, "new_chat_title": "New"},
        {"from": ANN, "left_chat_member": ANN},
    ],
)
async def test_bots_and_service_messages_are_never_answered(rig: Rig, message: Json) -> None:
    await rig.server.update(message=rig.server.chats.add(DIRECT, message))
    await rig.server.say(DIRECT, ANN, "the end")
    assert [inbound.text for inbound in await rig.intake.hear()] == ["the end"]


async def test_edits_and_channel_posts_start_nothing(rig: Rig) -> None:
    said = await rig.server.say(DIRECT, ANN, "typo")
    await rig.intake.hear()
    await rig.server.update(edited_message={**said, "text": "fixed", "edit_date": 1_700_000_999})
    channel = {"id": -1009, "type": "channel", "title": "News"}
    await rig.server.update(channel_post=rig.server.chats.add(channel, {"text": f"@{USERNAME} hi"}))
    await rig.server.say(DIRECT, ANN, "the end")
    assert [inbound.text for inbound in await rig.intake.hear(2)] == ["typo", "the end"]


async def test_links_under_words_and_forwards_are_written_out(rig: Rig) -> None:
    link = {"type": "text_link", "offset": 3, "length": 4, "url": "https://example.org/x"}
    origin = {"type": "user", "date": 1, "sender_user": person(8, "Ben")}
    await rig.server.say(DIRECT, ANN, "😀 here it is", entities=[link], forward_origin=origin)
    assert (await rig.intake.hear())[0].text == "[Forwarded from Ben]\n😀 here (https://example.org/x) it is"


# Files


def photo(file_id: str, size: int = 10, width: int = 100) -> Json:
    return {"file_id": file_id, "file_unique_id": file_id, "width": width, "height": 100, "file_size": size}


async def test_a_photo_with_a_caption_comes_as_an_image(rig: Rig) -> None:
    rig.server.files |= {"small": b"small", "large": b"large picture", "huge": b"x"}
    sizes = [photo("small"), photo("large", width=800), photo("huge", size=9_000_000, width=4000)]
    await rig.server.say(DIRECT, ANN, caption="what is this?", photo=sizes)
    inbound = (await rig.intake.hear())[0]
    assert inbound.text == "what is this?"
    assert [(file.kind, file.data, file.media_type) for file in inbound.attachments] == [
        ("image", b"large picture", "image/jpeg")
    ]


async def test_an_album_is_one_message_with_all_its_pictures(rig: Rig) -> None:
    rig.server.files |= {f"p{number}": f"picture {number}".encode() for number in range(3)}
    for number in range(3):
        more: Json = {"caption": "my trip"} if number == 0 else {}
        await rig.server.say(DIRECT, ANN, photo=[photo(f"p{number}")], media_group_id="g1", **more)
    await rig.server.say(DIRECT, ANN, "nice?")
    album, after = await rig.intake.hear(2)
    assert [file.data for file in album.attachments] == [b"picture 0", b"picture 1", b"picture 2"]
    assert (album.text, len(album.event_keys), after.text) == ("my trip", 6, "nice?")
    await rig.confirmed()


@pytest.mark.parametrize(
    ("name", "media_type", "data", "kind", "text"),
    [
        ("notes.md", "text/markdown", "# Grüße".encode(), "text", "# Grüße"),
        ("main.py", "application/octet-stream", b"print()", "text", "print()"),
        ("odd.txt", "text/plain", b"\xff\xfe\x00", "file", None),
        ("a.zip", "application/zip", b"PK", "file", None),
        ("p.png", "image/png", b"png", "image", None),
    ],
)
async def test_documents_are_read_where_they_are_text(
    rig: Rig, name: str, media_type: str, data: bytes, kind: str, text: str | None
) -> None:
    rig.server.files["d"] = data
    document = {"file_id": "d", "file_unique_id": "d", "file_name": name, "mime_type": media_type}
    await rig.server.say(DIRECT, ANN, document={**document, "file_size": len(data)})
    (file,) = (await rig.intake.hear())[0].attachments
    assert (file.kind, file.name, file.text) == (kind, name, text)
    assert (file.data == data) is (kind == "image")


async def test_a_voice_message_is_described(rig: Rig) -> None:
    voice = {"file_id": "v", "file_unique_id": "v", "duration": 3, "mime_type": "audio/ogg", "file_size": 99}
    await rig.server.say(DIRECT, ANN, voice=voice)
    (file,) = (await rig.intake.hear())[0].attachments
    assert (file.kind, file.size, file.data) == ("voice", 99, None)


async def test_a_slow_download_delays_neither_others_nor_a_cancel(rig: Rig) -> None:
    rig.server.files["slow"] = b"at last"
    rig.server.file_gate = asyncio.Event()
    await rig.server.say(DIRECT, ANN, caption="look", photo=[photo("slow")])
    await rig.server.say(private(8), person(8, "Ben"), "quick")
    await rig.intake.hear()
    await rig.server.say(DIRECT, ANN, "/cancel")
    assert [inbound.text for inbound in await rig.intake.hear(2)] == ["quick", "/cancel"]
    rig.server.file_gate.set()
    assert (await rig.intake.hear(3))[2].attachments[0].data == b"at last"


async def test_a_file_that_can_not_be_fetched_is_still_told_of(rig: Rig) -> None:
    await rig.server.say(DIRECT, ANN, caption="look", photo=[photo("lost")])
    (file,) = (await rig.intake.hear())[0].attachments
    assert (file.kind, file.data) == ("image", None)


# The button


@pytest.mark.parametrize("reply", list(CancelReply))
async def test_a_press_on_cancel_stops_the_request_and_is_answered(rig: Rig, reply: CancelReply) -> None:
    rig.intake.cancel_reply = reply
    view = LiveView()
    async with rig.channel.reply(rig.context(view, THERE)):
        await rig.server.wait_for(lambda: rig.server.chats.shown(-1001))
        await rig.server.press(rig.server.chats.shown(-1001)[0], {**ANN, "language_code": "zh-hans"})
        await rig.server.wait_for(lambda: rig.server.answered)
    ((request_id, place, sender),) = rig.intake.cancels
    assert (request_id, place, sender.id) == ("req-1", THERE, "7")
    words = {"stopped": "已停止。", "nothing_running": "没有", "not_allowed": "只有"}
    assert words[reply] in rig.server.answered[0]["text"]


async def test_a_button_that_was_left_behind_goes_when_it_is_pressed(rig: Rig) -> None:
    rig.intake.cancel_reply = CancelReply.NOTHING_RUNNING
    keyboard = {"inline_keyboard": [[{"text": "Cancel", "callback_data": "cancel:old"}]]}
    left = rig.server.chats.add(DIRECT, {"from": rig.server.me, "text": "…", "reply_markup": keyboard})
    await rig.server.press(left, ANN)
    await rig.server.wait_for(lambda: "reply_markup" not in left)


async def test_a_group_that_became_a_supergroup_keeps_its_conversation(rig: Rig) -> None:
    old, new = {"id": -55, "type": "group", "title": "G"}, {"id": -10055, "type": "supergroup", "title": "G"}
    await rig.server.update(message=rig.server.chats.add(old, {"from": ANN, "migrate_to_chat_id": -10055}))
    await rig.server.update(message=rig.server.chats.add(new, {"from": ANN, "migrate_from_chat_id": -55}))
    await rig.confirmed()
    await rig.server.say(new, ANN, f"@{USERNAME} hi")
    place = (await rig.intake.hear())[0].place
    assert place.chat == "-55"
    await rig.deliver("hello", place)
    assert rig.server.chats.texts(-10055) == ["hello"]


async def test_results_other_than_stored_are_confirmed_as_well(rig: Rig) -> None:
    said = await rig.server.say(DIRECT, ANN, "once")
    await rig.intake.hear()
    await rig.server.update(message=said)
    await rig.confirmed()
    await rig.intake.until(lambda: len(rig.intake.results) == 2)
    assert rig.intake.results == [Accepted.STORED, Accepted.DUPLICATE]
