"""A hostile model, hostile tools and a person who cancels at any moment: what holds after every run, whatever came.

Each example is one session of several runs. What was sent, what was kept and what a person saw are checked against
records of their own, not against the executor's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.cancel import CancelToken
from agent.errors import StreamBroken, ToolError
from agent.events import Event, Outcome, RunFinished, TextDelta, TextReplaced
from agent.messages import JsonObject, Message, ResultContent, blocks_of, is_injected, text_of
from agent.models.scripted import Call, Say, ScriptedModel
from agent.ports import BrokenInput, ModelRequest, ToolContext, ToolSpec
from agent.recovery import RetryPolicy
from agent.turns import is_real_user_query
from tests.agent.harness import Bench, ask, bench
from tests.agent.legality import anthropic_violations

TOOLS = ("works", "fails", "crashes", "hangs", "floods")


class Fault(Exception):
    def __init__(self, status: int, text: str, kind: str) -> None:
        super().__init__(text)
        self.status_code = status
        self.type = kind


FAULTS: list[Exception] = [
    Fault(400, "prompt is too long: 213462 tokens > 4000 maximum", "invalid_request_error"),
    Fault(400, "prompt is too long", "invalid_request_error"),
    Fault(400, "messages.1: `tool_use` ids were found without `tool_result` blocks", "invalid_request_error"),
    Fault(429, "Rate limit reached", "rate_limit_error"),
    Fault(529, "Overloaded", "overloaded_error"),
    Fault(401, "invalid x-api-key", "authentication_error"),
    Fault(400, "something odd", "invalid_request_error"),
    StreamBroken("cut off"),
    ValueError("a bug in an SDK"),
]

words = st.text("ab \n文😀", max_size=12)
calls = st.builds(
    Call,
    name=st.sampled_from([*TOOLS, "unknown"]),
    input=st.fixed_dictionaries({}, optional={"n": st.integers(0, 2)}),
    id=st.none() | st.sampled_from(["call_0", "call_1", "weird id!"]),
    broken=st.none()
    | st.none()
    | st.builds(BrokenInput, st.just('{"n": '), st.sampled_from(["invalid_json", "cut_off"])),
)
thinking = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, words)
answers = st.builds(
    Say,
    text=words,
    calls=st.lists(calls, max_size=3),
    stop_reason=st.none() | st.sampled_from(["max_tokens", "pause_turn", "refusal", "content_filter", "overflow"]),
    blocks_before=st.lists(thinking, max_size=1),
    fails_with=st.none() | st.none() | st.sampled_from(FAULTS),
)
scripts = st.lists(answers | st.sampled_from(FAULTS), max_size=12)


@dataclass(frozen=True)
class Plan:
    """One run: what is asked, what the model does, and after how many awaits of it a stop comes, if one does."""

    question: str
    script: list[Say | Exception]
    stop_after: int | None
    shutdown: bool


plans = st.lists(
    st.builds(
        Plan,
        question=st.text("ab文", min_size=1, max_size=8),
        script=scripts,
        stop_after=st.none() | st.integers(0, 30),
        shutdown=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class HostileTool:
    name: str
    tick: Callable[[], None]
    effects: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, "hostile", {"type": "object"})

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        self.tick()
        await asyncio.sleep(0)
        match self.name:
            case "fails":
                raise ToolError("no")
            case "crashes":
                raise RuntimeError("secret detail")
            case "hangs":
                await self.released.wait()
            case "floods":
                return "x" * 30_000
        self.tick()
        return f"{self.name} {args.get('n', '')}"


class Session:
    """Runs of one conversation, one after the other, each checked."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.asked: list[str] = []
        self.flushed: list[str] = []

    async def run(self, plan: Plan) -> None:
        left = plan.stop_after
        task: asyncio.Task[list[Event]] | None = None
        token = CancelToken("r", "s")

        def tick() -> None:
            nonlocal left
            if left is None:
                return
            left -= 1
            if left < 0:
                left = None
                if plan.shutdown and task is not None:
                    task.cancel()
                else:
                    token.cancel()

        model = TickingModel(plan.script, tick)
        tools = [HostileTool(name, tick) for name in TOOLS]
        b = bench(
            model,
            tools=tools,
            messages=self.messages,
            max_turns=6,
            max_context_turns=3,
            max_context_tokens=4000,
            tool_timeout=0.01,
            retry=RetryPolicy((0.0, 0.0), (0.0, 0.0)),
        )
        b.token = token
        before = asyncio.all_tasks()
        task = asyncio.create_task(collect(b, plan.question))
        try:
            events = await task
        except asyncio.CancelledError:
            assert plan.shutdown
            events = None
        assert model.open_streams == 0
        assert b.runner.abandoned == 0
        assert asyncio.all_tasks() - before - {task} == set()
        for request in model.requests:
            assert anthropic_violations(json.loads(request)["messages"]) == []
        turns = [turn for _, turns in b.memory.flushed for turn in turns]
        self.flushed += [text_of(blocks_of(message)) for turn in turns for message in turn.messages]
        if events is not None:
            self.check(b, plan, events)

    def check(self, b: Bench, plan: Plan, events: list[Event]) -> None:
        finished = events[-1]
        assert isinstance(finished, RunFinished)
        assert sum(isinstance(event, RunFinished) for event in events) == 1
        assert finished.text == seen(events)
        new = b.executor.last_run_new_messages
        assert text_of(blocks_of(new[0])) == plan.question
        assert sum(map(is_real_user_query, new)) == 1
        assert not any(is_injected(block) for message in new for block in blocks_of(message))
        assert anthropic_violations(new) == []
        for message in new[1:]:
            if message["role"] == "assistant":
                for block in blocks_of(message):
                    assert block["type"] != "text" or block["text"].strip() in finished.text
        working = b.executor.messages
        assert sum(is_real_user_query(message) for message in working) >= 1
        if finished.outcome is Outcome.RESET:
            assert [text_of(blocks_of(message)) for message in working] == [plan.question]
        self.messages = working
        self.asked.append(plan.question)
        # Every question is in the context still, or was given to the memory before it left.
        here = [text_of(blocks_of(message)) for message in working]
        assert all(any(question in text for text in self.flushed + here) for question in self.asked)


