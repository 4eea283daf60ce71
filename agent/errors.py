"""Errors of the core, and what a provider's error is (four-defences §5.4).

An error is judged by its type, HTTP status and structured code first, by its words last. The SDKs' classes are
recognised by their attributes and names: importing two SDKs for an except clause would cost a second at start.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent import fault_words as words
from agent.fault_bodies import codes_of, layers_of, message_of
from agent.retry_hints import seconds_in_headers, seconds_in_text


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


_KIND_OF_CODE: Mapping[str, ErrorKind] = {
    code: kind
    for codes, kind in (
        (words.OVERFLOW_CODES, ErrorKind.OVERFLOW),
        (words.QUOTA_CODES, ErrorKind.QUOTA),
        (words.FILTER_CODES, ErrorKind.CONTENT_FILTER),
        (words.AUTH_CODES, ErrorKind.AUTH),
        (words.MODEL_CODES, ErrorKind.MODEL),
        (words.TRANSIENT_CODES, ErrorKind.TRANSIENT),
        (words.RATE_CODES, ErrorKind.RATE_LIMIT),
    )
    for code in codes
}
_CERTAIN = frozenset({ErrorKind.OVERFLOW, ErrorKind.QUOTA, ErrorKind.CONTENT_FILTER})
"""Kinds whose codes mean one thing whatever status and text come with them."""

_TRANSIENT_STATUS = frozenset({408, 409, 425, 498, 499})
_LOST_CONNECTION = frozenset(
    {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.ENETRESET,
        errno.ENOTCONN,
        errno.EADDRNOTAVAIL,
    }
)
_SDKS = frozenset({"anthropic", "openai", "httpx", "httpx2", "httpcore", "httpcore2"})
_LOST_TYPES = (
    StreamBroken,
    ConnectionError,
    TimeoutError,
    EOFError,
    socket.gaierror,
    ssl.SSLError,
    json.JSONDecodeError,
)
_LOST_NAMES = frozenset(
    {"APIConnectionError", "TransportError", "NetworkError", "TimeoutException", "RemoteProtocolError"}
)
_NEVER_HEALS = frozenset({"UnsupportedProtocol", "LocalProtocolError"})
"""Transport errors that our own configuration makes: a wrong base_url, a line break in a key."""


def classify(error: BaseException | ProviderFault) -> ErrorKind:
    """What an error is. Never raises; what is not recognised is `OTHER`."""
    if isinstance(error, ProviderFault):
        return _kind_of_fault(error)
    if _never_heals(error):
        return ErrorKind.OTHER
    if _is_lost_connection(error):
        return ErrorKind.TRANSIENT
    return _kind_of_fault(fault_of(error))


def is_context_overflow(text: str) -> bool:
    """Whether a text alone says that the input is too long for the model."""
    if words.has(words.REQUEST_TOO_LARGE, text) or words.status_in(text) == 413:
        return True
    return words.has(words.OVERFLOW_WORDS, text) and not words.has(words.RATE_WORDS, text)


def is_message_format_error(text: str) -> bool:
    """Whether a text alone says that the messages' form was refused: a pairing marker and a 400-class signal."""
    return words.has(words.FORMAT_WORDS, text) and words.has(words.REQUEST_WORDS, text)


def overflow_input_budget(text: str) -> int | None:
    """The input limit in tokens that an overflow's text names; None where it names none, or is no overflow."""
    return words.limit_in(text) if is_context_overflow(text) else None


def retry_after(error: BaseException | ProviderFault) -> float | None:
    """Seconds from now after which the provider wants to be asked again, 0 or more; None where it named none.

    Read from Retry-After (seconds or date), retry-after-ms, the rate-limit reset headers (for a 429 only: they
    come with every answer), and then from the text.
    """
    fault = error if isinstance(error, ProviderFault) else fault_of(error)
    headers = getattr(getattr(error, "response", None), "headers", None)
    if isinstance(headers, Mapping):
        seconds = seconds_in_headers(headers, resets=fault.status == 429)
        if seconds is not None:
            return seconds
    seconds = seconds_in_text(fault.text)
    return seconds if seconds is not None else seconds_in_text(str(getattr(error, "body", "")))


def fault_of(error: BaseException) -> ProviderFault:
    """An exception reduced to what can be judged; works on the errors of any SDK by their attributes."""
    status = getattr(error, "status_code", None)
    layers = list(layers_of(getattr(error, "body", None)))
    codes = [str(code) for code in codes_of(error, layers)]
    text = next((text for text in map(message_of, reversed(layers)) if text), "") or str(error)
    if not isinstance(status, int):
        status = next((int(code) for code in codes if code.isdigit() and 100 <= int(code) <= 599), None)
    own = [code for code in codes if not (code.isdigit() and 100 <= int(code) <= 599)]
    known = (code for code in own if code.lower() in _KIND_OF_CODE)
    return ProviderFault(status, next(known, own[0] if own else None), text)


