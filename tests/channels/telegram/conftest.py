"""The real SDK against our own Telegram, with a bridge that only notes what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bridge.settings import TelegramSettings
from channels.base import (
    Accepted,
    CancelReply,
    CommandInfo,
    Inbound,
    LiveView,
    Outgoing,
    Place,
    ReplyContext,
    Sender,
)
from channels.telegram.adapter import Paces, TelegramChannel
from channels.telegram.pace import Limits
from channels.telegram.polling import PollPace
from channels.telegram.reply import Pace
from channels.telegram.taking_in import IntakePace
from tests.servers.telegram_server import TOKEN, TelegramServer, group, person, private

ANN = person(7, "Ann")
DIRECT = private(7)
GROUP = group(-1001)
FORUM = group(-1002, forum=True)
HERE = Place("telegram", "7", None, "direct")
THERE = Place("telegram", "-1001", None, "group")
COMMANDS = [CommandInfo("cancel", "Stop the answer"), CommandInfo("new", "Start anew")]

_QUICK = ((100, 0.02),)
FAST = Paces(
    limits=Limits(_QUICK, _QUICK, _QUICK, _QUICK, (1000, 0.1), (1000, 0.1)),
    poll=PollPace(poll=5.0, watch=5.0, look_again=0.02, first_delay=0.005, longest_delay=0.02),
    intake=IntakePace(album=0.05, command=0.05, first_delay=0.005, longest_delay=0.02),
    reply=Pace(patience=0.02, typing=0.05, draft_again=20.0, after_failure=0.005),
    start_delays=(0.01, 0.01),
)


@dataclass
class FakeIntake:
    """The bridge: remembers event keys, and fails or waits when it is told to."""

    inbound: list[Inbound] = field(default_factory=list)
    results: list[Accepted] = field(default_factory=list)
    tried: int = 0
    cancels: list[tuple[str, Place, Sender]] = field(default_factory=list)
    cancel_reply: CancelReply = CancelReply.STOPPED
    failing: list[Exception] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _seen: set[str] = field(default_factory=set)

    async def accept(self, inbound: Inbound) -> Accepted:
        self.tried += 1
        await self._tell()
        if (gate := self.gates.get(inbound.text)) is not None:
            await gate.wait()
        if self.failing:
            raise self.failing.pop(0)
        new = self._seen.isdisjoint(inbound.event_keys)
        self._seen.update(inbound.event_keys)
        if new:
            self.inbound.append(inbound)
        self.results.append(Accepted.STORED if new else Accepted.DUPLICATE)
        await self._tell()
        return self.results[-1]

    async def cancel(self, request_id: str, place: Place, sender: Sender) -> CancelReply:
        self.cancels.append((request_id, place, sender))
        await self._tell()
        return self.cancel_reply

    def is_running(self, place: Place) -> bool:
        return False

    async def knows(self, place: Place) -> bool:
        return False

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)

    async def hear(self, number: int = 1) -> list[Inbound]:
        await self.until(lambda: len(self.inbound) >= number)
        return self.inbound


@dataclass
class Rig:
    """A started channel, its server, and the bridge behind it."""

    server: TelegramServer
    channel: TelegramChannel
    intake: FakeIntake
    task: asyncio.Task[None] | None = None

    def context(self, view: LiveView, place: Place = HERE, **more: object) -> ReplyContext:
        return ReplyContext(**{"request_id": "req-1", "place": place, "view": view, **more})  # type: ignore[arg-type]  # the test's own keywords

    async def deliver(self, text: str, place: Place = HERE, **more: object) -> tuple[str, ...]:
        return await self.channel.deliver(Outgoing(place, text, **more))  # type: ignore[arg-type]  # as above

    async def confirmed(self) -> None:
        """Until Telegram was told that we have everything."""
        await self.server.wait_for(lambda: not self.server.updates)


def settings_for(server: TelegramServer, **more: object) -> TelegramSettings:
    return TelegramSettings.model_validate({"token": TOKEN, "base_url": server.base_url, **more})


@asynccontextmanager
async def opened(
    server: TelegramServer, *, paces: Paces = FAST, data_dir: Path | None = None, **more: object
) -> AsyncIterator[Rig]:
    """A channel that was started but takes nothing in."""
    channel = TelegramChannel(settings_for(server, **more), paces=paces, data_dir=data_dir)
    await channel.start(COMMANDS)
    try:
        yield Rig(server, channel, FakeIntake())
    finally:
        await channel.aclose()


@asynccontextmanager
async def running(
    server: TelegramServer, *, paces: Paces = FAST, data_dir: Path | None = None, **more: object
) -> AsyncIterator[Rig]:
    """A channel that is started and takes updates in."""
    async with opened(server, paces=paces, data_dir=data_dir, **more) as rig:
        rig.task = asyncio.create_task(rig.channel.run(rig.intake))
        try:
            await server.wait_for(lambda: server.polls)
            yield rig
        finally:
            rig.task.cancel()
            await asyncio.gather(rig.task, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        for chat in (DIRECT, GROUP, FORUM):
            server.chats.kinds[chat["id"]] = chat
        yield server


@pytest.fixture
async def rig(server: TelegramServer) -> AsyncIterator[Rig]:
    async with running(server) as rig:
        yield rig


@pytest.fixture
async def quiet(server: TelegramServer) -> AsyncIterator[Rig]:
    """Started, not polling: for what goes out."""
    async with opened(server) as rig:
        yield rig


def slow_polls(**more: float) -> Paces:
    return replace(FAST, poll=replace(FAST.poll, **more))