class TickingModel(ScriptedModel):
    """A scripted model that tells of each await; when its script ends it answers plainly."""

    def __init__(self, script: list[Say | Exception], tick: Callable[[], None]) -> None:
        left = list(script)

        def answer(request: ModelRequest) -> Say | Exception:
            tick()
            said = left.pop(0) if left else Say("done")
            if isinstance(said, Exception):
                return said
            return Say(
                said.text, said.calls, said.stop_reason, said.usage, said.blocks_before, said.fails_with, pause
            )

        async def pause() -> None:
            tick()
            await asyncio.sleep(0)

        super().__init__(answer)


async def collect(b: Bench, question: str) -> list[Event]:
    events: list[Event] = []
    async with aclosing(b.executor.run_stream(ask(question), b.token)) as run:
        async for event in run:
            events.append(event)
            await asyncio.sleep(0)
    return events


def seen(events: list[Event]) -> str:
    """What a person reads who follows the deltas."""
    text = ""
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, TextReplaced):
            text = event.text
    return text


@asynccontextmanager
async def quick_tools() -> AsyncIterator[None]:
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr("agent.toolrun.STOP_GRACE", 0.5)
        yield


async def live(days: list[Plan]) -> None:
    async with quick_tools():
        session = Session()
        for plan in days:
            await session.run(plan)
        await session.run(Plan("and now", [], None, shutdown=False))


@given(plans)
def test_after_every_run_the_history_is_legal_and_nothing_is_left_behind(days: list[Plan]) -> None:
    asyncio.run(live(days))
