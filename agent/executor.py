"""The agent loop: one request, any number of model calls and tool calls, four defences around them.

`run_stream` is the whole story (four-defences §1); each defence is one named call in it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from agent.breaker import LoopBreaker
from agent.cancel import AgentCancelledError, CancelToken
from agent.context import ContextKeeper, ContextLimits
from agent.errors import ErrorKind
from agent.events import DefenceActed, Event, Outcome, RunFinished, TextDelta, ThinkingDelta, Usage, Waiting
from agent.messages import (
    Message,
    assistant_message,
    blocks_of,
    injected_text,
    text_block,
    text_of,
    tool_uses,
    without_injected,
)
from agent.ports import Clock, Memory, Model, ModelAnswer, ModelFacts, ModelRequest, Tool, ToolContext
from agent.recovery import (
    Action,
    Compact,
    EmptyAnswer,
    Fail,
    NextModel,
    Recovery,
    Refused,
    Reset,
    RetryPolicy,
    Sanitize,
    SendAgain,
    Wait,
    WindowExceeded,
)
from agent.shown import ShownText
from agent.steps import BreakerStop, ToolStep
from agent.texts import Language, Texts, texts_for
from agent.toolrun import ToolRunner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent section of the config; `max_turns` counts model calls in one run, times are seconds."""

    context: ContextLimits
    language: Language = "auto"
    max_turns: int = 100
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What all runs of this process share. `models` is the provider and its fallbacks, in order."""

    models: Sequence[Model]
    tools: Mapping[str, Tool]
    settings: AgentSettings
    runner: ToolRunner
    memory: Memory
    facts: ModelFacts
    clock: Clock


class _RunEnds(Exception):
    """The run ends here with a line for the user."""

    def __init__(self, outcome: Outcome, notice: str) -> None:
        super().__init__(notice)
        self.outcome = outcome
        self.notice = notice


@dataclass(slots=True)
class _Run:
    """The state of one run; it ends with it."""

    head: Message
    token: CancelToken
    texts: Texts
    models: list[Model]
    recovery: Recovery
    breaker: LoopBreaker
    shown: ShownText = field(default_factory=ShownText)
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    answer: ModelAnswer | None = None
    kept: list[Message] | None = None

    @property
    def model(self) -> Model:
        return self.models[0]


class AgentExecutor:
    """Runs requests of one session on `messages`, which is the executor's own list afterwards."""

    def __init__(
        self,
        parts: AgentParts,
        messages: Sequence[Message],
        context: ToolContext,
        steer: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`steer` gives user texts, stored already, to be put in at the next step boundary."""
        self.messages: list[Message] = list(messages)
        self.last_run_new_messages: list[Message] = []
        self._parts = parts
        self._tool_context = context
        self._steer = steer
        self._keeper = ContextKeeper(
            parts.settings.context, [tool.spec for tool in parts.tools.values()], parts.facts
        )

    async def run_stream(self, user: Message, token: CancelToken) -> AsyncGenerator[Event, None]:
        """One run, as events; the last is RunFinished. Close it (contextlib.aclosing) to abandon the run."""
        run = self._begin(user, token)
        outcome = Outcome.COMPLETED
        try:
            async with aclosing(self._loop(run)) as events:
                async for event in events:
                    yield event
            if run.steps > self._parts.settings.max_turns:
                outcome = Outcome.STEP_LIMIT
        except AgentCancelledError:
            outcome = Outcome.CANCELLED
            self._end_cancelled(run)
            yield run.shown.note(run.texts.cancelled)
        except BreakerStop as stop:
            outcome = Outcome.BREAKER
            advice = run.texts.breaker_stop.format(detail=stop.reason)
            self.messages.append(assistant_message(text_block(advice)))
            yield run.shown.note(advice)
        except _RunEnds as end:
            outcome = end.outcome
            if run.kept is None:
                self._keep_partial(run)
            yield run.shown.note(end.notice)
        finally:
            self.last_run_new_messages = self._new_messages(run) if run.kept is None else run.kept
        yield RunFinished(outcome, run.shown.text, run.model.name, run.usage, run.steps)

    def _begin(self, user: Message, token: CancelToken) -> _Run:
        parts = self._parts
        self.messages.append(user)
        texts = texts_for(parts.settings.language, text_of(blocks_of(user)))
        recovery = Recovery(parts.settings.retry, fallbacks=len(parts.models) - 1)
        return _Run(user, token, texts, list(parts.models), recovery, LoopBreaker(texts))

    async def _loop(self, run: _Run) -> AsyncGenerator[Event, None]:
        run.token.raise_if_cancelled()
        async for event in self._trim(run):
            yield event
        while run.steps < self._parts.settings.max_turns:
            run.token.raise_if_cancelled()
            async with aclosing(self._ask(run)) as events:
                async for event in events:
                    yield event
            answer = self._answer(run)
            calls = [block for block in answer.content if block["type"] == "tool_use"]
            if not calls and answer.stop_reason != "pause_turn":
                if answer.stop_reason == "max_tokens":
                    yield run.shown.note(run.texts.answer_cut)
                return
            step = ToolStep(self._parts.tools, self._parts.runner, self._tool_context, run.breaker, run.texts)
            async with aclosing(step.run(calls, answer.broken_inputs, run.token, self.messages)) as events:
                async for event in events:
                    yield event
            self._add_steering()
        async for event in self._close_at_limit(run):
            yield event

    async def _trim(self, run: _Run) -> AsyncGenerator[Event, None]:
        """Defence 1: once, before the loop; then the first repair."""
        report = self._keeper.trim(self.messages, run.model, run.texts)
        if report.dropped:
            await self._parts.memory.flush(self._tool_context.session_id, report.dropped, "trim")
        for acted in self._keeper.acted(report):
            yield acted

    async def _ask(self, run: _Run, *, allow_tools: bool = True) -> AsyncGenerator[Event, None]:
        """One model call that survives what providers do; its answer is appended to the messages."""
        run.steps += 1
        run.shown.next_step()
        while True:
            for acted in self._keeper.repair(self.messages, run.texts):
                yield acted
            try:
                async with aclosing(self._stream(run, allow_tools=allow_tools)) as events:
                    async for event in events:
                        yield event
            except (AgentCancelledError, _RunEnds):
                raise
            # The border to three SDKs and any server behind them: whatever they raise becomes an action.
            except Exception as error:  # noqa: BLE001
                action = run.recovery.decide(error)
                log.warning(
                    "model.error", provider=run.model.name, action=type(action).__name__, error=str(error)[:500]
                )
            else:
                run.recovery.succeeded()
                return
            run.shown.restart()
            async with aclosing(self._recover(run, action)) as events:
                async for event in events:
                    yield event

    async def _stream(self, run: _Run, *, allow_tools: bool) -> AsyncGenerator[Event, None]:
        system = self._parts.settings.context.system_prompt
        request = ModelRequest(system, self.messages, self._keeper.tool_specs, allow_tools)
        answer: ModelAnswer | None = None
        async with aclosing(run.model.stream(request)) as stream:
            while answer is None:
                with run.token.scope():
                    item = await anext(stream)
                if isinstance(item, TextDelta):
                    if (event := run.shown.feed(item.text)) is not None:
                        yield event
                elif isinstance(item, ThinkingDelta):
                    yield item
                else:
                    answer = item
        run.usage = run.usage + answer.usage
        self._judge(answer)
        if (replaced := run.shown.end_stream()) is not None:
            yield replaced
        self._keeper.learn(self.messages, run.model, answer.usage)
        run.answer = answer
        self.messages.append({"role": "assistant", "content": list(answer.content)})

    @staticmethod
    def _judge(answer: ModelAnswer) -> None:
        """Raises for an answer that is none."""
        if answer.stop_reason == "overflow":
            raise WindowExceeded
        if answer.stop_reason in ("refusal", "content_filter"):
            raise Refused(answer.stop_reason)
        if not any(
            block["type"] == "tool_use" or (block["type"] == "text" and block["text"].strip())
            for block in answer.content
        ):
            raise EmptyAnswer

    async def _recover(self, run: _Run, action: Action) -> AsyncGenerator[Event, None]:
        """Defence 4: does what `Recovery.decide` says. Raises _RunEnds where nothing more can be done."""
        match action:
            case Wait(kind, seconds, attempt, attempts):
                limited = kind is ErrorKind.RATE_LIMIT
                reason = run.texts.wait_rate_limit if limited else run.texts.wait_transient
                yield Waiting(reason.format(seconds=seconds), seconds, attempt, attempts)
                with run.token.scope():
                    await self._parts.clock.sleep(seconds)
            case Compact(limit):
                report = self._keeper.compact(self.messages, run.model, limit, run.texts)
                if report.dropped:
                    await self._parts.memory.flush(self._tool_context.session_id, report.dropped, "overflow")
                yield DefenceActed("recovery.compact", {"dropped": len(report.dropped), "smaller": report.smaller})
                if not report.smaller:
                    async for event in self._recover(run, run.recovery.compaction_failed()):
                        yield event
            case Sanitize(drop_thinking):
                yield self._keeper.sanitize_all(self.messages, run.texts, drop_thinking=drop_thinking)
            case SendAgain():
                yield DefenceActed("recovery.empty_answer")
            case NextModel(kind):
                given_up = run.models.pop(0)
                self._keeper.drop_thinking(self.messages)
                yield DefenceActed("recovery.fallback", {"from": given_up.name, "to": run.model.name, "why": kind})
            case Reset(kind):
                await self._reset(run)
                yield DefenceActed("recovery.reset", {"why": kind})
                overflow = kind is ErrorKind.OVERFLOW
                raise _RunEnds(Outcome.RESET, run.texts.reset_overflow if overflow else run.texts.reset_format)
            case Fail(kind, cause):
                yield DefenceActed("recovery.failed", {"why": kind})
                raise _RunEnds(Outcome.FAILED, _failure_line(run.texts, kind, cause))

    async def _reset(self, run: _Run) -> None:
        """Only the working copy is cleared; the user's last message stays, so that "go on" works."""
        self._keep_partial(run)
        run.kept = self._new_messages(run)
        dropped = self._keeper.clear(self.messages, run.head)
        await self._parts.memory.flush(self._tool_context.session_id, dropped, "reset")

    async def _close_at_limit(self, run: _Run) -> AsyncGenerator[Event, None]:
        """Asks for a closing summary without tools; the prompt is taken out again, by identity."""
        prompt = injected_text(run.texts.step_limit)
        last = self.messages[-1]
        last["content"] = [*blocks_of(last), prompt]
        try:
            async with aclosing(self._ask(run, allow_tools=False)) as events:
                async for event in events:
                    yield event
        finally:
            last["content"] = [block for block in blocks_of(last) if block is not prompt]
        closing = self.messages[-1]
        if tool_uses(closing):  # some models call tools although they may not
            closing["content"] = [block for block in blocks_of(closing) if block["type"] != "tool_use"]
            if not closing["content"]:
                self.messages.pop()
        yield DefenceActed("breaker.step_limit", {"steps": self._parts.settings.max_turns})
        yield run.shown.note(run.texts.step_limit_reached.format(steps=self._parts.settings.max_turns))

    def _add_steering(self) -> None:
        """User texts that came in while the run was busy, behind the results of the step."""
        texts = self._steer()
        if texts:
            last = self.messages[-1]
            last["content"] = [*blocks_of(last), *(injected_text(text) for text in texts)]

    def _end_cancelled(self, run: _Run) -> None:
        """§5.3: finished text is kept, never half a tool_use; tool calls were answered where they stopped."""
        self._keep_partial(run)
        mark = text_block(run.texts.cancelled)
        last = self.messages[-1]
        if last["role"] == "assistant":
            last["content"] = [*blocks_of(last), mark]
        else:
            self.messages.append(assistant_message(mark))

    def _keep_partial(self, run: _Run) -> None:
        """Text of a step whose answer never came whole, as far as it was shown."""
        partial = run.shown.step_text
        if partial.strip() and self.messages[-1]["role"] == "user":
            self.messages.append(assistant_message(text_block(partial)))

    def _new_messages(self, run: _Run) -> list[Message]:
        """From the tail back to this run's query, by identity (§6)."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index] is run.head:
                return without_injected(self.messages[index:])
        raise AssertionError("the user's message is never dropped from its own run")

    @staticmethod
    def _answer(run: _Run) -> ModelAnswer:
        if run.answer is None:
            raise AssertionError("a model call that returned has an answer")
        return run.answer


def _failure_line(texts: Texts, kind: ErrorKind, cause: Exception) -> str:
    if isinstance(cause, EmptyAnswer):
        return texts.empty_answer
    if isinstance(cause, Refused):
        return texts.refusal if cause.stop_reason == "refusal" else texts.content_filter
    lines = {
        ErrorKind.AUTH: texts.failed_auth,
        ErrorKind.QUOTA: texts.failed_quota,
        ErrorKind.MODEL: texts.failed_model,
        ErrorKind.RATE_LIMIT: texts.failed_rate_limit,
        ErrorKind.TRANSIENT: texts.failed_transient,
        ErrorKind.CONTENT_FILTER: texts.content_filter,
    }
    return lines.get(kind, texts.failed_other)
