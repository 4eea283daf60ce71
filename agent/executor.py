"""The agent loop: one request, any number of model calls and tool calls, four defences around them.

`_loop` is the whole story (four-defences §1); each defence is one named call in it: trimming before it, repair
and recovery in `ask`, the breaker in `ToolStep`, the stop wherever something is awaited.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from agent.asking import ask
from agent.breaker import LoopBreaker
from agent.cancel import AgentCancelledError, CancelToken
from agent.context import ContextKeeper
from agent.events import DefenceActed, Event, Outcome, RunFinished
from agent.messages import (
    Message,
    assistant_message,
    blocks_of,
    injected_text,
    text_block,
    text_of,
    tool_uses,
)
from agent.ports import ModelAnswer, ToolContext
from agent.recovery import Recovery
from agent.run import AgentParts, AgentSettings, Run, RunEnds
from agent.steps import BreakerStop, ToolStep
from agent.texts import Texts, texts_for

__all__ = ["AgentExecutor", "AgentParts", "AgentSettings"]


class AgentExecutor:
    """Runs requests of one session on `messages`, which is the executor's own list and the session's new one
    afterwards. `last_run_new_messages` is what the last run added, its user message first."""

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
        self._keeper = self._new_keeper(texts_for(parts.settings.language))

    def context_use(self) -> tuple[int, int]:
        """Tokens that the context takes now, by the calibrated estimate, and the provider's window."""
        model = self._parts.models[0]
        return self._keeper.tokens(self.messages, model), self._keeper.window(model)

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
            advice = run.texts.breaker_stop.format(tool=stop.tool)
            self.messages.append(assistant_message(text_block(advice)))
            yield run.shown.note(advice)
        except RunEnds as end:
            outcome = end.outcome
            if run.kept is None:
                run.keep_partial()
            yield run.shown.note(end.notice)
        finally:
            # The last step's messages met no repair yet, and they are stored as they stand now.
            list(self._keeper.repair(self.messages))
            self.last_run_new_messages = run.new_messages()
        yield RunFinished(outcome, run.shown.text, run.model.name, run.usage, run.steps)

    def _begin(self, user: Message, token: CancelToken) -> Run:
        self.messages.append(user)
        settings = self._parts.settings
        texts = texts_for(settings.language, text_of(blocks_of(user)))
        self._keeper = self._new_keeper(texts)
        return Run(
            head=user,
            messages=self.messages,
            token=token,
            tool_context=self._tool_context,
            texts=texts,
            models=list(self._parts.models),
            keeper=self._keeper,
            recovery=Recovery(settings.retry, fallbacks=len(self._parts.models) - 1),
            breaker=LoopBreaker(texts),
        )

    def _new_keeper(self, texts: Texts) -> ContextKeeper:
        specs = [tool.spec for tool in self._parts.tools.values()]
        return ContextKeeper(self._parts.settings.context, specs, self._parts.facts, texts)

    async def _loop(self, run: Run) -> AsyncGenerator[Event, None]:
        run.token.raise_if_cancelled()
        for acted in await self._trim(run):
            yield acted
        while run.steps < self._parts.settings.max_turns:
            run.token.raise_if_cancelled()
            async with aclosing(ask(self._parts, run)) as events:
                async for event in events:
                    yield event
            answer = _answer_of(run)
            calls = [block for block in answer.content if block["type"] == "tool_use"]
            if not calls and answer.stop_reason != "pause_turn":
                if answer.stop_reason == "max_tokens":
                    yield run.shown.note(run.texts.answer_cut)
                return
            step = ToolStep(self._parts.tools, self._parts.runner, run)
            async with aclosing(step.run(calls, answer.broken_inputs)) as events:
                async for event in events:
                    yield event
            self._add_steering()
        async with aclosing(self._close_at_limit(run)) as events:
            async for event in events:
                yield event

    async def _trim(self, run: Run) -> list[DefenceActed]:
        """Defence 1: once, before the loop. What is dropped is remembered before anything is sent."""
        report = self._keeper.trim(self.messages, run.model)
        if report.dropped:
            await self._parts.memory.flush(self._tool_context.session_id, report.dropped, "trim")
        return list(self._keeper.acted(report))

    async def _close_at_limit(self, run: Run) -> AsyncGenerator[Event, None]:
        """Asks for a closing summary without tools; the prompt is taken out again, by identity."""
        limit = self._parts.settings.max_turns
        yield DefenceActed("breaker.step_limit", {"steps": limit})
        prompt = injected_text(run.texts.step_limit)
        last = self.messages[-1]
        last["content"] = [*blocks_of(last), prompt]
        try:
            async with aclosing(ask(self._parts, run, allow_tools=False)) as events:
                async for event in events:
                    yield event
        finally:
            last["content"] = [block for block in blocks_of(last) if block is not prompt]
        closing = self.messages[-1]
        if tool_uses(closing):  # some models call tools although they may not
            closing["content"] = [block for block in blocks_of(closing) if block["type"] != "tool_use"]
            if not closing["content"]:
                self.messages.pop()
        yield run.shown.note(run.texts.step_limit_reached.format(steps=limit))

    def _add_steering(self) -> None:
        """User texts that came in while the run was busy, behind the results of the step."""
        texts = self._steer()
        if texts:
            last = self.messages[-1]
            last["content"] = [*blocks_of(last), *(injected_text(text) for text in texts)]

    def _end_cancelled(self, run: Run) -> None:
        """§5.3: finished text is kept, never half a tool_use; tool calls were answered where they stopped."""
        run.keep_partial()
        mark = text_block(run.texts.cancelled)
        last = self.messages[-1]
        if last["role"] == "assistant":
            last["content"] = [*blocks_of(last), mark]
        else:
            self.messages.append(assistant_message(mark))


def _answer_of(run: Run) -> ModelAnswer:
    if run.answer is None:
        raise AssertionError("a model call that returned has an answer")
    return run.answer
