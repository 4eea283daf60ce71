"""Running one tool call: checks before it, a time limit, cancellation, and an answer whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from agent.cancel import AgentCancelledError, CancelToken
from agent.errors import ToolError
from agent.messages import JsonObject, ResultContent
from agent.ports import BrokenInput, Tool, ToolContext
from agent.texts import Texts

log = structlog.get_logger()

STOP_GRACE = 2.0
"""Seconds a tool gets to stop after it was cancelled or ran out of time; then it is left behind."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a call gave; `abandoned`: the tool did not stop when it was told to."""

    content: ResultContent
    is_error: bool
    abandoned: bool = False


def refusal_before_run(
    tools: Mapping[str, Tool], name: str, args: JsonObject, broken: BrokenInput | None, texts: Texts
) -> str | None:
    """Why this call can't be run at all, as a text for the model; None: it can."""
    tool = tools.get(name)
    if tool is None:
        return texts.unknown_tool.format(tool=name, known=", ".join(sorted(tools)) or "-")
    if broken is not None and broken.why == "cut_off":
        return texts.input_cut_off.format(tool=name)
    if broken is not None:
        return texts.input_not_json.format(tool=name, detail=broken.raw[:200])
    required = tool.spec.input_schema.get("required")
    missing = [key for key in required if key not in args] if isinstance(required, list) else []
    if missing:
        return texts.input_missing.format(tool=name, detail=", ".join(str(key) for key in missing))
    return None


class ToolRunner:
    """Runs tools and owns those that would not stop, until they do or the process ends."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._abandoned: set[asyncio.Task[ResultContent]] = set()

    @property
    def abandoned(self) -> int:
        return len(self._abandoned)

    async def run(
        self, tool: Tool, args: JsonObject, context: ToolContext, token: CancelToken, texts: Texts
    ) -> ToolOutcome:
        """The tool's outcome; its own errors are outcomes too. Raises AgentCancelledError only."""
        task = asyncio.create_task(tool.run(args, context), name=f"tool {tool.spec.name}")
        try:
            with token.scope():
                done, _ = await asyncio.wait({task}, timeout=self._timeout)
        except (AgentCancelledError, asyncio.CancelledError) as stop:
            if isinstance(stop, AgentCancelledError) and task.done():
                # It had finished when the cancel came: its result is kept, and the next step meets the cancel.
                return self._outcome(task, texts)
            await self._stop(task)
            raise
        if done:
            return self._outcome(task, texts)
        stopped = await self._stop(task)
        text = texts.tool_timeout.format(seconds=self._timeout)
        return ToolOutcome(text if stopped else texts.tool_abandoned, is_error=True, abandoned=not stopped)

    async def aclose(self) -> None:
        for task in self._abandoned:
            task.cancel()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=STOP_GRACE)

    async def _stop(self, task: asyncio.Task[ResultContent]) -> bool:
        task.cancel()
        # Owned before anything is awaited: a shutdown may end the wait for a tool that does not stop.
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        await asyncio.wait({task}, timeout=STOP_GRACE)
        if task.done():
            self._abandoned.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.info("tool.ended_with_error", tool=task.get_name(), error=type(error).__name__)
            return True
        log.warning("tool.abandoned", tool=task.get_name())
        task.add_done_callback(self._ended_late)
        return False

    @staticmethod
    def _ended_late(task: asyncio.Task[ResultContent]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("tool.abandoned_ended", tool=task.get_name(), error=type(error).__name__)

    @staticmethod
    def _outcome(task: asyncio.Task[ResultContent], texts: Texts) -> ToolOutcome:
        if task.cancelled():
            return ToolOutcome(texts.tool_crashed.format(detail="cancelled"), is_error=True)
        error = task.exception()
        if error is None:
            return ToolOutcome(task.result(), is_error=False)
        if isinstance(error, ToolError):
            return ToolOutcome(str(error), is_error=True)
        # A bug in a tool must not end the conversation; its text may hold a secret, so the model gets the class.
        log.error("tool.crashed", tool=task.get_name(), exc_info=error)
        return ToolOutcome(texts.tool_crashed.format(detail=type(error).__name__), is_error=True)
