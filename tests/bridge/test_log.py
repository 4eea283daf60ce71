"""The log: events with fields, and no secret in whatever form (bridge-and-channels §2, field-notes D 23)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import parse_settings
from bridge.log import HIDDEN, Redactor, configure_logging

TOKEN = "123456789:AAFakeTokenForTestsOnly_0123456789abc"
CONFIG = f"log: {{level: info, format: json}}\nchannels:\n  telegram: {{token: '{TOKEN}'}}\n"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    before, level = logging.getLogger().handlers, logging.getLogger().level
    yield io.StringIO()
    structlog.reset_defaults()
    logging.getLogger().handlers = before
    logging.getLogger().setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_json_lines_with_their_fields(stream: io.StringIO) -> None:
    configure_logging(parse_settings(CONFIG, "c", {}), stream)
    structlog.get_logger("bridge.test").info("trim.turns", dropped=10, session="telegram/1")
    (line,) = lines(stream)
    assert line["event"] == "trim.turns"
    assert (line["dropped"], line["session"], line["level"]) == (10, "telegram/1", "info")
    assert str(line["timestamp"]).endswith("Z")


def test_a_token_in_a_url_or_a_traceback_is_hidden(stream: io.StringIO) -> None:
    configure_logging(parse_settings(CONFIG, "c", {}), stream)
    log = structlog.get_logger("bridge.test")
    log.warning("http", url=f"https://api.telegram.org/bot{TOKEN}/getMe")
    try:
        raise RuntimeError(f"no route to /bot{TOKEN}/getMe")
    except RuntimeError:
        log.exception("crashed")
    logging.getLogger("httpx").warning("HTTP Request: POST https://x/bot%s/sendMessage", TOKEN)
    assert len(lines(stream)) == 3
    assert TOKEN not in stream.getvalue()
    assert "Traceback" in str(lines(stream)[1]["exception"])
    assert stream.getvalue().count(HIDDEN) == 3


def test_libraries_are_quiet_at_info(stream: io.StringIO) -> None:
    configure_logging(parse_settings(CONFIG, "c", {}), stream)
    logging.getLogger("httpx").info("HTTP Request")
    assert stream.getvalue() == ""


def test_with_the_console_only_warnings_are_told_unless_the_config_says_more(stream: io.StringIO) -> None:
    configure_logging(parse_settings("log: {format: json}\nchannels: {console: {}}\n", "c", {}), stream)
    structlog.get_logger("bridge.test").info("quiet")
    structlog.get_logger("bridge.test").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=6, max_size=20), min_size=1, max_size=4), st.text())
def test_no_given_secret_survives_in_any_surroundings(secrets: list[str], around: str) -> None:
    redact = Redactor(secrets)
    for secret in secrets:
        if secret not in HIDDEN:
            assert secret not in redact(around.replace(secret, "") + secret) or secret in around


@pytest.mark.parametrize(
    "text",
    [
        "xoxb-123456789012-abcdefghij",
        "xapp-1-A1B2C3-123456",
        "sk-ant-api03-abcdefghijklmnop",
        "Authorization: Bearer abc.def.ghi-123",
        "https://api.telegram.org/bot987654321:AAabcdefghijklmnopqrstuvwxyz0123456/getUpdates",
    ],
)
def test_what_looks_like_a_key_is_hidden_also_if_it_is_not_ours(text: str) -> None:
    assert HIDDEN in Redactor([])(text)
