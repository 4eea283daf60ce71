"""The one place where everything is wired, and the life of the process: start, take up, run, drain."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.cancel import CancelTokenRegistry
from agent.executor import AgentParts
from agent.memory import FileMemory, MemoryFlusher
from agent.ports import Model
from agent.toolrun import ToolRunner
from bridge.access import Access
from bridge.agent_bridge import AgentBridge
from bridge.commands import Commands, menu
from bridge.conversation import Conversations
from bridge.delivery import Delivery
from bridge.errors import StoreError
from bridge.facts import StoredFacts
from bridge.inbound import Inlet
from bridge.lock import DirectoryLock
from bridge.metrics import Metrics
from bridge.parts import (
    access_policies,
    agent_settings,
    busy_modes,
    open_channels,
    open_models,
    open_tools,
    summary_model,
)
from bridge.ports import Store
from bridge.recovery import recover
from bridge.retention import retention
from bridge.sessions import SessionLines
from bridge.settings import Settings
from bridge.store.sqlite import SqliteStore
from bridge.summaries import Summaries
from bridge.texts import bridge_texts
from channels.base import Channel, ChannelError

log = structlog.get_logger()

HOUSEKEEPING_INTERVAL = 30.0
"""Seconds between two rounds of evicting idle sessions and saving what was learned of the models."""

PROBE_TIMEOUT = 5.0
"""Seconds after which a store that does not answer is not ready."""

DATABASE = "steadybot.sqlite3"


class SystemClock:
    """agent.ports.Clock by the system's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class App:
    """A running bot: its intake, and what has to be looked after."""

    def __init__(
        self,
        channels: dict[str, Channel],
        inlet: Inlet,
        lines: SessionLines,
        delivery: Delivery,
        conversations: Conversations,
        facts: StoredFacts,
        metrics: Metrics,
        store: Store,
        agent: AgentBridge,
    ) -> None:
        self.channels = channels
        self.inlet = inlet
        self.lines = lines
        self.delivery = delivery
        self.conversations = conversations
        self.facts = facts
        self.metrics = metrics
        self._store = store
        self._agent = agent
        self._running = len(channels)
        self._alive = dict.fromkeys(channels, False)
        self._failure: ChannelError | None = None

    async def readiness(self) -> dict[str, bool]:
        """What has to work, and whether it does: the store takes writes, each channel runs."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._store.count("health.probes")
        except (StoreError, TimeoutError) as error:
            log.warning("health.store", error=str(error) or f"no answer within {PROBE_TIMEOUT} s")
            return {"store": False, **self._alive}
        return {"store": True, **self._alive}

    async def serve(self, stop: asyncio.Event) -> None:
        """Takes events in until `stop` is set, which the last channel to end by itself does too.

        Raises the ChannelError of a channel that could not go on when no other is left.
        """
        tasks = {
            asyncio.create_task(self._run_channel(channel, stop), name=f"channel {name}")
            for name, channel in self.channels.items()
        }
        tasks.add(asyncio.create_task(self._housekeeping(), name="housekeeping"))
        try:
            await stop.wait()
            # Before the others are ended: a stop that was asked for is none of one channel's failure.
            failure = self._failure if self._running == 0 else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if failure is not None:
            raise failure

    async def _run_channel(self, channel: Channel, stop: asyncio.Event) -> None:
        """One channel that can't go on ends alone."""
        self._alive[channel.name] = True
        try:
            await channel.run(self.inlet)
        except ChannelError as error:
            log.error("channel.stopped", channel=channel.name, error=str(error))
            self._failure = error
        # The border to a platform's SDK: what it did not expect ends this channel, not the others.
        except Exception:
            log.exception("channel.crashed", channel=channel.name)
        finally:
            self._alive[channel.name] = False
            self._running -= 1
            if self._running == 0:
                stop.set()

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_INTERVAL)
            busy = {request.place.session_id for request in self.lines.requests()}
            if evicted := self.conversations.evict_idle(busy):
                log.info("session.evicted", sessions=evicted)
            await self.facts.save()
            await self._agent.store_late()


