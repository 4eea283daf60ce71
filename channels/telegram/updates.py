"""Telegram's updates, read: who says what where, and whether it is for us. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from telegram import (
    CallbackQuery,
    Message,
    MessageEntity,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    User,
)
from telegram.constants import ChatType

from channels.base import Place, Sender
from channels.telegram.live import cancelled_request
from channels.telegram.wire import GENERAL_TOPIC

CHANNEL = "telegram"
QUOTE_LENGTH = 1_500  # characters of a message that is answered

_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@(\w+))?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, and the commands that are ours where several bots share a group."""

    user_id: int
    username: str
    commands: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that a person wrote. `why` is None for group talk that is not for us; `text` is without our name
    in it; `album` is the id that the messages of one album share."""

    place: Place
    sender: Sender
    why: Literal["direct", "mention", "command", "reply", "all"] | None
    text: str
    quoted: str | None
    album: str | None
    message: Message


@dataclass(frozen=True, slots=True)
class Press:
    """A press on a Cancel button, under the message `message_id`."""

    query_id: str
    request_id: str
    place: Place
    sender: Sender
    language: str | None
    message_id: str


def event_keys(bot_id: int, update_id: int, message: Message) -> tuple[str, str]:
    """The update, and the message itself: a change between webhook and polling must not start a second run."""
    return (
        f"{CHANNEL}:{bot_id}:{update_id}",
        f"{CHANNEL}:{bot_id}:{message.chat.id}:{message.message_id}",
    )


def hear(
    message: Message, me: Identity, trigger: Literal["mention", "all"], home: Callable[[int], str]
) -> Heard | None:
    """None for what no person wrote, and for what has nothing in it for us (service messages)."""
    user = message.from_user
    if user is None or user.is_bot or user.id == me.user_id or message.is_automatic_forward:
        return None
    place = place_of(message, home)
    text = _text_with_links(message)
    if place is None or (not text and not _has_content(message)):
        return None
    why = _why(message, me, trigger, place)
    return Heard(
        place=place,
        sender=sender_of(user),
        why=why,
        text=_forwarded(message) + _without_own_name(text, me),
        quoted=_quoted(message),
        album=message.media_group_id,
        message=message,
    )


def read_press(query: CallbackQuery, home: Callable[[int], str]) -> Press | None:
    """None for a button that is not ours, or whose message is gone."""
    request_id = cancelled_request(query.data or "")
    message = query.message
    if request_id is None or message is None:
        return None
    place = (
        place_of(message, home)
        if isinstance(message, Message)
        else Place(CHANNEL, home(message.chat.id), None, _kind(message.chat.type))
    )
    if place is None:
        return None
    user = query.from_user
    return Press(query.id, request_id, place, sender_of(user), user.language_code, str(message.message_id))


def place_of(message: Message, home: Callable[[int], str]) -> Place | None:
    """Where a message is; None in channels. Outside of forums a thread id is only a chain of replies."""
    chat = message.chat
    if chat.type == ChatType.CHANNEL:
        return None
    thread = None
    if message.is_topic_message and message.message_thread_id is not None:
        thread = str(message.message_thread_id)
    elif chat.is_forum and chat.type != ChatType.PRIVATE:
        thread = GENERAL_TOPIC
    return Place(CHANNEL, home(chat.id), thread, _kind(chat.type))


def sender_of(user: User) -> Sender:
    return Sender(str(user.id), user.full_name or user.username or str(user.id))


def _kind(chat_type: str) -> Literal["direct", "group"]:
    return "direct" if chat_type == ChatType.PRIVATE else "group"


def _entities(message: Message) -> dict[MessageEntity, str]:
    return message.parse_entities() if message.text is not None else message.parse_caption_entities()


def _why(
    message: Message, me: Identity, trigger: Literal["mention", "all"], place: Place
) -> Literal["direct", "mention", "command", "reply", "all"] | None:
    if place.kind == "direct":
        return "direct"
    command = _COMMAND.match(message.text or message.caption or "")
    if command is not None and command[2] is not None and command[2].lower() != me.username.lower():
        return None
    if command is not None and (command[2] is not None or command[1].lower() in me.commands):
        return "command"
    if _mentions_us(message, me):
        return "mention"
    answered = _answered(message)
    if answered is not None and answered.from_user is not None and answered.from_user.id == me.user_id:
        return "reply"
    return "all" if trigger == "all" else None


def _mentions_us(message: Message, me: Identity) -> bool:
    for entity, text in _entities(message).items():
        if entity.type == MessageEntity.MENTION and text.lower() == f"@{me.username.lower()}":
            return True
        if entity.type == MessageEntity.TEXT_MENTION and entity.user is not None and entity.user.id == me.user_id:
            return True
    return False


def _answered(message: Message) -> Message | None:
    """The message that this one answers. In a forum every message answers the one that made its topic."""
    answered = message.reply_to_message
    return None if answered is None or answered.forum_topic_created is not None else answered


def _text_with_links(message: Message) -> str:
    """The text; a link under a word is written behind it, since the model sees the text alone."""
    text = message.text if message.text is not None else message.caption
    if not text:
        return ""
    data = text.encode("utf-16-le")
    links = [entity for entity in _entities(message) if entity.type == MessageEntity.TEXT_LINK and entity.url]
    for entity in sorted(links, key=lambda entity: entity.offset, reverse=True):
        end = 2 * (entity.offset + entity.length)
        data = data[:end] + f" ({entity.url})".encode("utf-16-le") + data[end:]
    return data.decode("utf-16-le", "replace")


def _without_own_name(text: str, me: Identity) -> str:
    """Without our name at either end, and in `/command@us`; within the text it may be part of what is said."""
    name = re.escape(me.username)
    text = re.sub(rf"^\s*(/\w+)@{name}\b", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(rf"^\s*@{name}\b[,:]?\s*", "", text, flags=re.IGNORECASE)
    return re.sub(rf"\s*(?<!\w)@{name}\s*$", "", text, flags=re.IGNORECASE)


def _quoted(message: Message) -> str | None:
    if message.quote is not None:
        return message.quote.text[:QUOTE_LENGTH]
    answered = _answered(message)
    if answered is None:
        return None
    text = answered.text or answered.caption
    return text[:QUOTE_LENGTH] if text else None


def _forwarded(message: Message) -> str:
    match message.forward_origin:
        case MessageOriginUser(sender_user=user):
            name = user.full_name
        case MessageOriginHiddenUser(sender_user_name=hidden):
            name = hidden
        case MessageOriginChat(sender_chat=chat) | MessageOriginChannel(chat=chat):
            name = chat.title or "a chat"
        case _:
            return ""
    return f"[Forwarded from {name}]\n"


def _has_content(message: Message) -> bool:
    return message.effective_attachment is not None
