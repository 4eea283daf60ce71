"""One session against a model and tools of ill will, and a person who stops it at any moment.

A drawn session is several runs of one conversation. What the model really said and what the tools really gave is
written down on the far side, by `FarSide`; after each run the history, what is new in it, and what a person saw
are compared with that record and not with the executor's own.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import example, given, target
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.calibration import Facts
from agent.cancel import CancelToken
from agent.context import ContextLimits
from agent.errors import StreamBroken, ToolError
from agent.events import DefenceActed, Event, Outcome, RunFinished, TextDelta, TextReplaced, ThinkingDelta, Usage
from agent.executor import AgentExecutor, AgentParts, AgentSettings
from agent.messages import (
    Block,
    JsonObject,
    Message,
    ResultContent,
    blocks_of,
    is_injected,
    text_block,
    user_message,
)
from agent.ports import (
    BrokenInput,
    FlushReason,
    ModelAnswer,
    ModelEvent,
    ModelRequest,
    StopReason,
    ToolContext,
    ToolSpec,
)
from agent.recovery import RetryPolicy
from agent.texts import ENGLISH
from agent.toolrun import ToolRunner
from agent.turns import Turn
from tests.agent.legality import anthropic_violations

MAX_TURNS = 6
NO_ANSWER = ("overflow", "refusal", "content_filter")
ODD_IDS = ("", "a", "a", "call 1!", "x" * 70, "ünïcode", "a_2")


class Fault(Exception):
    """An SDK's status error, as far as it is read."""

    def __init__(self, status: int, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.status_code = status
        self.type = kind


def faults() -> dict[str, Exception]:
    """Fresh each time: an exception that is raised twice would chain to itself."""
    bad = "invalid_request_error"
    return {
        "overflow, limit named": Fault(400, "prompt is too long: 213462 tokens > 3000 maximum", bad),
        "overflow, absurd limit": Fault(400, "prompt is too long: 9 tokens > 1 maximum", bad),
        "overflow": Fault(400, "prompt is too long", bad),
        "too large": Fault(413, "Request too large", "request_too_large"),
        "format": Fault(400, "messages.1: `tool_use` ids were found without `tool_result` blocks", bad),
        "signature": Fault(400, "messages.1.content.0: Invalid `signature` in `thinking` block", bad),
        "rate": Fault(429, "Rate limit reached", "rate_limit_error"),
        "overloaded": Fault(529, "Overloaded", "overloaded_error"),
        "auth": Fault(401, "invalid x-api-key", "authentication_error"),
        "quota": Fault(402, "Insufficient Balance"),
        "other": Fault(400, "something odd", bad),
        "cut": StreamBroken("the stream ended early"),
        "reset": ConnectionResetError(104, "reset by peer"),
        "bug": KeyError("choices"),
    }


@dataclass(frozen=True)
class Piece:
    """A block of a drawn answer."""

    kind: Literal["text", "thinking", "call"]
    text: str = ""
    name: str = ""
    id: str | None = None
    n: int = 0
    broken: Literal["invalid_json", "cut_off"] | None = None


@dataclass(frozen=True)
class Saying:
    """A drawn answer. It fails after `fails_after` deltas (-1: before any) if `fault` is set; "silent" never ends
    and "unanswered" ends with no answer."""

    pieces: tuple[Piece, ...] = ()
    stop: StopReason | None = None
    fault: str | None = None
    fails_after: int = -1


How = Literal["cancel", "soon", "thread", "shutdown", "abandon"]


@dataclass(frozen=True)
class Stop:
    """A person's or the process's wish to stop, at that moment of the run (a chunk, an event, a tool, a wait)."""

    moment: int
    how: How


@dataclass(frozen=True)
class Plan:
    question: str
    sayings: tuple[Saying, ...]
    stops: tuple[Stop, ...] = ()
    models: int = 1
    steering: tuple[str, ...] = ()
    long: bool = False

    @property
    def text(self) -> str:
        return self.question * 1500 if self.long else self.question


words = st.text("ab \n文😀", max_size=10)
pieces = st.one_of(
    st.builds(Piece, st.just("text"), text=words),
    st.builds(Piece, st.just("thinking"), text=words),
    *[
        st.builds(
            Piece,
            st.just("call"),
            name=st.sampled_from(
                ["works", "works", "fails", "crashes", "hangs", "stubborn", "floods", "picture", "nobody", ""]
            ),
            id=st.none() | st.sampled_from(ODD_IDS),
            n=st.integers(0, 2),
            broken=st.none() | st.none() | st.sampled_from(["invalid_json", "cut_off"]),
        )
    ]
    * 2,
)
sayings = st.builds(
    Saying,
    pieces=st.lists(pieces, max_size=4).map(tuple),
    stop=st.none()
    | st.none()
    | st.sampled_from(["max_tokens", "pause_turn", "refusal", "content_filter", "overflow"]),
    fault=st.none() | st.none() | st.sampled_from([*faults(), "silent", "unanswered"]),
    fails_after=st.integers(-1, 4),
)
stops = st.lists(
    st.builds(
        Stop, st.integers(0, 40), st.sampled_from(["cancel", "cancel", "soon", "thread", "shutdown", "abandon"])
    ),
    max_size=2,
).map(tuple)
plans = st.builds(
    Plan,
    question=st.text("qw文?", min_size=1, max_size=8),
    sayings=st.lists(sayings, max_size=9).map(tuple),
    stops=stops,
    models=st.integers(1, 3),
    steering=st.just(()) | st.lists(st.text("st", min_size=1, max_size=4), max_size=2).map(tuple),
    long=st.sampled_from([False] * 5 + [True]),
)
sessions = st.lists(plans, min_size=1, max_size=4)


@dataclass
class Attempt:
    """One stream: the request, the text that left the far side, and the answer if that left it whole."""

    request: list[Any]
    streamed: str = ""
    answer: ModelAnswer | None = None

    @property
    def accepted(self) -> bool:
        answer = self.answer
        if answer is None or answer.stop_reason in NO_ANSWER:
            return False
        return any(
            block["type"] == "tool_use" or (block["type"] == "text" and block["text"].strip())
            for block in answer.content
        )


class FarSide:
    """Models, tools, clock and memory of one session, in one place, so that one record knows what happened."""

    def __init__(self) -> None:
        self.tick: Callable[[], None] = lambda: None
        self.silence: Callable[[], None] = lambda: None
        self.queue: list[Saying] = []
        self.attempts: list[Attempt] = []
        self.gave: list[str] = []
        self.flushed: list[Turn] = []
        self.open_streams = 0
        self.release = asyncio.Event()
        self._count = 0

    async def moment(self) -> None:
        self.tick()
        await asyncio.sleep(0)

    # The clock and the memory

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def sleep(self, seconds: float) -> None:
        await self.moment()

    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        self.flushed += turns
        await self.moment()

    # The models

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        attempt = Attempt(json.loads(json.dumps(request.messages)))
        self.attempts.append(attempt)
        self.open_streams += 1
        try:
            async with aclosing(self._say(self.queue.pop(0) if self.queue else DONE, attempt)) as events:
                async for event in events:
                    yield event
        finally:
            self.open_streams -= 1

    async def _say(self, saying: Saying, attempt: Attempt) -> AsyncGenerator[ModelEvent, None]:
        content, broken = self._content(saying)
        deltas = list(deltas_of(content))
        for number, delta in enumerate([None, *deltas]):
            await self.moment()
            if delta is not None:
                attempt.streamed += delta.text if isinstance(delta, TextDelta) else ""
                yield delta
            if saying.fault is not None and (number > saying.fails_after or number == len(deltas)):
                await self._fail(saying.fault)
                if saying.fault == "unanswered":
                    return
        stop = saying.stop or ("tool_use" if any(piece.kind == "call" for piece in saying.pieces) else "end_turn")
        await self.moment()
        attempt.answer = ModelAnswer(content, stop, Usage(50 * len(self.attempts), 5), broken)
        yield attempt.answer

    async def _fail(self, fault: str) -> None:
        if fault == "silent":
            self.silence()
            await asyncio.Event().wait()
        if fault != "unanswered":
            raise faults()[fault]

    def _content(self, saying: Saying) -> tuple[list[Block], dict[str, BrokenInput]]:
        content: list[Block] = []
        broken: dict[str, BrokenInput] = {}
        for piece in saying.pieces:
            if piece.kind == "text":
                content += [text_block(piece.text)] if piece.text else []
            elif piece.kind == "thinking":
                content.append({"type": "thinking", "thinking": piece.text, "signature": "s"})
            else:
                self._count += 1
                call_id = f"toolu_{self._count}" if piece.id is None else piece.id
                args: JsonObject = {} if piece.broken else {"n": piece.n}
                content.append({"type": "tool_use", "id": call_id, "name": piece.name, "input": args})
                if piece.broken:
                    broken[call_id] = BrokenInput('{"n": ', piece.broken)
        return content, broken


DONE = Saying((Piece("text", "done"),))


def deltas_of(content: Sequence[Block]) -> Iterator[TextDelta | ThinkingDelta]:
    for block in content:
        if block["type"] == "text":
            middle = len(block["text"]) // 2
            yield from (TextDelta(half) for half in (block["text"][:middle], block["text"][middle:]))
        elif block["type"] == "thinking":
            yield ThinkingDelta(block["thinking"])


@dataclass(frozen=True)
class HostileModel:
    far: FarSide
    name: str
    context_window: int | None = 8000
    max_output_tokens: int = 500

    @property
    def model(self) -> str:
        return self.name

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        return self.far.stream(request)

    async def check(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True)
class HostileTool:
    far: FarSide
    name: str
    effects: bool = False

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, "hostile", {"type": "object"})

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        await self.far.moment()
        match self.name:
            case "fails":
                raise ToolError("no")
            case "crashes":
                raise RuntimeError("a secret")
            case "hangs":
                await asyncio.Event().wait()
            case "stubborn":
                await self._swallow()
            case "floods":
                return "f" * 30_000
            case "picture":
                return [text_block("see"), {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]
        result = f"{self.name} {args.get('n')} #{len(self.far.gave)}"
        self.far.gave.append(result)
        await self.far.moment()
        return result

    async def _swallow(self) -> None:
        """Swallows every cancellation until it is let go."""
        while not self.far.release.is_set():
            try:
                await self.far.release.wait()
            except asyncio.CancelledError:
                self.far.tick()


TOOLS = ("works", "fails", "crashes", "hangs", "stubborn", "floods", "picture")


@dataclass
class Stopper:
    """Fires a plan's stops at their moments; a silent model brings the next one forward."""

    token: CancelToken
    waiting: list[Stop]
    task: asyncio.Task[None] | None = None
    moments: int = 0
    abandon: bool = False
    shut_down: bool = False

    def tick(self) -> None:
        self.moments += 1
        while self.waiting and self.waiting[0].moment < self.moments:
            self._fire(self.waiting.pop(0).how)

    def silence(self) -> None:
        # What only sets a flag of the consumer can't wake a silent model.
        how = self.waiting.pop(0).how if self.waiting else "soon"
        self._fire("soon" if how == "abandon" else how)

    def _fire(self, how: How) -> None:
        match how:
            case "cancel":
                self.token.cancel()
            case "soon":
                asyncio.get_running_loop().call_soon(self.token.cancel)
            case "thread":
                thread = threading.Thread(target=self.token.cancel)
                thread.start()
                thread.join()
            case "abandon":
                self.abandon = True
            case "shutdown":
                if self.task is not None:
                    self.shut_down = True
                    self.task.cancel()


@dataclass
class Ran:
    """A run as the outside knows it."""

    plan: Plan
    head: Message
    events: list[Event]
    attempts: list[Attempt]
    executor: AgentExecutor
    stopper: Stopper
    ended: bool

    @property
    def finished(self) -> RunFinished:
        last = self.events[-1]
        assert isinstance(last, RunFinished)
        return last

    @property
    def acted(self) -> set[str]:
        return {event.event for event in self.events if isinstance(event, DefenceActed)}

    @property
    def answers(self) -> list[ModelAnswer]:
        """What the run must have taken as answers."""
        return [attempt.answer for attempt in self.attempts if attempt.answer and attempt.accepted]


class Session:
    """Runs of one conversation, one after the other, each checked."""

    def __init__(self) -> None:
        self.far = FarSide()
        self.runner = ToolRunner(0.003)
        self.facts = Facts()
        self.messages: list[Message] = []
        self.asked: list[str] = []

    async def run(self, plan: Plan) -> Ran:
        far = self.far
        far.queue = list(plan.sayings)
        attempts = len(far.attempts)
        stopper = Stopper(CancelToken("r", "s"), sorted(plan.stops, key=lambda stop: stop.moment))
        far.tick, far.silence = stopper.tick, stopper.silence
        executor = self._executor(plan)
        head = user_message(text_block(plan.text))
        self.asked.append(plan.text)
        events: list[Event] = []
        before = asyncio.all_tasks()
        stopper.task = asyncio.create_task(follow(executor, head, stopper, events))
        await asyncio.wait({stopper.task})
        if not stopper.task.cancelled():
            stopper.task.result()
        ended = not stopper.task.cancelled() and bool(events) and isinstance(events[-1], RunFinished)
        left = asyncio.all_tasks() - before - {stopper.task}
        assert len([task for task in left if not task.done()]) <= self.runner.abandoned, "a task without an owner"
        assert far.open_streams == 0
        self.messages = executor.messages
        ran = Ran(plan, head, events, far.attempts[attempts:], executor, stopper, ended)
        self.check(ran)
        return ran

    def _executor(self, plan: Plan) -> AgentExecutor:
        far = self.far
        steering = list(plan.steering)
        parts = AgentParts(
            models=[HostileModel(far, f"m{number}") for number in range(plan.models)],
            tools={name: HostileTool(far, name) for name in TOOLS},
            settings=AgentSettings(
                ContextLimits("system", max_context_turns=3), "en", MAX_TURNS, RetryPolicy((0.0, 0.0), (0.0, 0.0))
            ),
            runner=self.runner,
            memory=far,
            facts=self.facts,
            clock=far,
        )
        return AgentExecutor(
            parts, self.messages, ToolContext("s", "r"), lambda: [steering.pop(0)] if steering else []
        )

    def check(self, ran: Ran) -> None:
        every_request_is_legal(ran)
        the_prefix_is_stable_unless_a_defence_acted(ran)
        the_history_is_legal_and_holds_the_question(ran)
        no_user_text_is_lost(self.asked, self.messages, self.far.flushed)
        if ran.ended:
            what_is_new_is_what_was_said(ran)
            the_end_is_told_once_and_as_it_was_shown(ran)
        else:
            assert ran.stopper.shut_down or ran.stopper.abandon

    async def aclose(self) -> None:
        self.far.release.set()
        await self.runner.aclose()
        await asyncio.sleep(0)
        assert self.runner.abandoned == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def follow(executor: AgentExecutor, head: Message, stopper: Stopper, events: list[Event]) -> None:
    async with aclosing(executor.run_stream(head, stopper.token)) as run:
        async for event in run:
            events.append(event)
            stopper.tick()
            if stopper.abandon:
                return
            await asyncio.sleep(0)


def every_request_is_legal(ran: Ran) -> None:
    for attempt in ran.attempts:
        assert anthropic_violations(attempt.request) == []


def the_prefix_is_stable_unless_a_defence_acted(ran: Ran) -> None:
    """Else the provider would read nothing from its cache."""
    if any(name.startswith(("repair", "recovery.", "trim.")) for name in ran.acted):
        return
    for earlier, later in pairwise(attempt.request for attempt in ran.attempts):
        assert later[: len(earlier)] == earlier


def the_history_is_legal_and_holds_the_question(ran: Ran) -> None:
    executor = ran.executor
    assert any(message is ran.head for message in executor.messages)
    if not ran.ended:
        return
    assert anthropic_violations(executor.messages) == []
    assert ENGLISH.step_limit not in str(executor.messages)
    assert anthropic_violations(executor.last_run_new_messages) == []
    if ran.finished.outcome is Outcome.RESET:
        assert executor.messages == [ran.head]


def no_user_text_is_lost(asked: list[str], messages: list[Message], flushed: list[Turn]) -> None:
    """Each question is in the context still, or was given to the memory before it left; a long one by its head."""
    everything = [*messages, *(message for turn in flushed for message in turn.messages)]
    texts = [block["text"] for message in everything for block in blocks_of(message) if block["type"] == "text"]
    for question in asked:
        assert any(question[:400].strip() in text for text in texts)


def what_is_new_is_what_was_said(ran: Ran) -> None:
    new = ran.executor.last_run_new_messages
    assert new[0]["role"] == "user"
    assert own(new[0]) == own(ran.head)
    assert not any(is_injected(block) for message in new for block in blocks_of(message))
    if ran.finished.outcome is not Outcome.RESET:
        assert ENGLISH.lost_result not in str(new)
    said = [
        words
        for message in new
        if message["role"] == "assistant"
        for block in own(message)
        if (words := said_of(block)) is not None
    ]
    expected = [
        words
        for number, answer in enumerate(ran.answers)
        for block in answer.content
        if (words := said_of(block)) is not None and not (number == MAX_TURNS and block["type"] == "tool_use")
    ]
    assert said[: len(expected)] == expected
    rest = said[len(expected) :]
    if ran.finished.outcome is Outcome.CANCELLED:
        assert rest.pop() == ("text", ENGLISH.cancelled)
    if ran.finished.outcome is Outcome.BREAKER:
        assert rest.pop()[1].startswith("I stopped: the tool")
    # What is left is what a person saw of a stream that did not end; of one that did it would stand there twice.
    assert len(rest) <= 1
    if rest:
        assert not ran.attempts[-1].accepted
        assert any(attempt.streamed.startswith(rest[0][1]) for attempt in ran.attempts)
        assert rest[0][1] in ran.finished.text


def own(message: Message) -> list[Block]:
    return [block for block in blocks_of(message) if not is_injected(block)]


def said_of(block: Block) -> tuple[str, str] | None:
    """Text and calls; what the repair may drop (blank text, calls of no tool, thinking) does not count."""
    if block["type"] == "text" and block["text"].strip():
        return "text", block["text"]
    if block["type"] == "tool_use" and block["name"]:
        return block["name"], json.dumps(block["input"])
    return None


def the_end_is_told_once_and_as_it_was_shown(ran: Ran) -> None:
    assert sum(isinstance(event, RunFinished) for event in ran.events) == 1
    shown = ""
    for event in ran.events:
        if isinstance(event, TextDelta):
            shown += event.text
        elif isinstance(event, TextReplaced):
            shown = event.text
    assert ran.finished.text == shown
    told = "\n\n".join(attempt.streamed for attempt in ran.attempts if attempt.accepted and attempt.streamed)
    assert shown.startswith(told)
    if ran.finished.outcome is Outcome.COMPLETED:
        cut = ENGLISH.answer_cut if ran.answers[-1].stop_reason == "max_tokens" else ""
        assert shown == "\n\n".join(filter(None, (told, cut)))
    if ran.finished.outcome is Outcome.CANCELLED:
        assert ran.stopper.token.cancelled
        assert shown.endswith(ENGLISH.cancelled)


async def live(drawn: Sequence[Plan]) -> int:
    session = Session()
    outcomes = set()
    try:
        for plan in drawn:
            ran = await session.run(plan)
            outcomes.add(ran.finished.outcome if ran.ended else None)
        last = await session.run(Plan("and now", ()))
        assert last.finished.outcome is Outcome.COMPLETED
        assert last.finished.text == "done"
    finally:
        session.far.release.set()
    await session.aclose()
    return len(outcomes)


def calls(name: str, **more: Any) -> Piece:
    return Piece("call", name=name, **more)


# A stop while the tool runs: what was said before its call is kept once.
@example([Plan("q", (Saying((Piece("text", "a"), calls("hangs"))),), (Stop(6, "cancel"),))])
# A call without an id has a result all the same.
@example([Plan("q", (Saying((calls("works", id=""), calls("works", id="", n=1))),))])
# A tool that is being stopped when the process is.
@example([Plan("q", (Saying((calls("stubborn"),)),), (Stop(5, "cancel"), Stop(6, "shutdown")))])
# A stream that breaks, and says something else when it is sent again.
@example([Plan("q", (Saying((Piece("text", "ab"),), fault="cut", fails_after=2), Saying((Piece("text", "b"),))))])
# A user's word that comes while a tool runs is the bridge's to store.
@example([Plan("q", (Saying((calls("works"),)),), steering=("st",))])
# Calls up to the limit of steps, and in the closing answer too.
@example([Plan("q", tuple(Saying((calls("works", n=n),)) for n in range(MAX_TURNS + 1)))])
@given(sessions)
def test_whatever_the_model_the_tools_and_the_person_do_each_run_ends_well(drawn: list[Plan]) -> None:
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr("agent.toolrun.STOP_GRACE", 0.003)
        target(float(asyncio.run(live(drawn))), label="different ends")
