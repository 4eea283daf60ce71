"""The answer that the chunks of a Chat Completions stream make up. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx2
import openai

from agent.errors import StreamBroken
from agent.events import TextDelta, ThinkingDelta, Usage
from agent.messages import Block, text_block
from agent.models._openai_messages import ReasoningField, opaque_block
from agent.models._wire import Delta, TextJoiner, Wire, count, json_object, tool_input, unique_id
from agent.ports import BrokenInput, ModelAnswer, StopReason

_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "sensitive": "content_filter",  # Zhipu
    "model_length": "overflow",  # Mistral: the window is full
    "model_context_window_exceeded": "overflow",  # Zhipu
}
_CUT_OFF = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})
"""Finish reasons by which OpenRouter, vLLM, Zhipu and DeepSeek say that they could not go on."""


@dataclass(slots=True)
class _GrowingCall:
    """A tool call while its deltas arrive."""

    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)
    joiner: TextJoiner = field(default_factory=TextJoiner)
    extra: object = None

    @property
    def raw(self) -> str:
        return "".join(self.parts)

    def is_complete(self) -> bool:
        return json_object(self.raw) is not None


class _Calls:
    """Joins tool-call deltas. OpenAI's are joined by index; other servers leave it or the id out, give each call
    index 0, or make a new id for each delta, so what a delta belongs to is judged from all it says."""

    def __init__(self) -> None:
        self.calls: list[_GrowingCall] = []
        self._by_index: dict[int, _GrowingCall] = {}

    def feed(self, delta: Wire) -> None:
        function: Wire = delta.get("function") or {}
        call_id: str = delta.get("id") or ""
        name: str = function.get("name") or ""
        arguments = _as_text(function.get("arguments"))
        index: int | None = delta.get("index")
        call = self._candidate(index, call_id)
        if call is None or self._starts_another(call, index, call_id, name, arguments):
            call = _GrowingCall()
            self.calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or call_id
        call.name = call.name or name
        call.extra = delta.get("extra_content") or call.extra
        if arguments:
            call.parts.append(call.joiner.feed(arguments))

    def _candidate(self, index: int | None, call_id: str) -> _GrowingCall | None:
        if index is not None:
            return self._by_index.get(index)
        same = (call for call in self.calls if call_id and call.id == call_id)
        return next(same, self.calls[-1] if self.calls else None)

    @staticmethod
    def _starts_another(call: _GrowingCall, index: int | None, call_id: str, name: str, arguments: str) -> bool:
        """A delta that names a function starts a call, unless it only says again what was said."""
        if not name or (call_id and call_id == call.id):
            return False
        if call.name and name != call.name:
            return True
        if index is None and call_id and call.id:
            return True
        return bool(arguments.strip()) and call.is_complete()


def _as_text(arguments: object) -> str:
    """Some servers send the arguments as an object instead of as text."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)


class OpenAIAnswer:
    """A `_wire.Collector`. `reasoning_field` is where this server writes its reasoning, None until it did."""

    def __init__(self) -> None:
        self.reasoning_field: ReasoningField | None = None
        self._finish_reason: str | None = None
        self._text: list[str] = []
        self._text_joiner = TextJoiner()
        self._thinking: list[str] = []
        self._thinking_joiner = TextJoiner()
        self._calls = _Calls()
        self._refused = False
        self._usage = Usage()

    @property
    def stopped(self) -> bool:
        return self._finish_reason is not None

    def feed(self, event: Wire) -> Sequence[Delta]:
        if (error := _error_in(event)) is not None:
            raise error
        if usage := event.get("usage"):
            self._usage = _usage(usage)
        choices: list[Wire] | None = event.get("choices")
        if not choices:
            return ()
        choice = choices[0]
        delta: Wire | None = choice.get("delta")
        shown = self._grow(delta) if delta else ()
        if reason := choice.get("finish_reason"):
            if reason in _CUT_OFF:
                raise StreamBroken(f"the provider could not go on: {reason}")
            self._finish_reason = reason
        return shown

    def _grow(self, delta: Wire) -> Sequence[Delta]:
        shown: list[Delta] = []
        if thought := self._reasoning(delta):
            shown.append(ThinkingDelta(thought))
        content = delta.get("content")
        if content and (text := self._text_joiner.feed(_content_text(content))):
            self._text.append(text)
            shown.append(TextDelta(text))
        for call in delta.get("tool_calls") or ():
            self._calls.feed(call)
        if delta.get("refusal"):
            self._refused = True
        return shown

    def _reasoning(self, delta: Wire) -> str:
        """DeepSeek and those after it write `reasoning_content`, others `reasoning`, and some both."""
        fields: tuple[ReasoningField, ...] = ("reasoning_content", "reasoning")
        for name in fields:
            found = delta.get(name)
            if isinstance(found, str) and found:
                self.reasoning_field = self.reasoning_field or name
                text = self._thinking_joiner.feed(found)
                self._thinking.append(text)
                return text
        return ""

    def result(self) -> ModelAnswer:
        """To be called when `stopped`. Thinking comes first, then text, then tool calls."""
        stop = _STOP_REASONS.get(self._finish_reason or "", "end_turn")
        content: list[Block] = []
        if thinking := "".join(self._thinking) + self._thinking_joiner.end():
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text := "".join(self._text) + self._text_joiner.end():
            content.append(text_block(text))
        broken: dict[str, BrokenInput] = {}
        taken: set[str] = set()
        for call in self._calls.calls:
            call_id = unique_id(call.id, taken)
            last = call is self._calls.calls[-1]
            found = tool_input(call.raw + call.joiner.end(), cut_off=stop == "max_tokens" and last)
            if isinstance(found, BrokenInput):
                broken[call_id] = found
                found = {}
            if call.extra is not None:
                content.append(opaque_block(call.extra))
            content.append({"type": "tool_use", "id": call_id, "name": call.name, "input": found})
        if stop == "end_turn":
            stop = "tool_use" if taken else "refusal" if self._refused and not text else stop
        return ModelAnswer(content, stop, self._usage, broken)


def _error_in(event: Wire) -> openai.APIError | None:
    """An error inside the stream, as the SDK raises it. vLLM and LMDeploy send it as the chunk itself."""
    body: object = event.get("error")
    message = body.get("message") if isinstance(body, dict) else None
    if not body and event.get("object") == "error":
        body, message = event, event.get("message")
    if not body:
        return None
    text = message if isinstance(message, str) and message else "An error occurred during streaming"
    return openai.APIError(text, httpx2.Request("POST", "/chat/completions"), body=body)


def _content_text(content: object) -> str:
    """The text of a delta; Mistral's reasoning models send a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _usage(usage: Wire) -> Usage:
    details: Wire = usage.get("prompt_tokens_details") or {}
    return Usage(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        cache_read_tokens=count(details.get("cached_tokens")),
    )
