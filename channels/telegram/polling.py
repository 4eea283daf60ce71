"""Long polling under our own offset: an update is confirmed when it, and all before it, are stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from telegram import Update
from telegram.constants import UpdateType

from channels.telegram.faults import FaultKind, TelegramFault, setup_error
from channels.telegram.offsets import OffsetLedger
from channels.telegram.wire import POLL_SLACK, Wire

WANTED = (UpdateType.MESSAGE, UpdateType.CALLBACK_QUERY)
CONFLICTS = 4
"""Conflicts in a row before we believe in a second poller: a poll of ours that hangs on at Telegram's side after a
restart makes one or two as well."""

Handle = Callable[[Update], Awaitable[None]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PollPace:
    """In seconds: how long Telegram holds a poll that has nothing, how much later than that it may answer before
    the watchdog begins anew, how long new updates are looked for only now and then while others are being taken
    in, and the first and longest wait after a failure."""

    poll: float = 30.0
    watch: float = 2 * POLL_SLACK
    look_again: float = 1.0
    first_delay: float = 1.0
    longest_delay: float = 30.0


class Poller:
    """Owns the polls and one task for each update that is being taken in."""

    def __init__(self, wire: Wire, handle: Handle, pace: PollPace) -> None:
        """`handle` returns when the update is stored, and raises for one that never can be."""
        self._wire = wire
        self._handle = handle
        self._pace = pace
        self._ledger = OffsetLedger()
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()
        self._failures = 0
        self._conflicts = 0

    async def run(self) -> None:
        """Until cancelled. Raises ChannelSetupError when Telegram gives us no updates any more."""
        try:
            while True:
                await self._round()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _round(self) -> None:
        try:
            updates = await self._poll()
        except TimeoutError:
            log.warning("telegram.poll_hung", seconds=self._pace.poll + self._pace.watch)
            await self._wire.reopen_polling()
        except TelegramFault as fault:
            await self._after(fault)
        else:
            self._recovered()
            self._take(updates)
            await self._settle()

    async def _poll(self) -> Sequence[Update]:
        """One poll; while updates are being taken in, one that is answered at once."""
        hold = 0.0 if self._ledger else self._pace.poll
        offset = self._ledger.offset
        call = partial(
            self._wire.bot.get_updates,
            offset=offset,
            timeout=int(hold),
            allowed_updates=WANTED,
        )
        # The HTTP library's own limit is for silence; a server that drips would hold us for ever.
        async with asyncio.timeout(hold + self._pace.watch):
            updates = await self._wire.ask("getUpdates", call)
        self._ledger.confirmed(offset)
        return updates

    def _take(self, updates: Sequence[Update]) -> None:
        by_id = {update.update_id: update for update in updates}
        for number in self._ledger.take(by_id):
            task = asyncio.create_task(self._take_one(by_id[number]), name=f"telegram update {number}")
            self._tasks.add(task)
            task.add_done_callback(partial(self._taken, number))

    async def _take_one(self, update: Update) -> None:
        await self._handle(update)

    def _taken(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # One that can't be taken in must not be given to us for ever.
            log.error("telegram.update_dropped", update=number, exc_info=error)
        self._ledger.done(number)
        self._progress.set()

    async def _settle(self) -> None:
        """While updates are being taken in: until one more is, or it is time to look for others."""
        if not self._ledger:
            return
        self._progress.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.look_again):
                await self._progress.wait()

    async def _after(self, fault: TelegramFault) -> None:
        """Waits before the next poll. Raises ChannelSetupError when there is no use in one."""
        if fault.kind in (FaultKind.TOKEN, FaultKind.NO_METHOD, FaultKind.WEBHOOK_SET):
            raise setup_error(fault)
        if fault.kind is FaultKind.POLLED_ELSEWHERE:
            self._conflicts += 1
            log.warning("telegram.conflict", times=self._conflicts)
            if self._conflicts >= CONFLICTS:
                raise setup_error(fault)
        elif fault.kind is FaultKind.TIMED_OUT and fault.uncertain:
            log.warning("telegram.poll_hung", error=str(fault))
        elif not self._failures:
            log.warning("telegram.unreachable", error=str(fault))
        self._failures += 1
        delay = min(self._pace.first_delay * 2.0 ** min(self._failures - 1, 20), self._pace.longest_delay)
        await asyncio.sleep(max(delay * random.uniform(0.7, 1.3), fault.after or 0.0))  # noqa: S311 - jitter

    def _recovered(self) -> None:
        if self._failures:
            log.info("telegram.reachable_again", failures=self._failures)
        self._failures = self._conflicts = 0
