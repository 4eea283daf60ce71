"""The whole bridge under load: a thousand conversations that stream at once. `python -m bench.bridge [SESSIONS]`.

The model is another process (bench._firehose); store, lines, agent and SDK are the real ones; the channel takes a
snapshot of each running reply about once a second, as Telegram and Slack do, and notes how old its newest chunk is.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from agent.models.anthropic import AnthropicModel
from bench._common import quantile, resident_mb, server, table
from channels.base import Outgoing, Place, ReplyContext
from tests.bridge.harness import Bot, KeepingChannel, bot, said

CHUNKS, INTERVAL = 400, 0.025
SESSIONS = 1000
IDLE = 10_000


class _Stopping:
    async def stop(self) -> tuple[str, ...]:
        return ()


class SamplingChannel(KeepingChannel):
    """Looks at each running reply once a second; `ages` are seconds between a chunk's writing and the look."""

    def __init__(self) -> None:
        super().__init__()
        self.ages: list[float] = []
        self.first: list[float] = []
        self.done = 0

    @asynccontextmanager
    async def reply(self, context: ReplyContext) -> AsyncIterator[_Stopping]:  # type: ignore[override]  # no record
        looking = asyncio.create_task(self._look(context))
        try:
            yield _Stopping()
        finally:
            looking.cancel()

    async def _look(self, context: ReplyContext) -> None:
        begun = time.monotonic()
        await context.view.changed.wait()
        while not context.view.snapshot().text:
            context.view.changed.clear()
            await context.view.changed.wait()
        self.first.append(time.monotonic() - begun)
        while True:
            await asyncio.sleep(1.0)
            self.ages.append(time.monotonic() - float(context.view.snapshot().text[-24:].split()[-1]))

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        self.done += 1
        return ("p",)


async def streaming(folder: Path, url: str, sessions: int) -> list[tuple[str, str]]:
    model = AnthropicModel(
        name="m",
        model="claude-sonnet-4-5",
        api_key="k",
        base_url=url,
        max_output_tokens=4096,
        context_window=None,
        timeout=120,
    )
    channel = SamplingChannel()
    async with bot(folder / "load.sqlite3", model, channel=channel, max_running=sessions) as b:
        gc.collect()
        before, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(b.inlet.accept(said("go", Place("test", str(n)))) for n in range(sessions)))
        accepted = time.monotonic() - before
        memory = 0.0
        while channel.done < sessions:
            await asyncio.sleep(0.5)
            memory = max(memory, resident_mb(os.getpid()))
        took, cpu = time.monotonic() - before, time.process_time() - cpu
        await model.aclose()
    planned = CHUNKS * INTERVAL
    return [
        (f"{sessions} sessions, {1 / INTERVAL:.0f} chunks/s each", f"all stored after {accepted:.2f} s"),
        ("  whole run", f"{took:.1f} s (the model alone takes {planned:.1f} s); CPU {cpu / took:.0%} of one core"),
        (
            "  age of the newest chunk when looked at",
            f"p50 {quantile(channel.ages, 0.5) * 1e3:.0f} ms, p95 {quantile(channel.ages, 0.95) * 1e3:.0f} ms (target < 250)",
        ),
        ("  memory", f"{memory:.0f} MB resident (target < 400)"),
    ]


async def idle(folder: Path) -> list[tuple[str, str]]:
    """What conversations cost that are known and say nothing."""
    from agent.models.scripted import Say, ScriptedModel

    path = folder / "idle.sqlite3"
    channel = SamplingChannel()
    async with bot(path, ScriptedModel(lambda request: Say("yes")), channel=channel) as b:
        for start in range(0, IDLE, 500):
            batch = (b.inlet.accept(said("go", Place("test", str(n)))) for n in range(start, start + 500))
            await asyncio.gather(*batch)
            while channel.done < start + 500:
                await asyncio.sleep(0.01)
        gc.collect()
        full = resident_mb(os.getpid())
        kept = len(b.conversations)
    async with bot(path, ScriptedModel([]), channel=channel) as b:
        fresh = await _evicted(b)
    return [
        (
            f"{IDLE:,} idle sessions",
            f"{kept:,} in memory at {full:.0f} MB; after eviction {fresh:.1f} MB for all of them (target < 20)",
        )
    ]


async def _evicted(b: Bot) -> float:
    """MB that the process holds for 10,000 sessions that are only in the store: all of them asked once, evicted."""
    gc.collect()
    before = resident_mb(os.getpid())
    for n in range(IDLE):
        await b.conversations.get(Place("test", str(n)))
    for n in range(IDLE):
        b.conversations.forget(Place("test", str(n)))
    gc.collect()
    return max(0.0, resident_mb(os.getpid()) - before)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else SESSIONS
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        with server("bench._firehose", "--chunks", str(CHUNKS), "--interval", str(INTERVAL)) as url:
            table(asyncio.run(streaming(Path(folder), url, sessions)))
        table(asyncio.run(idle(Path(folder))))


if __name__ == "__main__":
    main()
