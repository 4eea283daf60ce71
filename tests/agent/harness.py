"""What the executor's tests share: its surroundings with a clock that does not wait, and tools of all tempers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent.calibration import Facts
from agent.cancel import CancelToken
from agent.context import ContextLimits
from agent.errors import ToolError
from agent.events import Event, RunFinished
from agent.executor import AgentExecutor, AgentParts, AgentSettings
from agent.messages import JsonObject, Message, ResultContent, text_block, user_message
from agent.ports import FlushReason, Model, Tool, ToolContext, ToolSpec
from agent.recovery import RetryPolicy
from agent.toolrun import ToolRunner
from agent.turns import Turn


@dataclass
class RecordingClock:
    """Waits no time; remembers what it was asked to. `on_sleep` is awaited in each wait."""

    waits: list[float] = field(default_factory=list)
    hold: asyncio.Event | None = None

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.hold is not None:
            await self.hold.wait()


@dataclass
class RecordingMemory:
    flushed: list[tuple[FlushReason, list[Turn]]] = field(default_factory=list)

    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        self.flushed.append((reason, list(turns)))


@dataclass(frozen=True)
class FunctionTool:
    """A tool that is one async function of its arguments."""

    name: str
    function: Callable[[JsonObject], object]
    effects: bool = False
    required: tuple[str, ...] = ()

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, f"tool {self.name}", {"type": "object", "required": list(self.required)})

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        result = self.function(args)
        if asyncio.iscoroutine(result):
            result = await result
        return str(result)


def echo() -> FunctionTool:
    return FunctionTool("echo", lambda args: f"echo {args.get('text', '')}")


def failing(name: str = "fails") -> FunctionTool:
    def fail(args: JsonObject) -> object:
        raise ToolError("it does not work")

    return FunctionTool(name, fail)


@dataclass
class HangingTool:
    """Runs until it is cancelled; `stubborn` swallows that until `release` is set."""

    name: str = "hang"
    stubborn: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    effects = True

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, "hangs", {"type": "object"})

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        self.started.set()
        while True:
            try:
                await self.release.wait()
                return "released"
            except asyncio.CancelledError:
                self.cancelled = True
                if not self.stubborn:
                    raise


@dataclass
class Bench:
    """An executor with everything around it in reach."""

    executor: AgentExecutor
    clock: RecordingClock
    memory: RecordingMemory
    facts: Facts
    runner: ToolRunner
    token: CancelToken = field(default_factory=lambda: CancelToken("r1", "s1"))

    async def run(self, text: str = "question") -> list[Event]:
        return [event async for event in self.executor.run_stream(ask(text), self.token)]

    async def finish(self, text: str = "question") -> RunFinished:
        last = (await self.run(text))[-1]
        assert isinstance(last, RunFinished)
        return last


def ask(text: str) -> Message:
    return user_message(text_block(text))


def bench(
    *models: Model,
    tools: Sequence[Tool] = (),
    messages: Sequence[Message] = (),
    max_turns: int = 100,
    max_context_turns: int = 20,
    max_context_tokens: int | None = None,
    tool_timeout: float = 30,
    steer: Callable[[], Sequence[str]] = tuple,
    retry: RetryPolicy | None = None,
) -> Bench:
    clock, memory, facts, runner = RecordingClock(), RecordingMemory(), Facts(), ToolRunner(tool_timeout)
    by_name: Mapping[str, Tool] = {tool.spec.name: tool for tool in tools}
    settings = AgentSettings(
        ContextLimits("system", max_context_turns, max_context_tokens), "en", max_turns, retry or RetryPolicy()
    )
    parts = AgentParts(models, by_name, settings, runner, memory, facts, clock)
    executor = AgentExecutor(parts, messages, ToolContext("s1", "r1"), steer)
    return Bench(executor, clock, memory, facts, runner)
