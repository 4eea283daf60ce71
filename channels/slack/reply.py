"""A running reply: one task per reply owns its messages, and shows the newest state at the pace Slack allows.

In a channel's thread the reply is a message that is edited about once a second. Slack's native streaming shows
there only to one recipient while it runs, can't carry a Stop button, and ends by itself after some minutes; it is
used in the assistant pane (a thread in a direct message), with the button in a message of its own, and whatever
goes wrong with it falls back to edits of the same message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from bridge.errors import StoreError
from channels.base import ReplyContext, Snapshot
from channels.slack.faults import MARKUP, NO_FEATURE, RATE_LIMITED, SlackFault
from channels.slack.live import look_of, panel_of, status_of
from channels.slack.payload import Body
from channels.slack.posting import change, find, mark_of, post, remove
from channels.slack.render import PART_LIMIT
from channels.slack.stream import NativeStream
from channels.slack.wire import Wire

INTERVAL = 1.2  # seconds between two updates of one reply; chat.update allows some 50 a minute
PATIENCE = 1.0  # seconds before a message says that we are at work; a quick answer needs none
MOST_DOUBLINGS = 5  # of the interval, while one update after the other fails
LIVE_TIMEOUT = 8.0  # seconds; what is late here is shown by the next update

log = structlog.get_logger()


@dataclass(slots=True)
class Abilities:
    """What this workspace turned out not to have; kept, so that it is asked for once only."""

    status: bool = True
    stream: bool = True
    stream_in_channels: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    interval: float = INTERVAL
    patience: float = PATIENCE


@asynccontextmanager
async def live_reply(
    wire: Wire, team_id: str, abilities: Abilities, pace: Pace, context: ReplyContext
) -> AsyncIterator[LiveReply]:
    """Shows the reply for as long as the context is open."""
    reply = LiveReply(wire, team_id, abilities, pace, context)
    pump = asyncio.create_task(reply.run(), name=f"slack reply {context.request_id}")
    reply.owned_by(pump)
    try:
        yield reply
        await reply.stop()
    finally:
        pump.cancel()
        await asyncio.wait([pump])
        if not pump.cancelled() and (error := pump.exception()) is not None:
            # A fault of ours in the live showing must not take the answer away with it.
            log.error("slack.live_crashed", exc_info=error)


class LiveReply:
    """The pump of one reply. `posted` are the ids of its messages, in the order in which they are read."""

    def __init__(self, wire: Wire, team_id: str, abilities: Abilities, pace: Pace, context: ReplyContext) -> None:
        self._wire = wire
        self._context = context
        self._abilities = abilities
        self._pace = pace
        self._stopping = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._shown: list[Body | None] = [None] * len(context.posted)
        self._posted: list[str] = list(context.posted)
        self._panel: str | None = None
        self._panel_body: Body | None = None
        self._stream = self._new_stream(team_id)
        self._plain = False
        self._status = ""
        self._failures = 0
        self._unsure: list[str] = []

    def _new_stream(self, team_id: str) -> NativeStream | None:
        context = self._context
        wanted = context.place.kind == "direct" or self._abilities.stream_in_channels
        if not (self._abilities.stream and wanted and context.place.thread) or context.posted:
            return None
        return NativeStream(self._wire, context.place, context.asker, team_id, LIVE_TIMEOUT)

    def owned_by(self, pump: asyncio.Task[None]) -> None:
        self._pump = pump

    async def stop(self) -> tuple[str, ...]:
        """Ends the live showing after the call under way, and returns the ids of the messages it posted."""
        self._stopping.set()
        self._context.view.changed.set()
        if self._pump is not None:
            await asyncio.wait([self._pump])
        return tuple(self._posted)

    async def run(self) -> None:
        view = self._context.view
        await self._think()
        while not self._stopping.is_set():
            view.changed.clear()
            await self._show(view.snapshot())
            await self._pause(self._pace.interval * 2 ** min(self._failures, MOST_DOUBLINGS))
            await self._hold()
            await view.changed.wait()
        await self._finish()

    async def _think(self) -> None:
        """Until there is text, or it takes long enough for a message to say so: only Slack's status line."""
        if self._posted:
            return
        view = self._context.view
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.patience):
                while not self._stopping.is_set():
                    view.changed.clear()
                    snapshot = view.snapshot()
                    if snapshot.text:
                        return
                    await self._set_status(status_of(snapshot))
                    await view.changed.wait()

    async def _set_status(self, status: str) -> None:
        """Never waited for by an answer: the caller's time limit ends it, and so does `stop`."""
        thread = self._context.place.thread
        if not thread or not self._abilities.status or status == self._status:
            return
        self._status = status
        body = {"channel_id": self._context.place.chat, "thread_ts": thread, "status": status}
        try:
            await self._unless_stopped(self._wire.send("assistant.threads.setStatus", body))
        except SlackFault as fault:
            if fault.code != RATE_LIMITED and not fault.uncertain:
                self._abilities.status = False
                log.info("slack.no_status", error=fault.code)

    async def _unless_stopped(self, call: Coroutine[None, None, object]) -> None:
        """The call, given up at once when the reply is to end."""
        task, stop = asyncio.create_task(call), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _hold(self) -> None:
        """Waits as long as Slack wants the channel left alone; the newest state is shown after it."""
        while not self._stopping.is_set() and (left := self._wire.holds.left(self._context.place.chat)) > 0:
            await self._pause(left)

    async def _show(self, snapshot: Snapshot) -> None:
        """Brings Slack up to date as far as it can; what fails is left to the next update."""
        try:
            if self._stream is not None:
                await self._show_streamed(snapshot, self._stream)
            else:
                await self._show_edited(snapshot)
        except SlackFault as fault:
            self._learn(fault)
        else:
            self._failures = 0

    def _learn(self, fault: SlackFault) -> None:
        self._context.view.changed.set()  # the same state once more, in whatever way is left
        if fault.code in MARKUP and not self._plain:
            self._plain = True
        elif fault.code != RATE_LIMITED:
            self._failures += 1
            log.info("slack.live_failed", method=fault.method, error=fault.code)

    async def _show_edited(self, snapshot: Snapshot) -> None:
        """One message for each part of the text; the last one has the tool lines and the button."""
        for number, body in enumerate(look_of(snapshot, self._context.request_id, plain=self._plain)):
            if self._stopping.is_set():
                return
            if number >= len(self._posted):
                await self._post(body)
            elif self._shown[number] != body and not await self._edit(number, body):
                # Somebody deleted it: the next update shows all in what is left, or anew.
                self._context.view.changed.set()
                return

    async def _edit(self, number: int, body: Body) -> bool:
        if not await change(self._wire, self._context.place, self._posted[number], body, timeout=LIVE_TIMEOUT):
            del self._posted[number], self._shown[number]
            return False
        self._shown[number] = body
        return True

    async def _post(self, body: Body) -> None:
        self._posted.append(await self._post_marked(body))
        self._shown.append(body)
        await self._note(self._posted)

    async def _post_marked(self, body: Body) -> str:
        """Posts under a mark by which it is found again if the answer never came."""
        mark = mark_of(self._context.request_id, str(len(self._posted)), str(len(self._unsure)))
        try:
            return await post(self._wire, self._context.place, body, mark, timeout=LIVE_TIMEOUT)
        except SlackFault as fault:
            if fault.uncertain:
                self._unsure.append(mark)
            raise

    async def _note(self, posted: Sequence[str]) -> None:
        if self._context.note_posted is None:
            return
        try:
            await self._context.note_posted(posted)
        except StoreError as error:
            log.warning("slack.posted_not_noted", error=str(error))

    async def _show_streamed(self, snapshot: Snapshot, stream: NativeStream) -> None:
        await self._show_panel(snapshot)
        fits = len(snapshot.text) <= PART_LIMIT and not self._stopping.is_set()
        try:
            went_on = fits and await stream.show(snapshot.text)
        except SlackFault as fault:
            if fault.code == RATE_LIMITED:
                raise
            if stream.ts is None and fault.code in NO_FEATURE:
                self._abilities.stream = False
                log.info("slack.no_streaming", error=fault.code)
            went_on = False
        if stream.ts is not None and not self._posted:
            self._posted, self._shown = [stream.ts], [None]
            await self._note([*self._posted, *self._panels()])
        if not went_on and not self._stopping.is_set():
            await self._give_up_stream(stream)

    async def _show_panel(self, snapshot: Snapshot) -> None:
        """The button's own message, since a stream can't carry one."""
        body = panel_of(snapshot, self._context.request_id)
        if body == self._panel_body:
            return
        if self._panel is None:
            self._panel = await self._post_marked(body)
            await self._note([*self._posted, self._panel])
        else:
            await change(self._wire, self._context.place, self._panel, body, timeout=LIVE_TIMEOUT)
        self._panel_body = body

    def _panels(self) -> list[str]:
        return [self._panel] if self._panel is not None else []

    async def _give_up_stream(self, stream: NativeStream) -> None:
        """From here on by edits: of the streamed message, or of the panel where none was begun."""
        self._stream = None
        self._context.view.changed.set()
        await stream.end()
        if not self._posted:
            self._posted, self._shown = self._panels(), [self._panel_body for _ in self._panels()]
            self._panel = None

    async def _finish(self) -> None:
        """Leaves nothing half done: no open stream, no stray panel, no message that nobody knows of."""
        try:
            if self._stream is not None:
                await self._stream.end()
            if self._unsure:
                await self._find_unsure()
            await self._drop_panel()
        except SlackFault as fault:
            log.info("slack.live_failed", method=fault.method, error=fault.code)
        self._posted.extend(ts for ts in self._panels() if ts not in self._posted)

    async def _drop_panel(self) -> None:
        if self._panel is not None and self._posted:
            await remove(self._wire, self._context.place, self._panel, timeout=LIVE_TIMEOUT)
            self._panel = None

    async def _find_unsure(self) -> None:
        oldest = self._context.reply_to or self._context.place.thread or "0"
        found = await find(self._wire, self._context.place, self._unsure, oldest, timeout=LIVE_TIMEOUT)
        self._posted.extend(ts for ts in found.values() if ts not in self._posted)