def _kind_of_fault(fault: ProviderFault) -> ErrorKind:
    """The order is the rule: certain codes, words that outrank a status, status, codes, words."""
    code = (fault.code or "").lower() or _code_in(fault.text)
    by_code = _kind_of_code(code)
    status = fault.status
    if status is None or status < 400:
        status = words.status_in(fault.text) or fault.status
    if by_code in _CERTAIN:
        return by_code
    if status == 413:
        return ErrorKind.OVERFLOW
    if status == 402:
        return ErrorKind.QUOTA
    outranked = _by_ranking_words(fault.text, status, code, by_code)
    return outranked or _by_status(status, by_code) or _by_words(fault.text, status) or ErrorKind.OTHER


def _code_in(text: str) -> str:
    """The most telling code that a text quotes; a known one before a general one."""
    codes = words.codes_in(text)
    return next(filter(_kind_of_code, codes), codes[0] if codes else "")


def _kind_of_code(code: str) -> ErrorKind | None:
    """Dotted codes (Qwen's) tell by their end, and throttling by its start."""
    if code.startswith("throttling."):
        return ErrorKind.RATE_LIMIT
    return _KIND_OF_CODE.get(code) or _KIND_OF_CODE.get(code.rpartition(".")[2])


def _by_ranking_words(text: str, status: int | None, code: str, by_code: ErrorKind | None) -> ErrorKind | None:
    """Words that mean more than the status they come with, for the statuses they are known to come with."""
    if status in (401, 404, *_TRANSIENT_STATUS):
        return None
    limited = status == 429 or by_code is ErrorKind.RATE_LIMIT
    if words.has(words.REQUEST_TOO_LARGE, text):
        return ErrorKind.OVERFLOW
    if limited:
        return _limit_or_quota(text, code)
    if is_context_overflow(text):
        return ErrorKind.OVERFLOW
    if is_message_format_error(text) or (_refused(status, code) and words.has(words.FORMAT_WORDS, text)):
        return ErrorKind.FORMAT
    if by_code is not None or (status is not None and status >= 500):
        return None
    for pattern, kind in (
        (words.QUOTA_WORDS, ErrorKind.QUOTA),
        (words.FILTER_WORDS, ErrorKind.CONTENT_FILTER),
        (words.MODEL_WORDS, ErrorKind.MODEL),
        (words.AUTH_WORDS, ErrorKind.AUTH),
    ):
        if words.has(pattern, text) and not (kind is ErrorKind.QUOTA and words.has(words.RATE_WORDS, text)):
            return kind
    return None


def _limit_or_quota(text: str, code: str) -> ErrorKind:
    """A 429: waiting heals a rate limit and not an empty account. Typed rate limits name billing pages too."""
    typed = code in words.RATE_CODES and code != "resource_exhausted"
    spent = words.has(words.QUOTA_WORDS, text) and not words.has(words.RATE_NOT_QUOTA, text)
    if spent and not typed and not words.has(words.RATE_WORDS, text):
        return ErrorKind.QUOTA
    return _KIND_OF_CODE.get(code, ErrorKind.RATE_LIMIT)


def _refused(status: int | None, code: str) -> bool:
    """Whether status or code say that the request itself was wrong."""
    return status in (400, 422) or (status in (None, 200) and code in words.REQUEST_CODES)


def _by_status(status: int | None, by_code: ErrorKind | None) -> ErrorKind | None:
    if by_code is not None and status != 401:
        return by_code
    match status:
        case 401 | 403:
            return ErrorKind.AUTH
        case 404 | 410:
            return ErrorKind.MODEL
        case 429:
            return ErrorKind.RATE_LIMIT
        case int() if status >= 500 or status in _TRANSIENT_STATUS:
            return ErrorKind.TRANSIENT
    return None


def _by_words(text: str, status: int | None) -> ErrorKind | None:
    """The last resort, for an error that has no HTTP status of its own."""
    if status is not None and status >= 400:
        return None
    if words.has(words.RATE_WORDS, text):
        return ErrorKind.RATE_LIMIT
    return ErrorKind.TRANSIENT if words.has(words.TRANSIENT_WORDS, text) else None


def _is_lost_connection(error: BaseException) -> bool:
    """Whether the way to the provider broke, as asyncio, the HTTP libraries and the SDKs raise it."""
    if isinstance(error, _LOST_TYPES):
        return True
    if isinstance(error, OSError):
        return error.errno in _LOST_CONNECTION
    return not _sdk_names(error).isdisjoint(_LOST_NAMES)


def _never_heals(error: BaseException) -> bool:
    causes = (error, error.__cause__) if error.__cause__ is not None else (error,)
    return any(not _sdk_names(cause).isdisjoint(_NEVER_HEALS) for cause in causes)


def _sdk_names(error: BaseException) -> set[str]:
    """The names of the error's classes that are an SDK's or its HTTP library's."""
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _SDKS}
