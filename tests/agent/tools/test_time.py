from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.ports import Tool, ToolContext
from agent.tools.time import find_zone, time_tool

NOW = datetime(2026, 12, 1, 13, 2, 5, tzinfo=UTC)
NEW_YORK = ToolContext(session_id="s", request_id="r", time_zone="America/New_York")
NOWHERE = ToolContext(session_id="s", request_id="r")


@pytest.fixture
def tool() -> Tool:
    return time_tool(lambda: NOW)


async def test_it_tells_the_time_of_a_city(tool: Tool) -> None:
    assert await tool.run({"zone": "Tokyo"}, NEW_YORK) == "Tuesday, 2026-12-01 22:02:05 in Asia/Tokyo (UTC+09:00)"


async def test_without_a_zone_it_tells_the_users_own_time(tool: Tool) -> None:
    assert await tool.run({}, NEW_YORK) == "Tuesday, 2026-12-01 08:02:05 in America/New_York (UTC-05:00)"


async def test_without_any_zone_it_tells_the_machines_time(tool: Tool) -> None:
    local = NOW.astimezone()
    assert f"{local:%Y-%m-%d %H:%M:%S}" in str(await tool.run({}, NOWHERE))


@pytest.mark.parametrize(
    ("day", "said"),
    [
        ("2026-12-24", "2026-12-24 (Thursday) is in 23 days."),
        ("2026-12-02", "2026-12-02 (Wednesday) is in 1 day."),
        ("2026-12-01", "2026-12-01 (Tuesday) is today."),
        ("2026-11-30", "2026-11-30 (Monday) was 1 day ago."),
    ],
)
async def test_it_counts_the_days_to_a_date(tool: Tool, day: str, said: str) -> None:
    assert str(await tool.run({"until": day}, NEW_YORK)).splitlines()[1] == said


async def test_the_days_are_counted_in_the_zone_that_was_asked_for() -> None:
    late = time_tool(lambda: datetime(2026, 12, 1, 20, 0, tzinfo=UTC))
    assert "is today" in str(await late.run({"zone": "Tokyo", "until": "2026-12-02"}, NEW_YORK))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        ("asia/tokyo", "Asia/Tokyo"),
        (" tokyo ", "Asia/Tokyo"),
        ("New York", "America/New_York"),
        ("new_york", "America/New_York"),
        ("buenos aires", "America/Buenos_Aires"),
        ("San Francisco", "America/Los_Angeles"),
        ("Paris, France", "Europe/Paris"),
        ("北京", "Asia/Shanghai"),
        ("东京", "Asia/Tokyo"),
        ("UTC", "UTC"),
        ("India", "Asia/Kolkata"),
    ],
)
def test_a_zone_is_found_by_the_names_people_use(name: str, key: str) -> None:
    assert find_zone(name) == zoneinfo.ZoneInfo(key)


@pytest.mark.parametrize(
    ("name", "hours"), [("UTC+8", 8), ("utc-05:30", -5.5), ("GMT+1", 1), ("+0900", 9), ("UTC+14", 14)]
)
def test_an_offset_is_a_zone(name: str, hours: float) -> None:
    assert find_zone(name) == timezone(timedelta(hours=hours))


def test_an_unknown_zone_names_the_nearest() -> None:
    with pytest.raises(ToolError, match=r"no time zone 'Tokio'; the nearest are Asia/Tokyo"):
        find_zone("Tokio")
    with pytest.raises(ToolError, match="such as Europe/Paris"):
        find_zone("qqqqqqqqq")
    with pytest.raises(ToolError, match="no time zone"):
        find_zone("UTC+99")


@given(st.text(max_size=200) | st.sampled_from(sorted(zoneinfo.available_timezones())).map(str.upper))
def test_any_name_gives_a_zone_or_a_reason(name: str) -> None:
    zone: tzinfo | ToolError
    try:
        zone = find_zone(name)
    except ToolError as error:
        zone = error
    if isinstance(zone, ToolError):
        assert len(str(zone)) < 500
        assert name.casefold() not in {key.casefold() for key in zoneinfo.available_timezones()}
    else:
        assert NOW.astimezone(zone) == NOW
