"""The time tool: what time and day it is, anywhere, and how far away a day is."""

from __future__ import annotations

import difflib
import functools
import re
import zoneinfo
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo

from agent.errors import ToolError
from agent.ports import Tool, ToolContext
from agent.tools.function import function_tool

_OFFSET = re.compile(r"(?:utc|gmt)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
_NEAREST = 5

# Cities and countries that people name and that no zone is called after; Chinese names of common ones.
_ELSEWHERE = {
    "Africa/Cairo": "egypt 埃及 开罗",
    "America/Chicago": "houston dallas austin minneapolis 芝加哥",
    "America/Los_Angeles": "san_francisco seattle san_diego las_vegas california pst pdt 洛杉矶 旧金山 西雅图",
    "America/New_York": "nyc washington boston philadelphia atlanta miami est edt 纽约 华盛顿 波士顿",
    "America/Sao_Paulo": "rio rio_de_janeiro brasilia brazil 圣保罗",
    "America/Toronto": "ottawa montreal 多伦多",
    "Asia/Bangkok": "thailand 曼谷",
    "Asia/Dubai": "abu_dhabi 迪拜",
    "Asia/Ho_Chi_Minh": "hanoi vietnam 河内",
    "Asia/Hong_Kong": "香港",
    "Asia/Jakarta": "indonesia 雅加达",
    "Asia/Kolkata": "india delhi new_delhi mumbai bombay bangalore bengaluru chennai hyderabad 印度 新德里 孟买",
    "Asia/Seoul": "korea south_korea busan 首尔 韩国",
    "Asia/Shanghai": "china beijing peking shenzhen guangzhou hangzhou chengdu 中国 北京 上海 深圳 广州 杭州 成都",
    "Asia/Singapore": "新加坡",
    "Asia/Taipei": "taiwan 台北 台湾",
    "Asia/Tokyo": "japan osaka kyoto 东京 日本 大阪 京都 東京",
    "Australia/Sydney": "canberra 悉尼",
    "Europe/Amsterdam": "netherlands the_hague rotterdam",
    "Europe/Berlin": "germany munich hamburg frankfurt cologne cet cest 柏林 德国",
    "Europe/London": "uk england manchester edinburgh bst 伦敦 英国",
    "Europe/Madrid": "spain barcelona 马德里",
    "Europe/Moscow": "russia 莫斯科",
    "Europe/Paris": "france lyon 巴黎 法国",
    "Europe/Rome": "italy milan naples 罗马",
    "Europe/Zurich": "switzerland geneva basel 苏黎世",
}


def time_tool(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Tool:
    """The tool `time`. `now` gives the present with a zone; its own zone does not matter."""

    def time(context: ToolContext, zone: str | None = None, until: date | None = None) -> str:
        """Tells the current date, weekday and time, in the user's zone or another. Use it whenever the answer
        depends on what time or day it is.

        zone: an IANA zone (Asia/Tokyo), a city (Tokyo) or an offset (UTC+8); leave it out for the user's own
        until: a day as YYYY-MM-DD; the answer then also says how many days away it is
        """
        wanted = zone or context.time_zone
        there = now().astimezone(find_zone(wanted) if wanted else None)
        text = describe(there)
        return f"{text}\n{days_away(there.date(), until)}" if until else text

    return function_tool(time, name="time")


def describe(there: datetime) -> str:
    """One line with weekday, date, time, zone and offset."""
    offset = there.strftime("%z")
    utc = f"UTC{offset[:3]}:{offset[3:5]}"
    key = there.tzinfo.key if isinstance(there.tzinfo, zoneinfo.ZoneInfo) else ""
    where = f"{key} ({utc})" if key else utc
    return f"{there:%A, %Y-%m-%d %H:%M:%S} in {where}"


def days_away(today: date, day: date) -> str:
    days = (day - today).days
    if days == 0:
        return f"{day} ({day:%A}) is today."
    unit = "day" if abs(days) == 1 else "days"
    return f"{day} ({day:%A}) is in {days} {unit}." if days > 0 else f"{day} ({day:%A}) was {-days} {unit} ago."


def find_zone(name: str) -> tzinfo:
    """The zone of an IANA name, a city, a country with one zone, or an offset like UTC+8.

    Raises ToolError with the nearest names for one that is not known.
    """
    wanted = re.sub(r"[\s_]+", "_", name.strip()).casefold()
    known = _zones_by_name()
    if wanted in known:
        return zoneinfo.ZoneInfo(known[wanted])
    if match := _OFFSET.fullmatch(wanted):
        away = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if away <= timedelta(hours=14):
            return timezone(away if match[1] == "+" else -away)
    city = wanted.split(",")[0].rstrip("_")  # "Paris, France"
    if city in known:
        return zoneinfo.ZoneInfo(known[city])
    near = dict.fromkeys(known[key] for key in difflib.get_close_matches(wanted[:60], known, _NEAREST, 0.6))
    hint = f"the nearest are {', '.join(near)}" if near else "give one such as Europe/Paris"
    raise ToolError(f"there is no time zone {name[:60]!r}; {hint}")


@functools.cache
def _zones_by_name() -> dict[str, str]:
    """Case-folded names, whole and by their last part, to IANA keys. An area's city wins over old aliases."""
    keys = zoneinfo.available_timezones()
    cities = {key.rpartition("/")[2].casefold(): key for key in sorted(keys) if not key.startswith("Etc/")}
    elsewhere = {word: key for key, words in _ELSEWHERE.items() if key in keys for word in words.split()}
    return {**cities, **elsewhere, **{key.casefold(): key for key in keys}}


time: Tool = time_tool()
