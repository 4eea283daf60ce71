"""The final text: whole, in order, and once; formatted where Telegram takes that, plain where it does not."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from channels.base import OutFile, Outgoing
from channels.telegram.faults import FaultKind, TelegramFault, delivery_error
from channels.telegram.live import Body
from channels.telegram.offload import by_size
from channels.telegram.posting import change, post, remove, send_file
from channels.telegram.render import render
from channels.telegram.rich_text import RichText
from channels.telegram.split import split
from channels.telegram.wire import Wire

SHORT_WAIT = 60.0  # seconds; a longer wait is handed back to the outbox
MOST_WAITS = 10
MANY_PARTS = 5  # a text in more messages than these comes as a file as well
NO_TEXT = "(no text)"
FILE_NAME = "answer.md"
REMEMBERED = 500  # deliveries that broke off half way

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
        self._halfway: OrderedDict[Outgoing, _Halfway] = OrderedDict()

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """The ids of the messages that show the text. Raises TryLater, Undeliverable."""
        key = _same(outgoing)
        work = _Delivery(self._wire, outgoing, self._halfway.pop(key, _Halfway()))
        try:
            return await work.run()
        except TelegramFault as fault:
            raise delivery_error(fault) from None
        finally:
            # Also when the task was cancelled: whatever is shown must be edited next time, not posted again.
            if not work.done and (work.shown or work.files):
                self._remember(key, _Halfway(tuple(work.shown), work.files))

    def _remember(self, key: Outgoing, halfway: _Halfway) -> None:
        self._halfway[key] = halfway
        while len(self._halfway) > REMEMBERED:
            self._halfway.popitem(last=False)


def _same(outgoing: Outgoing) -> Outgoing:
    """What is the same in every try of one delivery; the files are told by the text they come with."""
    return Outgoing(outgoing.place, outgoing.text, reply_to=outgoing.reply_to)


class _Delivery:
    """One try. `shown` are the messages that show the text so far, `files` the number of files that are there."""

    def __init__(self, wire: Wire, outgoing: Outgoing, halfway: _Halfway) -> None:
        self._wire = wire
        self._outgoing = outgoing
        self._free = deque(dict.fromkeys([*halfway.shown, *outgoing.posted]))
        self._plain = False
        self.shown: list[str] = []
        self.files = halfway.files
        self.done = False

    async def run(self) -> tuple[str, ...]:
        outgoing = self._outgoing
        parts = await by_size(outgoing.text, lambda: split(render(outgoing.text)))
        if not parts and not outgoing.files:
            parts = [RichText(NO_TEXT)]
        for part in parts:
            await self._part(part)
        for file in self._files(parts)[self.files :]:
            await self._waiting(partial(send_file, self._wire, outgoing.place, file))
            self.files += 1
        self.done = True
        await self._clear()
        return tuple(self.shown)

    def _files(self, parts: Sequence[RichText]) -> Sequence[OutFile]:
        if len(parts) <= MANY_PARTS:
            return self._outgoing.files
        whole = OutFile(FILE_NAME, "text/markdown", self._outgoing.text.encode("utf-8", "replace"))
        return (*self._outgoing.files, whole)

    async def _part(self, part: RichText) -> None:
        """Shows a part with its formatting, or without it from the moment that Telegram refused that."""
        if not self._plain:
            try:
                await self._message(part)
            except TelegramFault as fault:
                if fault.kind not in (FaultKind.MARKUP, FaultKind.REFUSED) or fault.uncertain:
                    raise
                log.warning("telegram.formatting_refused", error=str(fault))
                self._plain = True
            else:
                return
        for piece in split(RichText(part.text)):
            await self._message(piece)

    async def _message(self, rich: RichText) -> None:
        """Shows one message: in one that is there already, else in a new one."""
        place, body = self._outgoing.place, Body(rich)
        while self._free:
            message_id = self._free[0]
            changed = await self._waiting(partial(change, self._wire, place, message_id, body))
            self._free.popleft()
            if changed:
                self.shown.append(message_id)
                return
        reply_to = self._outgoing.reply_to if place.kind == "group" and not self.shown else None
        self.shown.append(await self._waiting(partial(post, self._wire, place, body, reply_to=reply_to)))

    async def _waiting(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call in its turn, after the waits that Telegram asks for while they are short.

        Raises TelegramFault.
        """
        place, pacer = self._outgoing.place, self._wire.pacer
        waits = 0
        while True:
            while (left := pacer.wait(place.chat, group=place.kind == "group", live=False)) > 0:
                if left > SHORT_WAIT:
                    raise TelegramFault("chat", FaultKind.RATE, after=left)
                await asyncio.sleep(left)
            try:
                return await call()
            except TelegramFault as fault:
                waits += 1
                if fault.kind not in (FaultKind.RATE, FaultKind.MIGRATED) or waits > MOST_WAITS:
                    raise

    async def _clear(self) -> None:
        """Takes away messages of the live showing that the final text has no use for."""
        for message_id in self._free:
            try:
                await self._waiting(partial(remove, self._wire, self._outgoing.place, message_id))
            except TelegramFault as fault:
                log.warning("telegram.leftover", error=str(fault))
