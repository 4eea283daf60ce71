"""What a run tells the outside, as small frozen values. `RunFinished` is always the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from agent.messages import JsonObject


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the answer, as it arrives; deltas of one run, joined, are what the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class TextReplaced:
    """All text of this run so far is now this: a broken stream was restarted and went another way."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    tool_use_id: str
    name: str
    args: JsonObject
    effects: bool


@dataclass(frozen=True, slots=True)
class ToolFinished:
    tool_use_id: str
    name: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits before it asks the provider again; `seconds` from now, try `attempt` of `attempts`."""

    reason: str
    seconds: float
    attempt: int
    attempts: int


@dataclass(frozen=True, slots=True)
class DefenceActed:
    """One of the defences did something: `event` as in the log (`trim.turns`), with its fields."""

    event: str
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    STEP_LIMIT = "step_limit"
    BREAKER = "breaker"
    RESET = "reset"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls. `input_tokens` counts all input, what was read from cache included."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class RunFinished:
    """`text` is the whole reply, as the user should see it in the end; `model` the one that answered."""

    outcome: Outcome
    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    steps: int = 0


Event: TypeAlias = (
    TextDelta | ThinkingDelta | TextReplaced | ToolStarted | ToolFinished | Waiting | DefenceActed | RunFinished
)
