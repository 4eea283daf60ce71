"""What the core needs from outside, as Protocols: a model, tools, a memory, what is known of a model, a clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from agent.events import TextDelta, ThinkingDelta, Usage
from agent.messages import Block, JsonObject, Message, ResultContent
from agent.turns import Turn

StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal", "content_filter", "pause_turn", "overflow"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `input_schema` is a JSON schema of type object."""

    name: str
    description: str
    input_schema: JsonObject


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `messages` is legal (agent.repair has seen it); `allow_tools=False` forbids tool calls
    while the tools stay declared, since a history with tool_use blocks needs their declaration."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    allow_tools: bool = True


@dataclass(frozen=True, slots=True)
class BrokenInput:
    """The raw text of tool arguments that are no JSON object, or were cut off by the output limit."""

    raw: str
    why: Literal["invalid_json", "cut_off"]


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The end of a stream: the whole assistant content in its order. A tool_use whose arguments are broken has
    `input == {}` and an entry in `broken_inputs` under its id."""

    content: Sequence[Block]
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    broken_inputs: Mapping[str, BrokenInput] = field(default_factory=dict)


ModelEvent: TypeAlias = "TextDelta | ThinkingDelta | ModelAnswer"


class Model(Protocol):
    """One configured provider and model. Never retries by itself: retrying is agent.recovery's alone."""

    @property
    def name(self) -> str:
        """The provider's name in the config, for people."""

    @property
    def model(self) -> str:
        """The model's id, for the window table and what is learned of it."""

    @property
    def context_window(self) -> int | None:
        """The window in tokens as configured; None: from the table."""

    @property
    def max_output_tokens(self) -> int: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yields deltas, then exactly one ModelAnswer. Closing the generator closes the HTTP response.

        Raises the SDK's own errors as they are, and agent.errors.StreamBroken for what the SDK passes over in
        silence (a stream that ends with no stop reason, a chunk that is not JSON, a stall).
        """

    async def check(self) -> None:
        """Asks the provider the cheapest question that needs the key and the model; raises what it raises."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool call happens. `session_id` scopes whatever the tool keeps; `time_zone` is an IANA name."""

    session_id: str
    request_id: str
    time_zone: str | None = None
    user_id: str | None = None


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def effects(self) -> bool:
        """Whether a call changes something outside, so that it must not be run twice unasked."""

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        """The result for the model. Raises agent.errors.ToolError with a line the model can act on."""


FlushReason = Literal["trim", "overflow", "reset"]


class Memory(Protocol):
    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        """Keeps turns that leave the context. `scope` is the session's id. Raises OSError."""


class ModelFacts(Protocol):
    """What was learned of a model while talking to it; kept in memory, written behind by its owner."""

    def ratio(self, model: str) -> float:
        """Reported input tokens over estimated ones, smoothed, within 0.5 to 2.0; 1.0 where nothing is known."""

    def learn_ratio(self, model: str, ratio: float) -> None: ...

    def limit(self, model: str) -> int | None:
        """The input limit in tokens that the provider named in an error."""

    def learn_limit(self, model: str, tokens: int) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, with a zone."""

    async def sleep(self, seconds: float) -> None: ...
