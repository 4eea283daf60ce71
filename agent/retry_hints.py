"""When a provider says that it may be asked again: headers first, then the text (four-defences §5.4)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT = r"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)"
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*{_UNIT}(?![a-z])", re.IGNORECASE)
# Go writes 6m0s: the next part may follow without a blank.
_GO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.IGNORECASE)
_GO_DURATION = re.compile(rf"(?:{_GO_PART.pattern})+", re.IGNORECASE)
_IN_TEXT = re.compile(
    r"(?:(?:try|retry|retrying|available|wait|reset\w*)(?: again| your request)? (?:in|after|for)|\bwait"
    r"|retry[-_ ]?(?:after|delay)['\"]?\s*[:=])\s*['\"]?(?:about |~)?"
    rf"((?:\d+(?:\.\d+)?\s*{_UNIT}(?![a-z])\s*(?:and |, )?|\d+(?:\.\d+)?(?:ms|[smhd]))+)",
    re.IGNORECASE,
)
_IN_CHINESE = re.compile(r"(\d+(?:\.\d+)?)\s*(秒|分钟|小时)(?:钟)?(?:后|之后|以后)")
_CHINESE_UNITS = {"秒": 1.0, "分钟": 60.0, "小时": 3600.0}
_EPOCH_YEAR_2001 = 1e9
_RESET = re.compile(r"(?:anthropic|x)-ratelimit-(?:(.+)-)?reset(?:-(.+))?", re.IGNORECASE)


def seconds_in_headers(headers: Mapping[str, str], *, resets: bool) -> float | None:
    """Seconds from now, never below 0. `resets`: whether rate-limit reset headers count as well; providers
    send these with every answer, so they mean something only when the limit is what stopped the request."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    now = _date(lower.get("date", "")) or datetime.now(UTC)
    if (milliseconds := _number(lower.get("retry-after-ms", ""))) is not None:
        return max(0.0, milliseconds / 1000)
    if (named := _moment(lower.get("retry-after", ""), now)) is not None:
        return named
    return _longest_reset(lower, now) if resets else None


def seconds_in_text(text: str) -> float | None:
    """Seconds that a text such as "try again in 1m30s" names."""
    if found := _IN_TEXT.search(text[:8_000]):
        return _sum(found[1])
    if found := _IN_CHINESE.search(text[:8_000]):
        return float(found[1]) * _CHINESE_UNITS[found[2]]
    return None


def _longest_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """Of the limits that are used up, the one that is free last; of all where none says that it is."""
    spent: list[float] = []
    others: list[float] = []
    for name, value in headers.items():
        found = _RESET.fullmatch(name)
        seconds = _moment(value, now) if found else None
        if seconds is not None:
            remaining = headers.get(name.replace("reset", "remaining"))
            (spent if remaining == "0" else others).append(seconds)
    return max(spent or others, default=None)


def _moment(value: str, now: datetime) -> float | None:
    """Seconds until what a header names: a number of seconds, an epoch, a Go duration or a date."""
    if (number := _number(value)) is not None:
        if number >= _EPOCH_YEAR_2001 * 1000:
            number /= 1000
        return max(0.0, number - now.timestamp() if number >= _EPOCH_YEAR_2001 else number)
    if _GO_DURATION.fullmatch(value):
        return _sum(value)
    moment = _date(value)
    return None if moment is None else max(0.0, (moment - now).total_seconds())


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(value: str) -> datetime | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(value)
        except ValueError:
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def _sum(durations: str) -> float:
    """ "6m0s", "1m30.951s", "350ms", "1 minute and 5 seconds"."""
    parts = _PART.findall(durations) if " " in durations.strip() else _GO_PART.findall(durations)
    return float(sum(float(number) * _UNITS[_short(unit)] for number, unit in parts))


def _short(unit: str) -> str:
    unit = unit.lower()
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]
