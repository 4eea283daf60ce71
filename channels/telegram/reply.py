"""A running reply: one task per reply owns its messages, and shows the newest state at the pace Telegram allows.

In private chats the text grows in a draft, which is smooth but carries no button and is dismissed by any message
that we post. So a small message with the Cancel button and the tool lines stands above it, posted before the first
draft; it goes when the reply ends, and the final text is posted in the draft's place. Elsewhere, and where drafts
are refused, the reply is a message that is edited.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import structlog
from telegram.constants import ChatAction

from bridge.errors import StoreError
from channels.base import ReplyContext, Snapshot
from channels.telegram.faults import FaultKind, TelegramFault
from channels.telegram.live import Body, look_of, panel_of, parts_so_far
from channels.telegram.offload import by_size
from channels.telegram.posting import change, draft, post, remove
from channels.telegram.rich_text import RichText
from channels.telegram.wire import Wire, thread_to_type

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds: how long typing alone tells that we are at work, how often it is told (Telegram shows it for 5),
    how often a draft is shown anew (it lives for 30), and the wait after an update that failed."""

    patience: float = 1.0
    typing: float = 4.5
    draft_again: float = 20.0
    after_failure: float = 2.0


MOST_DOUBLINGS = 4  # of the wait, while one update after the other fails


@asynccontextmanager
async def live_reply(wire: Wire, pace: Pace, context: ReplyContext) -> AsyncIterator[LiveReply]:
    """Shows the reply for as long as the context is open."""
    reply = LiveReply(wire, pace, context)
    typing = asyncio.create_task(reply.type(), name=f"telegram typing {context.request_id}")
    pump = asyncio.create_task(reply.run(), name=f"telegram reply {context.request_id}")
    reply.owned_by(pump)
    try:
        yield reply
        await reply.stop()
    finally:
        typing.cancel()
        pump.cancel()
        await asyncio.wait([typing, pump])
        for task in (typing, pump):
            if not task.cancelled() and (error := task.exception()) is not None:
                # A fault of ours in the live showing must not take the answer away with it.
                log.error("telegram.live_crashed", exc_info=error)


