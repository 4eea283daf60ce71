"""The final text: whole, in order, and once, in the best form that Slack takes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from channels.base import Outgoing
from channels.slack.events import slash_user
from channels.slack.faults import MARKUP, RATE_LIMITED, SlackFault, delivery_error
from channels.slack.payload import Body, text_at
from channels.slack.posting import change, find, mark_of, post, remove
from channels.slack.render import Form, forms, parts_of
from channels.slack.wire import Wire

SHORT_WAIT = 5.0  # seconds; a longer Retry-After is handed back to the outbox
SHORT_WAITS = 3
NO_TEXT = "(no text)"
REMEMBERED = 500  # deliveries that broke off half way, and addresses of slash commands
MARKED = 20  # messages of one text that are looked for after an uncertain try
LOOK_BACK = 3600.0  # seconds; how old such a message can be where nothing is answered by it

_NOT_A_MEMBER = frozenset({"not_in_channel", "channel_not_found", "user_not_in_channel"})

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Halfway:
    """How far a delivery came: the messages that show it, and how many of its files are there."""

    shown: tuple[str, ...] = ()
    files: int = 0


class Deliverer:
    """Delivers final texts; remembers how far it came with one that broke off, so that its next try goes on."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._halfway: OrderedDict[str, _Halfway] = OrderedDict()
        self._slash_urls: OrderedDict[str, str] = OrderedDict()

    def note_slash(self, message_ref: str, response_url: str) -> None:
        """Where a slash command can be answered in a channel that the bot is not in."""
        _remember(self._slash_urls, message_ref, response_url)

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """The ids of the messages that show the text. Raises TryLater, Undeliverable."""
        key = mark_of(outgoing.place.session_id, outgoing.text, outgoing.reply_to or "")
        url = self._slash_urls.get(outgoing.reply_to or "")
        work = _Delivery(self._wire, outgoing, key, self._halfway.pop(key, _Halfway()), url)
        try:
            return await work.run()
        except SlackFault as fault:
            raise delivery_error(fault) from None
        finally:
            # Also when the task was cancelled: whatever is shown must be edited next time, not posted again.
            if not work.done and work.shown:
                _remember(self._halfway, key, _Halfway(tuple(work.shown), work.files))


def _remember(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)


class _Delivery:
    """One try. `shown` are the messages that show the text so far, `files` the number of files that are there."""

    def __init__(self, wire: Wire, outgoing: Outgoing, key: str, halfway: _Halfway, slash_url: str | None) -> None:
        self._wire = wire
        self._outgoing = outgoing
        self._key = key
        self._slash_url = slash_url
        self._free = deque(dict.fromkeys([*halfway.shown, *outgoing.posted]))
        self._alone = slash_user(outgoing.reply_to) if outgoing.place.kind == "group" else None
        self._forms: tuple[Form, ...] = forms()
        self.shown: list[str] = []
        self.files = halfway.files
        self.done = False

    async def run(self) -> tuple[str, ...]:
        outgoing = self._outgoing
        if outgoing.uncertain and self._alone is None:
            await self._look_for_lost()
        parts = parts_of(outgoing.text)
        if not parts and not outgoing.files:
            parts = [NO_TEXT]
        for part in parts:
            await self._part(part)
        for file in outgoing.files[self.files :]:
            place = outgoing.place
            await self._waiting(partial(self._wire.upload, place.chat, place.thread, file.name, file.data))
            self.files += 1
        self.done = True
        await self._clear()
        return tuple(self.shown)

    async def _part(self, part: str) -> None:
        """Shows a part in the first form that Slack takes; what was refused is not tried for later parts."""
        before = len(self.shown)
        while True:
            try:
                for body in self._forms[0](part):
                    await self._message(body)
            except SlackFault as fault:
                if fault.code not in MARKUP or len(self._forms) == 1:
                    raise
                log.warning("slack.form_refused", method=fault.method, error=fault.code)
                self._forms = self._forms[1:]
                self._free.extendleft(reversed(self.shown[before:]))
                del self.shown[before:]
            else:
                return

    async def _message(self, body: Body) -> None:
        """Shows one message: in one that is there already, else in a new one."""
        if self._alone is not None:
            self.shown.append(await self._waiting(partial(self._whisper, self._alone, body)))
            return
        place = self._outgoing.place
        while self._free:
            ts = self._free[0]
            changed = await self._waiting(partial(change, self._wire, place, ts, body))
            self._free.popleft()
            if changed:
                self.shown.append(ts)
                return
        mark = mark_of(self._key, str(len(self.shown)))
        self.shown.append(await self._waiting(partial(post, self._wire, place, body, mark)))

    async def _whisper(self, user: str, body: Body) -> str:
        """Shows a message to one person only, as Slack does with what they typed."""
        request: Body = {"channel": self._outgoing.place.chat, "user": user, **body}
        try:
            answer = await self._wire.send("chat.postEphemeral", request)
        except SlackFault as fault:
            if fault.code not in _NOT_A_MEMBER or self._slash_url is None:
                raise
            await self._wire.respond(self._slash_url, {"response_type": "ephemeral", **body})
            return ""
        return text_at(answer.data, "message_ts")

    async def _waiting(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call, after waits that Slack asks for while they are short. Raises SlackFault."""
        chat = self._outgoing.place.chat
        for _ in range(SHORT_WAITS):
            left = self._wire.holds.left(chat)
            if left > SHORT_WAIT:
                raise SlackFault("chat", RATE_LIMITED, retry_after=left)
            await asyncio.sleep(left)
            try:
                return await call()
            except SlackFault as fault:
                if fault.code != RATE_LIMITED:
                    raise
                self._wire.holds.hold(chat, fault.retry_after or 0.0)
        raise SlackFault("chat", RATE_LIMITED, retry_after=self._wire.holds.left(chat))

    async def _look_for_lost(self) -> None:
        """Finds what an earlier try posted without hearing of it. Where it can't, one double is accepted."""
        marks = [mark_of(self._key, str(number)) for number in range(MARKED)]
        oldest = self._outgoing.reply_to or str(time.time() - LOOK_BACK)
        try:
            found = await find(self._wire, self._outgoing.place, marks, oldest)
        except SlackFault as fault:
            log.warning("slack.lost_not_found", method=fault.method, error=fault.code)
            return
        self._free = deque(dict.fromkeys([*self._free, *(found[mark] for mark in marks if mark in found)]))

    async def _clear(self) -> None:
        """Takes away messages of the live showing that the final text has no use for."""
        for ts in self._free:
            try:
                await self._waiting(partial(remove, self._wire, self._outgoing.place, ts))
            except SlackFault as fault:
                log.warning("slack.leftover", method=fault.method, error=fault.code)
