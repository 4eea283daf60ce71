"""Envelopes to the bridge: what a person said, with names, earlier talk and files; commands; the Stop button."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import structlog
from yarl import URL

from channels.base import Attachment, CancelReply, Inbound, Intake
from channels.slack.decode import decode, mentioned, without_own_mention
from channels.slack.deliver import Deliverer
from channels.slack.events import Heard, Press, Why, hear, moment, read_press, read_slash
from channels.slack.faults import SlackFault
from channels.slack.files import fetch_files
from channels.slack.live import without_buttons
from channels.slack.payload import Json, maps_at, text_at
from channels.slack.people import LOOKUP_TIMEOUT, People
from channels.slack.wire import Wire

CONTEXT_READ = 200  # messages of a thread that are read
CONTEXT_MESSAGES = 30  # of them, the last that are given to the model
CONTEXT_LENGTH = 1500  # characters of each
PRESS_TIMEOUT = 2.0  # seconds for an answer to a press; Slack wants the press acknowledged within 3

_ANSWERS = {
    CancelReply.NOTHING_RUNNING: "Nothing is running here any more.",
    CancelReply.NOT_ALLOWED: "Only people of this conversation can stop its answer.",
}

log = structlog.get_logger()


class TakingIn:
    """Each method returns once the bridge has it; one that raises leaves its envelope to be sent again."""

    def __init__(
        self,
        wire: Wire,
        people: People,
        deliverer: Deliverer,
        intake: Intake,
        *,
        token: str,
        thread_replies: bool,
    ) -> None:
        self._wire = wire
        self._people = people
        self._deliverer = deliverer
        self._intake = intake
        self._token = token
        self._thread_replies = thread_replies
        self._lines = _Lines()

    async def event(self, body: Json) -> None:
        """A message. Raises StoreError, and SlackFault where Slack does not tell who it is from."""
        heard = hear(body, self._people.me)
        if heard is None:
            return
        # The SDK handles envelopes side by side; one conversation is still taken in in its order.
        async with self._lines.turn(heard.place.session_id):
            await self._take(heard)

    async def _take(self, heard: Heard) -> None:
        known = heard.in_thread and await self._intake.knows(heard.place)
        if heard.why is Why.THREAD and not (known and self._thread_replies):
            return
        fresh_thread = heard.in_thread and not known
        sender, names, context, files = await asyncio.gather(
            self._people.sender(heard.user),
            self._people.names(mentioned(heard.text)),
            self._earlier_talk(heard) if fresh_thread else _nothing(),
            self._files(heard),
        )
        accepted = await self._intake.accept(
            Inbound(
                event_keys=heard.keys,
                place=heard.place,
                sender=sender,
                text=decode(without_own_mention(heard.text, self._people.me.user_id), names),
                sent_at=moment(heard.ts),
                message_ref=heard.ts,
                attachments=files,
                context=context,
                bare_commands=True,
            )
        )
        log.debug("slack.heard", place=heard.place.session_id, why=heard.why, accepted=accepted)

    async def _files(self, heard: Heard) -> tuple[Attachment, ...]:
        if not heard.files:
            return ()
        own_host = URL(self._wire.client.base_url).host
        return await fetch_files(self._wire.session, self._token, heard.files, own_host)

    async def _earlier_talk(self, heard: Heard) -> tuple[str, ...]:
        """What was said in the thread before we were called into it, a line a message; () if it can't be read."""
        params = {"channel": heard.place.chat, "ts": heard.place.thread or "", "latest": heard.ts}
        try:
            answer = await self._wire.ask(
                "conversations.replies", timeout=LOOKUP_TIMEOUT, limit=str(CONTEXT_READ), **params
            )
        except SlackFault as fault:
            log.warning("slack.thread_not_read", error=fault.code)
            return ()
        said = [message for message in maps_at(answer.data, "messages") if text_at(message, "ts") < heard.ts]
        said = [message for message in said if text_at(message, "text")][-CONTEXT_MESSAGES:]
        ids = [text_at(message, "user") for message in said]
        ids += [user for message in said for user in mentioned(text_at(message, "text"))]
        names = await self._people.names(dict.fromkeys(filter(None, ids)))
        return tuple(_line(message, names) for message in said)

    async def slash(self, body: Json) -> None:
        """A slash command. Raises StoreError, SlackFault."""
        slash = read_slash(body)
        self._deliverer.note_slash(slash.message_ref, slash.response_url)
        sender, names = await asyncio.gather(
            self._people.sender(slash.user), self._people.names(mentioned(slash.text))
        )
        await self._intake.accept(
            Inbound(
                event_keys=(slash.key,),
                place=slash.place,
                sender=sender,
                text=decode(slash.text, names),
                sent_at=datetime.now(UTC),
                message_ref=slash.message_ref,
            )
        )

    async def press(self, body: Json) -> None:
        """A button; any other than Stop is only acknowledged. Raises SlackFault."""
        press = read_press(body)
        if press is None:
            return
        sender = await self._people.sender(press.user)
        done = await self._intake.cancel(press.request_id, press.place, sender)
        if done is not CancelReply.STOPPED:
            await self._answer_press(press, done)

    async def _answer_press(self, press: Press, done: CancelReply) -> None:
        thread = {"thread_ts": press.place.thread} if press.place.thread else {}
        whisper = {"channel": press.place.chat, "user": press.user, "text": _ANSWERS[done], **thread}
        kept = without_buttons(press.blocks)
        try:
            await self._wire.send("chat.postEphemeral", whisper, timeout=PRESS_TIMEOUT)
            if done is CancelReply.NOTHING_RUNNING and kept and press.message_ts:
                # A button left over from a reply that is long gone.
                update = {"channel": press.place.chat, "ts": press.message_ts, "blocks": kept}
                await self._wire.send("chat.update", update, timeout=PRESS_TIMEOUT)
        except SlackFault as fault:
            log.info("slack.press_not_answered", method=fault.method, error=fault.code)


async def _nothing() -> tuple[str, ...]:
    return ()


def _line(message: Json, names: Mapping[str, str]) -> str:
    user = text_at(message, "user")
    name = (
        names.get(user) or text_at(message, "bot_profile", "name") or text_at(message, "username") or user or "?"
    )
    text = decode(text_at(message, "text"), names)
    return f"{name}: {text[:CONTEXT_LENGTH]}"


class _Lines:
    """A lock for each key that is in use, and none for others."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
