"""Defence 4, the recovery: what to do about a provider's error. No I/O in here (four-defences §5.4).

`Recovery` belongs to one run, so that no retry forgets what was already tried; `decide` takes an error and gives
the next action. Retries belong to this layer only: the SDKs' own are off.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.errors import ErrorKind, classify, fault_of, overflow_input_budget, retry_after

MAX_COMPACTIONS = 10
"""Overflows answered by compaction in one run. Each compaction is really smaller, so this is only a backstop."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits in seconds before each retry. `max_wait` caps what a Retry-After may ask for."""

    rate_limit_delays: tuple[float, ...] = (30, 45, 60)
    delays: tuple[float, ...] = (2, 4, 6)
    max_wait: float = 120


@dataclass(frozen=True, slots=True)
class Wait:
    """Send again after `seconds`; this is try `attempt` of `attempts`."""

    kind: ErrorKind
    seconds: float
    attempt: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Make the context smaller, against the provider's `limit` in tokens where it named one, and send again."""

    limit: int | None


@dataclass(frozen=True, slots=True)
class Sanitize:
    """Repair the whole history once more, thinking blocks dropped if they are what was refused; send again."""

    drop_thinking: bool


@dataclass(frozen=True, slots=True)
class SendAgain:
    """The same request once more (an empty answer)."""


@dataclass(frozen=True, slots=True)
class NextModel:
    """Go on with the next configured provider; `kind` is why the last one is given up."""

    kind: ErrorKind


@dataclass(frozen=True, slots=True)
class Reset:
    """Clear the working copy and tell the user."""

    kind: ErrorKind


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run with a clear line about `cause`."""

    kind: ErrorKind
    cause: Exception


Action: TypeAlias = "Wait | Compact | Sanitize | SendAgain | NextModel | Reset | Fail"


class EmptyAnswer(Exception):
    """The model gave neither text nor a tool call."""


class Refused(Exception):
    """The model, or a filter before it, declined; `stop_reason` is refusal or content_filter."""

    def __init__(self, stop_reason: str) -> None:
        super().__init__(stop_reason)
        self.stop_reason = stop_reason


class WindowExceeded(Exception):
    """The answer ended because the window is full (stop_reason model_context_window_exceeded)."""


@dataclass(slots=True)
class Recovery:
    """What was already tried in this run. `fallbacks` is how many further models are configured."""

    policy: RetryPolicy
    fallbacks: int = 0
    jitter: Callable[[], float] = random.random
    _waits: dict[ErrorKind, int] = field(default_factory=dict)
    _compactions: int = 0
    _sanitized: bool = False
    _sent_again: bool = False

    def succeeded(self) -> None:
        """A call went through: the waits start anew. What was compacted or sanitized stays counted."""
        self._waits.clear()
        self._sent_again = False

    def decide(self, error: Exception) -> Action:
        match error:
            case EmptyAnswer():
                if not self._sent_again:
                    self._sent_again = True
                    return SendAgain()
                return self._give_up(ErrorKind.OTHER, error)
            case Refused():
                return self._give_up(ErrorKind.CONTENT_FILTER, error)
            case WindowExceeded():
                return self._compact(None)
        kind = classify(error)
        match kind:
            case ErrorKind.OVERFLOW:
                return self._compact(overflow_input_budget(fault_of(error).text))
            case ErrorKind.FORMAT:
                return self._sanitize(fault_of(error).text)
            case ErrorKind.RATE_LIMIT:
                return self._wait(kind, self.policy.rate_limit_delays, error)
            case ErrorKind.TRANSIENT:
                return self._wait(kind, self.policy.delays, error)
            case _:
                return self._give_up(kind, error)

    def _compact(self, limit: int | None) -> Action:
        self._compactions += 1
        return Compact(limit) if self._compactions <= MAX_COMPACTIONS else Reset(ErrorKind.OVERFLOW)

    def _sanitize(self, text: str) -> Action:
        if self._sanitized:
            return Reset(ErrorKind.FORMAT)
        self._sanitized = True
        return Sanitize(drop_thinking="thinking" in text or "signature" in text)

    def _wait(self, kind: ErrorKind, delays: tuple[float, ...], error: Exception) -> Action:
        attempt = self._waits.get(kind, 0)
        if attempt >= len(delays):
            return self._give_up(kind, error)
        self._waits[kind] = attempt + 1
        named = retry_after(error)
        if named is not None:
            seconds = min(named, self.policy.max_wait)
        else:
            spread = 0.25 if kind is ErrorKind.TRANSIENT else 0.0
            seconds = delays[attempt] * (1 + spread * self.jitter())
        return Wait(kind, seconds, attempt + 1, len(delays))

    def _give_up(self, kind: ErrorKind, error: Exception) -> Action:
        if self.fallbacks <= 0:
            return Fail(kind, error)
        self.fallbacks -= 1
        self._waits.clear()
        self._sent_again = False
        return NextModel(kind)
