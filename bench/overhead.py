"""What we add: CPU per streamed chunk, time until ready, resident memory. `python -m bench.overhead`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anthropic
import openai

from agent.calibration import Facts
from agent.cancel import CancelToken
from agent.context import ContextLimits
from agent.executor import AgentExecutor, AgentParts, AgentSettings
from agent.messages import text_block, user_message
from agent.models.anthropic import AnthropicModel
from agent.models.openai import OpenAIModel
from agent.ports import Model, ToolContext
from agent.toolrun import ToolRunner
from bench._common import resident_mb, server, table
from bridge.app import SystemClock
from tests.agent.harness import RecordingMemory
from tests.servers.slack_server import APP_TOKEN, BOT_TOKEN
from tests.servers.telegram_server import TOKEN

CHUNKS = 2000
ROUNDS = 7


async def bare_anthropic(client: anthropic.AsyncAnthropic) -> None:
    stream = await client.messages.create(
        model="m", max_tokens=4096, messages=[{"role": "user", "content": "go"}], stream=True
    )
    async for _ in stream:
        pass


async def bare_openai(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "go"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for _ in stream:
        pass


async def through_executor(model: Model) -> None:
    settings = AgentSettings(ContextLimits("system"))
    parts = AgentParts([model], {}, settings, ToolRunner(60), RecordingMemory(), Facts(), SystemClock())
    executor = AgentExecutor(parts, [], ToolContext("s", "r"))
    async for _ in executor.run_stream(user_message(text_block("go")), CancelToken("r", "s")):
        pass


async def cpu_of(read: Callable[[], Awaitable[None]]) -> float:
    """CPU seconds of this process for one stream."""
    gc.collect()
    before = time.process_time()
    await read()
    return time.process_time() - before


async def compare(
    bare: Callable[[], Awaitable[None]], ours: Callable[[], Awaitable[None]]
) -> tuple[float, float, float]:
    """Microseconds a chunk, bare and through the executor, and the median of the ratios, measured in turn."""
    await bare()
    await ours()
    pairs = [(await cpu_of(bare), await cpu_of(ours)) for _ in range(ROUNDS)]
    per_chunk = 1e6 / CHUNKS
    return (
        statistics.median(a for a, _ in pairs) * per_chunk,
        statistics.median(b for _, b in pairs) * per_chunk,
        statistics.median(b / a for a, b in pairs),
    )


@contextlib.asynccontextmanager
async def clients(url: str) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, openai.AsyncOpenAI, Model, Model]]:
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as claude,
        openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0) as gpt,
    ):
        ours = AnthropicModel(
            name="a", model="m", api_key="k", base_url=url, max_output_tokens=4096, context_window=None, timeout=60
        )
        ours_too = OpenAIModel(
            name="o",
            model="m",
            api_key="k",
            base_url=f"{url}/v1",
            max_output_tokens=4096,
            context_window=None,
            timeout=60,
        )
        yield claude, gpt, ours, ours_too
        await ours.aclose()
        await ours_too.aclose()


async def streams(url: str) -> list[tuple[str, str]]:
    async with clients(url) as (claude, gpt, ours, ours_too):
        a = await compare(lambda: bare_anthropic(claude), lambda: through_executor(ours))
        o = await compare(lambda: bare_openai(gpt), lambda: through_executor(ours_too))
    return [
        (
            f"CPU per chunk, {wire}",
            f"bare SDK {bare:.0f} µs, executor {mine:.0f} µs, ratio {ratio:.2f} (target ≤ 1.5)",
        )
        for wire, (bare, mine, ratio) in (("anthropic", a), ("openai", o))
    ]


def start(config: str, folder: str) -> tuple[float, float]:
    """Seconds from start to `app.ready`, and resident MB a moment later."""
    path = Path(folder) / "config.yaml"
    path.write_text(config, encoding="utf-8")
    before = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", "from bridge.cli import main; main()", "run", "-c", str(path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    try:
        while "app.ready" not in (line := process.stderr.readline()):
            if not line:
                raise RuntimeError("it did not start")
        ready = time.monotonic() - before
        select.select([], [], [], 1.0)
        return ready, resident_mb(process.pid)
    finally:
        process.kill()
        process.wait()


def starts(config: str, runs: int = 5) -> tuple[float, float]:
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(start(config.replace("DATA", folder), folder))
    return statistics.median(seconds for seconds, _ in found), statistics.median(mb for _, mb in found)


def main() -> None:
    with server("tests.servers.model_server", "--chunks", str(CHUNKS)) as url:
        rows = asyncio.run(streams(url.removesuffix("/v1")))
    quiet = "log: {level: info, format: json}\ndata_dir: DATA/data\n"
    ready, mb = starts(f"{quiet}channels: {{console: {{}}}}\n")
    rows.append(("console", f"ready in {ready:.2f} s (target < 1), {mb:.0f} MB resident"))
    with (
        server("tests.servers.telegram_server", "--token", TOKEN) as telegram,
        server("tests.servers.slack_server") as slack,
    ):
        ready, mb = starts(
            f"{quiet}providers:\n"
            "  claude: {kind: anthropic, model: claude-sonnet-4-5, api_key: key-for-bench}\n"
            "channels:\n"
            f"  telegram: {{token: '{TOKEN}', base_url: '{telegram}'}}\n"
            f"  slack: {{bot_token: {BOT_TOKEN}, app_token: {APP_TOKEN}, base_url: '{slack}'}}\n"
        )
    rows.append(
        (
            "telegram + slack + anthropic",
            f"ready in {ready:.2f} s (target < 2), {mb:.0f} MB resident (target < 120)",
        )
    )
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    table(rows)


if __name__ == "__main__":
    main()
