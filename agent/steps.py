"""Defence 3 at work: the tool calls of one assistant message, each answered whatever happens (§4, §5.3)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from agent.cancel import AgentCancelledError
from agent.events import DefenceActed, Event, ToolFinished, ToolStarted
from agent.messages import (
    Block,
    JsonObject,
    ResultContent,
    ToolResultBlock,
    ToolUseBlock,
    injected_text,
    tool_result,
)
from agent.ports import BrokenInput, Tool
from agent.run import Run
from agent.toolrun import ToolRunner, refusal_before_run


class BreakerStop(Exception):
    """A critical verdict about this tool: the run ends. `reason` is for the model, in the results."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(reason)
        self.tool = tool
        self.reason = reason


class ToolStep:
    """Runs the calls of one step in their order and appends their results as one user message."""

    def __init__(self, tools: Mapping[str, Tool], runner: ToolRunner, run: Run) -> None:
        self._tools = tools
        self._runner = runner
        self._run = run
        self._texts = run.texts
        self._results: dict[str, ToolResultBlock] = {}
        self._first_of: dict[str, str] = {}

    async def run(
        self, calls: Sequence[ToolUseBlock], broken: Mapping[str, BrokenInput]
    ) -> AsyncGenerator[Event, None]:
        """Raises AgentCancelledError or BreakerStop, in each case after every call was answered."""
        unanswered = self._texts.lost_result
        try:
            for call in calls:
                self._run.token.raise_if_cancelled()
                async with aclosing(self._one(call, broken.get(call["id"]))) as events:
                    async for event in events:
                        yield event
        except AgentCancelledError:
            unanswered = self._texts.cancelled_result
            raise
        except BreakerStop as stop:
            unanswered = stop.reason
            raise
        finally:
            content: list[Block] = [
                self._results.get(call["id"]) or tool_result(call["id"], unanswered, is_error=True)
                for call in calls
            ]
            content.extend(self._nudge(calls))
            self._run.messages.append({"role": "user", "content": content})

    async def _one(self, call: ToolUseBlock, broken: BrokenInput | None) -> AsyncGenerator[Event, None]:
        breaker = self._run.breaker
        name, args = call["name"], call["input"]
        ledger_args: JsonObject | str = broken.raw if broken is not None else args
        key = json.dumps([name, ledger_args], sort_keys=True, ensure_ascii=False)
        if (first := self._first_of.setdefault(key, call["id"])) != call["id"]:
            # Identical calls inside one message are one call: run once, answered for each id.
            done = self._results[first]
            self._results[call["id"]] = tool_result(
                call["id"], done["content"], is_error=done.get("is_error", False)
            )
            return
        verdict = breaker.check(name, ledger_args)
        if verdict.should_stop:
            yield DefenceActed(f"breaker.{verdict.rule}", {"tool": name, "critical": verdict.is_critical})
            self._answer(call, verdict.reason, is_error=True)
            breaker.record(name, ledger_args, success=False)
            if verdict.is_critical:
                raise BreakerStop(name, verdict.reason)
            return
        refusal = refusal_before_run(self._tools, name, args, broken, self._texts)
        if refusal is not None:
            yield DefenceActed("breaker.bad_call", {"tool": name})
            self._answer(call, refusal, is_error=True)
            breaker.record(name, ledger_args, success=False)
            return
        tool = self._tools[name]
        yield ToolStarted(call["id"], name, args, tool.effects)
        outcome = await self._runner.run(tool, args, self._run.tool_context, self._run.token, self._texts)
        self._answer(call, outcome.content, is_error=outcome.is_error)
        breaker.record(name, ledger_args, success=not outcome.is_error)
        if outcome.abandoned:
            yield DefenceActed("tool.abandoned", {"tool": name})
        yield ToolFinished(call["id"], name, outcome.is_error)

    def _answer(self, call: ToolUseBlock, content: ResultContent, *, is_error: bool) -> None:
        self._results[call["id"]] = tool_result(call["id"], content, is_error=is_error)

    def _nudge(self, calls: Sequence[ToolUseBlock]) -> list[Block]:
        """One text for the model that forgot it has its answer already; inside the message with the results."""
        due = [self._run.breaker.nudge_due(call["name"], call["input"]) for call in calls]
        return [injected_text(self._texts.nudge)] if any(due) else []
