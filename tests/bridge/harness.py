"""A whole bot for the bridge's tests: real store file, real lines and delivery, a channel that keeps what it was
given, and a scripted model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from agent.calibration import Facts
from agent.cancel import CancelTokenRegistry
from agent.context import ContextLimits
from agent.executor import AgentParts, AgentSettings
from agent.ports import Model, Tool
from agent.toolrun import ToolRunner
from bridge.access import Access, AccessPolicy
from bridge.agent_bridge import AgentBridge
from bridge.commands import Commands
from bridge.conversation import Conversations
from bridge.delivery import Delivery
from bridge.inbound import Inlet
from bridge.metrics import Metrics
from bridge.recovery import recover
from bridge.sessions import Busy, SessionLines
from bridge.store.sqlite import SqliteStore
from bridge.summaries import Summaries
from channels.base import (
    Channel,
    CommandInfo,
    Finding,
    Inbound,
    Intake,
    Outgoing,
    Place,
    ReplyContext,
    Sender,
    Snapshot,
)
from tests.agent.harness import RecordingClock, RecordingMemory
from tests.waiting import until

PLACE = Place("test", "1")
ALICE = Sender("alice", "Alice")
_numbers = itertools.count(1)


def said(
    text: str, place: Place = PLACE, sender: Sender = ALICE, key: str | None = None, bare: bool = False
) -> Inbound:
    number = next(_numbers)
    return Inbound(
        event_keys=(key or f"test:{number}",),
        place=place,
        sender=sender,
        text=text,
        sent_at=datetime.now(UTC),
        message_ref=f"m{number}",
        bare_commands=bare,
    )


class _Stream:
    def __init__(self, context: ReplyContext) -> None:
        self.context = context

    async def stop(self) -> tuple[str, ...]:
        return self.context.posted


@dataclass
class KeepingChannel:
    """A channel without a platform. `faults` are raised by the next deliveries; `delivered` grows, and
    `until` waits for it."""

    name: str = "test"
    delivered: list[Outgoing] = field(default_factory=list)
    replies: list[ReplyContext] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    hold: asyncio.Event | None = None
    posts: tuple[str, ...] = ()
    closed: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self, commands: Sequence[CommandInfo]) -> None:
        return

    async def run(self, intake: Intake) -> None:
        await asyncio.Event().wait()

    @asynccontextmanager
    async def reply(self, context: ReplyContext) -> AsyncIterator[_Stream]:
        if self.posts and context.note_posted is not None:
            await context.note_posted(self.posts)
        self.replies.append(context)
        async with self._changed:
            self._changed.notify_all()
        yield _Stream(context)

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        if self.hold is not None:
            await self.hold.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.delivered.append(outgoing)
        async with self._changed:
            self._changed.notify_all()
        return (f"p{len(self.delivered)}",)

    async def check(self) -> Sequence[Finding]:
        return []

    async def aclose(self) -> None:
        self.closed = True

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(condition)

    async def texts(self, count: int) -> list[str]:
        """The delivered texts, once there are `count` of them."""
        await self.until(lambda: len(self.delivered) >= count)
        return [outgoing.text for outgoing in self.delivered]

    def shown(self, index: int = -1) -> Snapshot:
        return self.replies[index].view.snapshot()


@dataclass
class Bot:
    store: SqliteStore
    channel: KeepingChannel
    inlet: Inlet
    lines: SessionLines
    delivery: Delivery
    conversations: Conversations
    registry: CancelTokenRegistry
    metrics: Metrics
    runner: ToolRunner
    memory: RecordingMemory

    async def idle(self) -> None:
        """Until nothing runs, waits or is being delivered."""
        await until(
            lambda: not (any(self.lines.totals()) or self.inlet.is_running(PLACE) or self.delivery.totals())
        )


@asynccontextmanager
async def bot(
    path: Path,
    model: Model,
    *,
    tools: Sequence[Tool] = (),
    busy: Busy = "queue",
    queue_limit: int = 20,
    max_running: int = 64,
    policy: AccessPolicy | None = None,
    channel: KeepingChannel | None = None,
    max_context_turns: int = 20,
    grace: float = 0.0,
    summary_model: Model | None = None,
) -> AsyncIterator[Bot]:
    """A running bot on the database at `path`; it takes up what it finds there, and drains at the end."""
    channel = channel or KeepingChannel()
    channels: dict[str, Channel] = {channel.name: channel}
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(path)
        stack.push_async_callback(store.close)
        runner = ToolRunner(30)
        stack.push_async_callback(runner.aclose)
        memory = RecordingMemory()
        parts = AgentParts(
            [model],
            {tool.spec.name: tool for tool in tools},
            AgentSettings(ContextLimits("system", max_context_turns), "en"),
            runner,
            memory,
            Facts(),
            RecordingClock(),
        )
        registry, metrics = CancelTokenRegistry(), Metrics()
        delivery = Delivery(store, channels, metrics)
        conversations = Conversations(store, "en", 3600)
        summaries = Summaries(summary_model, store, "en")
        stack.push_async_callback(summaries.aclose)
        agent = AgentBridge(
            parts, store, conversations, channels, delivery, metrics, summaries, max_running=max_running
        )
        lines = SessionLines(agent.run, registry, queue_limit=queue_limit)
        commands = Commands(store, lines, registry, conversations, agent.measure)
        access = Access(store, {channel.name: policy or AccessPolicy("everyone")})
        inlet = Inlet(
            store,
            access,
            lines,
            registry,
            commands,
            delivery,
            metrics,
            busy={channel.name: busy},
            queue_limit=queue_limit,
        )
        await recover(store, inlet.resume, delivery, metrics, [channel.name])
        try:
            yield Bot(store, channel, inlet, lines, delivery, conversations, registry, metrics, runner, memory)
        finally:
            await lines.drain(grace)
            await delivery.drain(5)