@dataclass(frozen=True, slots=True)
class _Foundations:
    """What everything else stands on, opened in this order and closed in the reverse one."""

    store: SqliteStore
    facts: StoredFacts
    models: list[Model]
    channels: dict[str, Channel]
    parts: AgentParts


async def _foundations(settings: Settings, stack: AsyncExitStack) -> _Foundations:
    data_dir = Path(settings.data_dir)
    stack.enter_context(DirectoryLock(data_dir))
    store = await SqliteStore.open(data_dir / DATABASE)
    stack.push_async_callback(store.close)
    facts = StoredFacts(store, await store.model_facts())
    stack.push_async_callback(facts.save)
    flusher = MemoryFlusher(FileMemory(data_dir / "memory"))
    stack.push_async_callback(flusher.aclose)
    runner = ToolRunner(settings.agent.tool_timeout)
    stack.push_async_callback(runner.aclose)
    models = open_models(settings)
    channels = open_channels(settings, data_dir)
    for model in models:
        stack.push_async_callback(model.aclose)
    for channel in channels.values():
        stack.push_async_callback(channel.aclose)
    tools, agent = open_tools(settings), agent_settings(settings)
    parts = AgentParts(models, tools, agent, runner, flusher, facts.facts, SystemClock())
    return _Foundations(store, facts, models, channels, parts)


def _wired(settings: Settings, base: _Foundations, stack: AsyncExitStack) -> App:
    session, language = settings.session, settings.agent.language
    store, channels = base.store, base.channels
    metrics, registry = Metrics(), CancelTokenRegistry()
    delivery = Delivery(store, channels, metrics)
    conversations = Conversations(store, language, session.idle_evict)
    summaries = Summaries(summary_model(base.models), store, language)
    stack.push_async_callback(summaries.aclose)
    agent = AgentBridge(
        base.parts,
        store,
        conversations,
        channels,
        delivery,
        metrics,
        summaries,
        max_running=session.max_running,
    )
    lines = SessionLines(agent.run, registry, queue_limit=session.queue_limit)
    inlet = Inlet(
        store,
        Access(store, access_policies(settings)),
        lines,
        registry,
        Commands(store, lines, registry, conversations, agent.measure),
        delivery,
        metrics,
        busy=busy_modes(settings),
        queue_limit=session.queue_limit,
        texts=lambda sample: bridge_texts(language, sample),
    )
    metrics.gauge("running", lambda: lines.totals()[0])
    metrics.gauge("queued", lambda: lines.totals()[1])
    metrics.gauge("undelivered", delivery.totals)
    metrics.gauge("conversations_in_memory", lambda: len(conversations))
    return App(channels, inlet, lines, delivery, conversations, base.facts, metrics, store, agent)


@asynccontextmanager
async def open_app(settings: Settings) -> AsyncIterator[App]:
    """Wires everything, starts the channels and takes up what was left unfinished; drains on the way out.

    Raises bridge.errors.SteadybotError and channels.base.ChannelSetupError.
    """
    async with AsyncExitStack() as stack:
        base = await _foundations(settings, stack)
        app = _wired(settings, base, stack)
        await stack.enter_async_context(retention(base.store, settings.retention_days))
        if settings.health.port is not None:
            from bridge.health import serve_health  # a web server only where one is asked for

            await stack.enter_async_context(serve_health(settings.health, app.metrics, app.readiness))
        commands = menu(bridge_texts(settings.agent.language))
        await asyncio.gather(*(channel.start(commands) for channel in base.channels.values()))
        await recover(base.store, app.inlet.resume, app.delivery, app.metrics, list(base.channels))
        try:
            yield app
        finally:
            grace = settings.session.shutdown_grace
            await app.lines.drain(grace)
            await app.delivery.drain(min(grace, 5.0))


@contextmanager
def _signals(handle: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def run_app(settings: Settings) -> None:
    """Runs the bot until SIGTERM or SIGINT, or until its channels have ended."""
    stop = asyncio.Event()
    with _signals(stop.set):
        async with open_app(settings) as app:
            log.info("app.ready", channels=sorted(app.channels))
            await app.serve(stop)
            log.info("app.stopping")