class LiveReply:
    """The pump of one reply. `posted` are the ids of its messages, in the order in which they are read."""

    def __init__(self, wire: Wire, pace: Pace, context: ReplyContext) -> None:
        self._wire = wire
        self._pace = pace
        self._context = context
        self._place = context.place
        self._stopping = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._posted: list[str] = list(context.posted)
        self._shown: list[Body | None] = [None] * len(context.posted)
        self._drafting = wire.drafts and self._place.kind == "direct" and not context.posted
        self._drafted: tuple[int, RichText] | None = None
        self._draft_due = 0.0
        self._text_visible = False
        self._plain = False
        self._failures = 0

    def owned_by(self, pump: asyncio.Task[None]) -> None:
        self._pump = pump

    async def stop(self) -> tuple[str, ...]:
        """Ends the live showing after the call under way, and returns the ids of the messages it posted."""
        self._stopping.set()
        self._context.view.changed.set()
        if self._pump is not None:
            await asyncio.wait([self._pump])
        return tuple(self._posted)

    async def type(self) -> None:
        """Tells that we are writing until text can be seen. Nothing ever waits for this."""
        call = partial(
            self._wire.bot.send_chat_action,
            self._wire.chats.target(self._place.chat),
            ChatAction.TYPING,
            message_thread_id=thread_to_type(self._place),
        )
        while not self._text_visible and not self._stopping.is_set():
            if self._wire.pacer.held(self._place.chat) == 0:
                try:
                    await self._wire.ask("sendChatAction", call)
                except TelegramFault as fault:
                    if fault.kind is FaultKind.RATE:
                        self._wire.pacer.hold(self._place.chat, fault.after or 0.0)
                    elif not fault.uncertain:
                        return
            await self._pause(self._pace.typing)

    async def run(self) -> None:
        view = self._context.view
        await self._think()
        while not self._stopping.is_set():
            view.changed.clear()
            await self._show(view.snapshot())
            if self._failures:
                await self._pause(self._pace.after_failure * 2 ** min(self._failures, MOST_DOUBLINGS))
            await self._wait_for_change()
        await self._finish()

    async def _think(self) -> None:
        """Until there is text, or it takes long enough for a message to say so.

        A draft waits in any case: an answer that is ready by then needs no panel.
        """
        view = self._context.view
        if self._posted:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.patience):
                while not self._stopping.is_set() and (self._drafting or not view.snapshot().text.strip()):
                    view.changed.clear()
                    await view.changed.wait()

    async def _wait_for_change(self) -> None:
        """Until there is something new to show, or the draft is about to fade."""
        again = self._pace.draft_again if self._drafted is not None else None
        with suppress(TimeoutError):
            async with asyncio.timeout(again):
                await self._context.view.changed.wait()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _turn(self) -> bool:
        """Waits until the chat may be written to; False when the reply ends before that."""
        group = self._place.kind == "group"
        while not self._stopping.is_set():
            left = self._wire.pacer.wait(self._place.chat, group=group, live=True)
            if left <= 0:
                return True
            await self._pause(left)
        return False

    async def _show(self, snapshot: Snapshot) -> None:
        """Brings Telegram up to date as far as it can; what fails is left to the next update."""
        if not await self._turn():
            return
        # While we waited more may have come: the newest state is shown.
        self._context.view.changed.clear()
        snapshot = self._context.view.snapshot()
        try:
            if self._drafting:
                await self._show_drafted(snapshot)
            else:
                await self._show_edited(snapshot)
        except TelegramFault as fault:
            self._learn(fault)
        else:
            self._failures = 0

    def _learn(self, fault: TelegramFault) -> None:
        if fault.kind is FaultKind.NO_PLACE:
            # Blocked, kicked, gone: nothing can be shown, and the delivery will say so.
            self._stopping.set()
            log.info("telegram.live_ended", error=str(fault))
            return
        self._context.view.changed.set()  # the same state once more, in whatever way is left
        if fault.kind is FaultKind.MARKUP and not self._plain:
            self._plain = True
        elif fault.kind not in (FaultKind.RATE, FaultKind.MIGRATED):
            self._failures += 1
            log.info("telegram.live_failed", error=str(fault))

    async def _show_edited(self, snapshot: Snapshot) -> None:
        """One message for each part of the text; the last one has the tool lines and the button."""
        look = partial(look_of, snapshot, self._context.request_id, as_plain=self._plain)
        bodies = await by_size(snapshot.text, look)
        for number, body in enumerate(bodies):
            known = number < len(self._posted)
            if known and self._shown[number] == body:
                continue
            if number and not await self._turn():
                return
            if not known:
                await self._post(body)
            elif not await change(self._wire, self._place, self._posted[number], body):
                # Somebody deleted it: the next update shows all in what is left, or anew.
                del self._posted[number], self._shown[number]
                self._context.view.changed.set()
                return
            else:
                self._shown[number] = body
        self._text_visible = bool(snapshot.text.strip())

    async def _post(self, body: Body, *, silent: bool = False) -> None:
        first_in_group = self._place.kind == "group" and not self._posted
        reply_to = self._context.reply_to if first_in_group else None
        message_id = await post(self._wire, self._place, body, reply_to=reply_to, silent=silent)
        self._posted.append(message_id)
        self._shown.append(body)
        if self._context.note_posted is None:
            return
        try:
            await self._context.note_posted(tuple(self._posted))
        except StoreError as error:
            log.warning("telegram.posted_not_noted", error=str(error))

    async def _show_drafted(self, snapshot: Snapshot) -> None:
        """The panel first, then the text: a message that is posted later would take the draft away."""
        panel = panel_of(snapshot, self._context.request_id)
        if not self._posted:
            await self._post(panel, silent=True)
        elif self._shown[0] != panel:
            if not await change(self._wire, self._place, self._posted[0], panel):
                # It was deleted; a new one would dismiss the draft, so the text itself is shown by edits.
                self._give_up_drafts()
                self._posted, self._shown = [], []
                return
            self._shown[0] = panel
        parts = await by_size(snapshot.text, partial(parts_so_far, snapshot.text, as_plain=self._plain))
        if parts:
            await self._draft(len(parts), parts[-1])

    async def _draft(self, number: int, part: RichText) -> None:
        """Shows the part that is being written; each part is a draft of its own."""
        now = asyncio.get_running_loop().time()
        if self._drafted == (number, part) and now < self._draft_due:
            return
        if not await self._turn():
            return
        draft_id = (zlib.crc32(self._context.request_id.encode()) & 0x3FFFFFFF) + number
        try:
            await draft(self._wire, self._place, draft_id, part)
        except TelegramFault as fault:
            if fault.kind in (FaultKind.NO_METHOD, FaultKind.REFUSED, FaultKind.TOKEN):
                self._wire.drafts = self._wire.drafts and fault.kind is not FaultKind.NO_METHOD
                log.info("telegram.no_drafts", error=str(fault))
                self._give_up_drafts()
                return
            raise
        self._drafted = (number, part)
        self._draft_due = now + self._pace.draft_again * 0.9
        self._text_visible = True

    def _give_up_drafts(self) -> None:
        """From here on by edits, the panel's message first."""
        self._drafting = False
        self._drafted = None
        self._context.view.changed.set()

    async def _finish(self) -> None:
        """Where the text was drafted, the panel has done its work: the final text takes the draft's place."""
        if self._drafted is None or not self._posted or self._wire.pacer.held(self._place.chat) > 0:
            return
        try:
            await remove(self._wire, self._place, self._posted[0])
        except TelegramFault as fault:
            log.info("telegram.live_failed", error=str(fault))
        else:
            self._posted = []
