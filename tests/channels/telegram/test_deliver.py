"""The final text: whole, in order, once; and what is said where it can't be delivered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import OutFile, Outgoing, Place, TryLater, Undeliverable
from tests.channels.telegram.conftest import FAST, GROUP, HERE, THERE, Rig, opened
from tests.servers.telegram_rules import units
from tests.servers.telegram_server import DIRECT_ID, GROUP_ID, TOKEN, Json, TelegramServer


def texts(rig: Rig, chat: int = DIRECT_ID) -> list[str]:
    return rig.server.chats.texts(chat)


def left_by_us(server: TelegramServer, *said: str, chat: int = DIRECT_ID) -> tuple[str, ...]:
    return tuple(
        str(server.chats.add(server.chats.kinds[chat], {"from": server.me, "text": text})["message_id"])
        for text in said
    )


async def test_a_text_arrives_formatted_by_entities(quiet: Rig) -> None:
    (message_id,) = await quiet.deliver("Use `x_y` or **user_name_**, see [docs](https://x.y/).")
    message = quiet.server.chats.messages[DIRECT_ID][int(message_id)]
    assert message["text"] == "Use x_y or user_name_, see docs."
    assert [entity["type"] for entity in message["entities"]] == ["code", "bold", "text_link"]
    assert "parse_mode" not in quiet.server.called("sendMessage")[0].params


async def test_a_long_text_comes_in_parts_that_fit_and_lose_nothing(quiet: Rig) -> None:
    text = "\n\n".join(f"Paragraph {number} 😀 " + "word " * 60 for number in range(40))
    posted = await quiet.deliver(text)
    assert len(posted) == len(texts(quiet)) == 4
    assert all(units(part) <= 4096 for part in texts(quiet))
    assert " ".join(texts(quiet)).split() == text.split()
    assert not quiet.server.called("sendDocument")


async def test_a_very_long_text_comes_as_a_file_as_well(quiet: Rig) -> None:
    text = "**word** and " * 4000
    posted = await quiet.deliver(text)
    assert len(posted) > 5
    (document,) = [message for message in quiet.server.chats.shown(DIRECT_ID) if "document" in message]
    assert document["document"]["file_name"] == "answer.md"
    assert quiet.server.files[f"sent/{document['message_id']}"] == text.encode()
    assert document["message_id"] > int(posted[-1])


async def test_messages_that_are_there_are_edited_before_new_ones_are_sent(quiet: Rig) -> None:
    posted = left_by_us(quiet.server, "half")
    text = "a" * 4000 + "\n\n" + "b" * 4000
    result = await quiet.deliver(text, posted=posted)
    assert result[0] == posted[0]
    assert texts(quiet) == ["a" * 4000, "b" * 4000]


async def test_messages_that_are_not_needed_any_more_go(quiet: Rig) -> None:
    posted = left_by_us(quiet.server, "one", "two", "three")
    assert await quiet.deliver("short", posted=posted) == posted[:1]
    assert texts(quiet) == ["short"]


async def test_a_message_that_was_deleted_is_sent_anew(quiet: Rig) -> None:
    posted = left_by_us(quiet.server, "gone")
    quiet.server.chats.messages[DIRECT_ID].clear()
    result = await quiet.deliver("hello", posted=posted)
    assert result != posted
    assert texts(quiet) == ["hello"]


async def test_a_message_that_shows_it_already_is_no_error(quiet: Rig) -> None:
    posted = await quiet.deliver("hello")
    assert await quiet.deliver("hello", posted=posted) == posted
    assert texts(quiet) == ["hello"]


@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
@pytest.mark.parametrize(
    "description",
    ["Bad Request: can't parse entities: byte 7", "Bad Request: ENTITY_URL_INVALID", "Bad Request: X"],
)
async def test_formatting_that_is_refused_is_left_out(quiet: Rig, method: str, description: str) -> None:
    posted = left_by_us(quiet.server, "half") if method == "editMessageText" else ()
    quiet.server.fail(method, description=description)
    await quiet.deliver("a **b** c", posted=posted)
    (message,) = quiet.server.chats.shown(DIRECT_ID)
    assert (message["text"], message["entities"]) == ("a b c", [])


async def test_in_a_group_the_first_part_answers_the_message(quiet: Rig) -> None:
    asked = quiet.server.chats.add(GROUP, {"from": {"id": 7}, "text": "?"})
    await quiet.deliver("a" * 4000 + "\n\n" + "b" * 4000, THERE, reply_to=str(asked["message_id"]))
    first, second = quiet.server.chats.shown(GROUP_ID)
    assert (first.get("reply_to"), second.get("reply_to")) == (asked["message_id"], None)


async def test_an_answer_to_a_message_that_was_deleted_arrives_all_the_same(quiet: Rig) -> None:
    await quiet.deliver("hello", THERE, reply_to="99")
    assert texts(quiet, GROUP_ID) == ["hello"]


async def test_an_empty_text_says_so(quiet: Rig) -> None:
    await quiet.deliver(" \n ")
    assert texts(quiet) == ["(no text)"]


async def test_files_come_after_the_text(quiet: Rig) -> None:
    topic = Place("telegram", "-1002", "55", "group")
    files = (OutFile("a.md", "text/markdown", b"A"), OutFile("b.md", "text/markdown", b"B"))
    await quiet.deliver("here", topic, files=files)
    shown = quiet.server.chats.shown(-1002)
    assert [message.get("text") or message["document"]["file_name"] for message in shown] == [
        "here",
        "a.md",
        "b.md",
    ]
    assert [message["message_thread_id"] for message in shown] == [55, 55, 55]
    await quiet.deliver("", topic, files=files[:1])
    assert quiet.server.chats.shown(-1002)[-1]["document"]["file_name"] == "a.md"


# Faults


async def test_a_short_wait_is_waited_here(quiet: Rig) -> None:
    quiet.server.fail("sendMessage", status=429, description="Too Many Requests", retry_after=1)
    await quiet.deliver("hello")
    first, second = quiet.server.called("sendMessage")
    assert second.at - first.at >= 1
    assert texts(quiet) == ["hello"]


async def test_a_long_wait_is_handed_back_and_kept(quiet: Rig) -> None:
    quiet.server.fail("sendMessage", status=429, description="Too Many Requests", retry_after=600)
    for _ in range(2):
        with pytest.raises(TryLater) as caught:
            await quiet.deliver("hello")
        assert caught.value.after == pytest.approx(600, abs=5)
        assert not caught.value.uncertain
    assert len(quiet.server.called("sendMessage")) == 1


@pytest.mark.parametrize(
    "description",
    [
        "Bad Request: chat not found",
        "Bad Request: message thread not found",
        "Bad Request: TOPIC_CLOSED",
        "Bad Request: not enough rights to send text messages to the chat",
        "Bad Request: group chat was deactivated",
    ],
)
async def test_a_place_that_is_gone_is_undeliverable(quiet: Rig, description: str) -> None:
    quiet.server.fail("sendMessage", description=description)
    with pytest.raises(Undeliverable):
        await quiet.deliver("hello")


@pytest.mark.parametrize(
    "why", ["Forbidden: bot was blocked by the user", "Forbidden: bot was kicked from the supergroup chat"]
)
async def test_a_bot_that_is_shut_out_is_undeliverable(quiet: Rig, why: str) -> None:
    quiet.server.chats.gone[DIRECT_ID] = why
    with pytest.raises(Undeliverable, match=r"blocked|kicked"):
        await quiet.deliver("hello")


async def test_a_deleted_topic_is_undeliverable(quiet: Rig) -> None:
    quiet.server.chats.topics_gone.add(55)
    with pytest.raises(Undeliverable):
        await quiet.deliver("hello", Place("telegram", "-1002", "55", "group"))


@pytest.mark.parametrize(
    ("fault", "uncertain"),
    [
        ({"drop": True, "after": True}, True),
        ({"status": 500, "description": "Internal Server Error"}, True),
        ({"status": 401, "description": "Unauthorized"}, False),
    ],
)
async def test_a_fault_of_the_way_is_tried_later(quiet: Rig, fault: Json, uncertain: bool) -> None:
    quiet.server.fail("sendMessage", **fault)
    with pytest.raises(TryLater) as caught:
        await quiet.deliver("hello")
    assert caught.value.uncertain is uncertain
    assert TOKEN not in str(caught.value)


async def test_an_edit_whose_result_is_unknown_is_not_uncertain(quiet: Rig) -> None:
    posted = left_by_us(quiet.server, "half")
    quiet.server.fail("editMessageText", drop=True, after=True)
    with pytest.raises(TryLater) as caught:
        await quiet.deliver("hello", posted=posted)
    assert not caught.value.uncertain
    assert await quiet.deliver("hello", posted=posted) == posted
    assert texts(quiet) == ["hello"]


async def test_no_connection_at_all_is_certain_not_to_have_arrived() -> None:
    async with TelegramServer() as other, opened(other) as rig:
        await other.__aexit__()
        with pytest.raises(TryLater) as caught:
            await rig.deliver("hello")
    assert not caught.value.uncertain


async def test_a_delivery_that_broke_off_goes_on_where_it_was(quiet: Rig) -> None:
    text = "\n\n".join(char * 4000 for char in "abc")
    quiet.server.fail("sendMessage", status=200)
    quiet.server.fail("sendMessage", status=502, description="Bad Gateway")
    with pytest.raises(TryLater):
        await quiet.deliver(text)
    assert [part[0] for part in texts(quiet)] == ["a"]
    posted = await quiet.deliver(text)
    assert [part[0] for part in texts(quiet)] == ["a", "b", "c"]
    assert len(posted) == 3


async def test_a_delivery_that_was_cancelled_goes_on_where_it_was(quiet: Rig) -> None:
    text = "a" * 4000 + "\n\n" + "b" * 4000
    quiet.server.fail("sendMessage", status=200)
    quiet.server.fail("sendMessage", gate=asyncio.Event())
    delivering = asyncio.create_task(quiet.deliver(text))
    await quiet.server.wait_for(lambda: len(quiet.server.called("sendMessage")) == 2)
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)
    await quiet.deliver(text)
    assert [part[0] for part in texts(quiet)] == ["a", "b"]


async def test_a_group_that_moved_gets_it_at_its_new_id_also_after_a_restart(
    server: TelegramServer, tmp_path: Path
) -> None:
    server.chats.kinds[-10055] = {"id": -10055, "type": "supergroup", "title": "G"}
    server.chats.moved[-55] = -10055
    place = Place("telegram", "-55", None, "group")
    async with opened(server, data_dir=tmp_path) as rig:
        await rig.deliver("one", place)
    async with opened(server, data_dir=tmp_path) as rig:
        await rig.deliver("two", place)
    assert server.chats.texts(-10055) == ["one", "two"]
    assert len([call for call in server.called("sendMessage") if call.status == 400]) == 1


async def test_a_damaged_file_of_moved_groups_stops_nothing(server: TelegramServer, tmp_path: Path) -> None:
    (tmp_path / "telegram-chats.json").write_text("[1, 2")
    async with opened(server, data_dir=tmp_path) as rig:
        await rig.deliver("hello")
    assert server.chats.texts(DIRECT_ID) == ["hello"]


async def test_a_group_takes_many_messages_within_its_limit(server: TelegramServer) -> None:
    """The server holds to 20 a minute; with windows that know it no call is refused."""
    async with opened(server, paces=replace(FAST, limits=replace(FAST.limits, final_group=((19, 0.3),)))) as rig:
        await rig.deliver("\n\n".join("x" * 4000 for _ in range(25)), THERE)
    times = [call.at for call in server.called("sendMessage")]
    assert len(times) == 25
    assert all(later - earlier >= 0.29 for earlier, later in zip(times, times[19:], strict=False))


async def test_two_texts_of_one_place_do_not_mix(quiet: Rig) -> None:
    one, two = Outgoing(HERE, "one"), Outgoing(HERE, "two")
    await asyncio.gather(quiet.channel.deliver(one), quiet.channel.deliver(two))
    assert sorted(texts(quiet)) == ["one", "two"]
