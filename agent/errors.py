"""Errors of the core, and what a provider's error is (four-defences §5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AgentError(Exception):
    """Base of what the core raises itself."""


class ToolError(AgentError):
    """A tool could not do it; the text is for the model: what was wrong and what to do instead."""


class StreamBroken(AgentError):
    """A model's stream ended in a way that its SDK passes over in silence: cut off, unreadable or stalled."""


class ErrorKind(StrEnum):
    """What a provider's error is, by what has to be done about it."""

    OVERFLOW = "overflow"
    FORMAT = "format"
    RATE_LIMIT = "rate_limit"
    TRANSIENT = "transient"
    QUOTA = "quota"
    AUTH = "auth"
    MODEL = "model"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ProviderFault:
    """A provider's error reduced to what can be judged: HTTP status, structured code or type, text."""

    status: int | None
    code: str | None
    text: str
