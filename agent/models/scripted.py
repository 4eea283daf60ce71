"""A model that says what it was told to: for tests, benches and demonstrations of the loop, without a wire."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.events import TextDelta, Usage
from agent.messages import Block, JsonObject, text_block
from agent.ports import BrokenInput, ModelAnswer, ModelEvent, ModelRequest, StopReason


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of a scripted answer; `broken` makes its arguments unreadable."""

    name: str
    input: JsonObject = field(default_factory=dict)
    id: str | None = None
    broken: BrokenInput | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """A scripted answer: text, streamed word by word, then tool calls. `fails_with` is raised after the text;
    `waits_for`, awaited after the text, is where a cancel can meet the stream."""

    text: str = ""
    calls: Sequence[Call] = ()
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    blocks_before: Sequence[Block] = ()
    fails_with: Exception | None = None
    waits_for: Callable[[], Awaitable[object]] | None = None


Script: TypeAlias = "Iterable[Say | Exception] | Callable[[ModelRequest], Say | Exception]"


async def forever() -> None:
    """For `Say.waits_for`: a provider that says nothing more."""
    await asyncio.Event().wait()


class ScriptedModel:
    """Implements agent.ports.Model. A script is a sequence of answers, or a function of the request.

    `requests` holds each request as JSON text taken at the time of the call, so that later changes of the
    history don't show in it; `open_streams` counts streams that were not closed.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        model: str = "scripted-1",
        context_window: int | None = 200_000,
        max_output_tokens: int = 4096,
    ) -> None:
        self.name = name
        self.model = model
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.requests: list[str] = []
        self.open_streams = 0
        self.closed = False
        self._function = script if callable(script) else None
        self._queue: deque[Say | Exception] = deque(() if callable(script) else script)
        self._ids = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(json.dumps({"messages": request.messages, "allow_tools": request.allow_tools}))
        said = self._function(request) if self._function else self._next()
        if isinstance(said, Exception):
            raise said
        self.open_streams += 1
        try:
            for index, word in enumerate(said.text.split(" ") if said.text else ()):
                await asyncio.sleep(0)
                yield TextDelta(word if index == 0 else f" {word}")
            if said.waits_for is not None:
                await said.waits_for()
            if said.fails_with is not None:
                raise said.fails_with
            yield self._answer(said)
        finally:
            self.open_streams -= 1

    async def check(self) -> None:
        return

    async def aclose(self) -> None:
        self.closed = True

    def _next(self) -> Say | Exception:
        if not self._queue:
            raise AssertionError("the script has ended, and the model was asked again")
        return self._queue.popleft()

    def _answer(self, said: Say) -> ModelAnswer:
        content: list[Block] = list(said.blocks_before)
        if said.text:
            content.append(text_block(said.text))
        broken: dict[str, BrokenInput] = {}
        for call in said.calls:
            self._ids += 1
            call_id = call.id if call.id is not None else f"call_{self._ids}"
            content.append({"type": "tool_use", "id": call_id, "name": call.name, "input": call.input})
            if call.broken is not None:
                broken[call_id] = call.broken
        stop = said.stop_reason or ("tool_use" if said.calls else "end_turn")
        return ModelAnswer(content, stop, said.usage, broken)
