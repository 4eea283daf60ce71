"""The real SDK against our own Slack, with a bridge that only notes what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bridge.settings import SlackSettings
from channels.base import Accepted, CancelReply, Inbound, LiveView, Outgoing, Place, ReplyContext, Sender
from channels.slack.adapter import SlackChannel
from channels.slack.reply import Pace
from channels.slack.socket_mode import SocketPace
from tests.servers.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer

FAST = Pace(interval=0.02, patience=0.05)
SOCKET = SocketPace(ping=0.2, watch=0.2)


@dataclass
class FakeIntake:
    """The bridge: remembers event keys, knows some threads, and fails when it is told to."""

    known: set[str] = field(default_factory=set)
    inbound: list[Inbound] = field(default_factory=list)
    tried: int = 0
    results: list[Accepted] = field(default_factory=list)
    cancels: list[tuple[str, Place, Sender]] = field(default_factory=list)
    cancel_reply: CancelReply = CancelReply.STOPPED
    failing: list[Exception] = field(default_factory=list)
    gate: asyncio.Event | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _seen: set[str] = field(default_factory=set)

    async def accept(self, inbound: Inbound) -> Accepted:
        self.tried += 1
        await self._tell()
        if self.gate is not None:
            await self.gate.wait()
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
        return place.session_id in self.known

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)


@dataclass
class Rig:
    """A started channel, its server, and the bridge behind it."""

    server: SlackServer
    channel: SlackChannel
    intake: FakeIntake

    async def hear(self, number: int = 1) -> list[Inbound]:
        await self.intake.until(lambda: len(self.intake.inbound) >= number)
        return self.intake.inbound

    def context(self, place: Place, view: LiveView, **more: object) -> ReplyContext:
        return ReplyContext(**{"request_id": "req-1", "place": place, "view": view, **more})  # type: ignore[arg-type]  # the test's own keywords

    async def deliver(self, text: str, place: Place, **more: object) -> tuple[str, ...]:
        return await self.channel.deliver(Outgoing(place, text, **more))  # type: ignore[arg-type]  # as above

    def shown(self, channel: str = "C1") -> list[dict[str, object]]:
        return [message for message in self.server.slack.messages[channel] if message.get("user") == "UBOT"]


def settings_for(server: SlackServer, **more: object) -> SlackSettings:
    values = {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "base_url": server.base_url, **more}
    return SlackSettings.model_validate(values)


@pytest.fixture
async def server() -> AsyncIterator[SlackServer]:
    async with SlackServer(ack_within=0.3) as server:
        yield server


Open = Callable[..., Awaitable[Rig]]


@asynccontextmanager
async def running(server: SlackServer, **more: object) -> AsyncIterator[Rig]:
    """A channel that is started and takes events in."""
    pace = more.pop("pace", FAST)
    assert isinstance(pace, Pace)
    stream = bool(more.pop("stream_in_channels", False))
    channel = SlackChannel(settings_for(server, **more), pace=pace, socket_pace=SOCKET, stream_in_channels=stream)
    intake = FakeIntake()
    await channel.start([])
    task = asyncio.create_task(channel.run(intake))
    try:
        await asyncio.wait_for(server.connected.wait(), 10)
        yield Rig(server, channel, intake)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await channel.aclose()


@pytest.fixture
async def rig(server: SlackServer) -> AsyncIterator[Rig]:
    async with running(server) as rig:
        yield rig
