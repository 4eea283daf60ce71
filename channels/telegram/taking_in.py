"""Updates to the bridge: what a person said, with files and quotes; albums as one message; the Cancel button."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import structlog
from telegram import Message, Update

from bridge.errors import StoreError
from channels.base import Attachment, CancelReply, Inbound, Intake
from channels.telegram.context import GroupTalk
from channels.telegram.faults import TelegramFault
from channels.telegram.files import fetch
from channels.telegram.texts import texts_for
from channels.telegram.updates import Heard, Identity, Press, event_keys, hear, read_press
from channels.telegram.wire import Wire

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IntakePace:
    """In seconds: how long an album waits for its next picture, how long a command waits for messages before it,
    and the waits while the store takes nothing."""

    album: float = 0.8
    command: float = 1.0
    first_delay: float = 0.5
    longest_delay: float = 15.0


@dataclass(slots=True)
class _Album:
    """An album that is still coming in; whoever came first takes it to the bridge, the others wait for that."""

    items: list[tuple[int, Heard]]
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TakingIn:
    """`update` returns once the bridge has it, and waits for as long as the bridge can't store it."""

    def __init__(
        self,
        wire: Wire,
        me: Identity,
        intake: Intake,
        *,
        trigger: Literal["mention", "all"],
        pace: IntakePace,
    ) -> None:
        self._wire = wire
        self._me = me
        self._intake = intake
        self._trigger: Literal["mention", "all"] = trigger
        self._pace = pace
        self._lines = _Lines()
        self._albums: dict[tuple[str, str], _Album] = {}
        self._talk = GroupTalk()

    async def update(self, update: Update) -> None:
        if update.callback_query is not None:
            press = read_press(update.callback_query, self._wire.chats.home)
            if press is not None:
                await self._press(press)
        elif update.message is not None:
            await self._message(update.update_id, update.message)

    async def _message(self, update_id: int, message: Message) -> None:
        if self._note_migration(message):
            return
        heard = hear(message, self._me, self._trigger, self._wire.chats.home)
        if heard is None:
            return
        if heard.album is not None:
            await self._album(update_id, heard, heard.album)
        elif heard.why is None:
            self._talk.note(heard)
        else:
            # A command does not wait for a slow download before it, yet keeps its order in a backlog.
            patience = self._pace.command if heard.text.startswith("/") else None
            async with self._lines.turn(heard.place.session_id, patience):
                await self._take([(update_id, heard)])

    def _note_migration(self, message: Message) -> bool:
        if message.migrate_to_chat_id is not None:
            self._wire.chats.note(message.chat.id, message.migrate_to_chat_id)
            return True
        if message.migrate_from_chat_id is not None:
            self._wire.chats.note(message.migrate_from_chat_id, message.chat.id)
            return True
        return False

    async def _album(self, update_id: int, heard: Heard, album_id: str) -> None:
        """The pictures of an album come as messages of their own; only one of them has the caption."""
        key = (heard.place.session_id, album_id)
        album = self._albums.get(key)
        if album is not None:
            album.items.append((update_id, heard))
            album.grown.set()
            await asyncio.shield(album.taken)
            return
        album = self._albums[key] = _Album([(update_id, heard)])
        try:
            async with self._lines.turn(heard.place.session_id):
                await self._complete(album)
                del self._albums[key]
                if any(each.why is not None for _, each in album.items):
                    await self._take(sorted(album.items, key=lambda item: item[0]))
        finally:
            self._albums.pop(key, None)
            album.taken.set_result(None)

    async def _complete(self, album: _Album) -> None:
        while True:
            album.grown.clear()
            try:
                await asyncio.wait_for(album.grown.wait(), self._pace.album)
            except TimeoutError:
                return

    async def _take(self, items: list[tuple[int, Heard]]) -> None:
        """One message, or the messages of one album, to the bridge."""
        files = await asyncio.gather(*(fetch(self._wire, heard.message) for _, heard in items))
        first = items[0][1]
        texts = [heard.text for _, heard in items if heard.text.strip()]
        inbound = Inbound(
            event_keys=tuple(
                key for number, heard in items for key in event_keys(self._me.user_id, number, heard.message)
            ),
            place=first.place,
            sender=first.sender,
            text="\n\n".join(texts),
            sent_at=first.message.date,
            message_ref=str(first.message.message_id),
            attachments=tuple(file for file in files if isinstance(file, Attachment)),
            quoted=first.quoted,
            context=self._talk.take(first.place) if first.place.kind == "group" else (),
        )
        await self._store(inbound)

    async def _store(self, inbound: Inbound) -> None:
        """Until the bridge has it: the offset waits, and so does what comes after it in this conversation."""
        failures = 0
        while True:
            try:
                accepted = await self._intake.accept(inbound)
            except StoreError as error:
                if not failures:
                    log.error("telegram.not_stored", place=inbound.place.session_id, error=str(error))
                delay = min(self._pace.first_delay * 2.0 ** min(failures, 20), self._pace.longest_delay)
                failures += 1
                await asyncio.sleep(delay)
            else:
                log.debug("telegram.heard", place=inbound.place.session_id, accepted=accepted)
                return

    async def _press(self, press: Press) -> None:
        """Stops a run at once: a press never waits behind messages."""
        reply = await self._intake.cancel(press.request_id, press.place, press.sender)
        bot = self._wire.bot
        answer = partial(bot.answer_callback_query, press.query_id, texts_for(press.language).pressed[reply])
        await self._try("answerCallbackQuery", answer)
        if reply is CancelReply.NOTHING_RUNNING:
            # A button that was left behind by a crash, or by a message whose arrival we never heard of.
            chat = self._wire.chats.target(press.place.chat)
            drop = partial(bot.edit_message_reply_markup, chat, int(press.message_id), reply_markup=None)
            await self._try("editMessageReplyMarkup", drop)

    async def _try(self, method: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await self._wire.ask(method, call)
        except TelegramFault as fault:
            log.info("telegram.press_not_answered", error=str(fault))


class _Lines:
    """One conversation's messages are taken in one after the other, in their order; others don't wait."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, key: str, patience: float | None = None) -> AsyncIterator[None]:
        """Waits for those before it; at most `patience` seconds where that is given."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        held = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    held = await lock.acquire()
            yield
        finally:
            if held:
                lock.release()
            self._users[key] -= 1
            if not self._users[key]:
                del self._locks[key], self._users[key]
