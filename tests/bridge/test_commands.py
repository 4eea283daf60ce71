"""What is a command and what is talk (bridge-and-channels §1, field-notes D 12, 25)."""

from __future__ import annotations

import pytest

from bridge.commands import NAMES, Command, menu, parse_command
from bridge.texts import CHINESE, ENGLISH


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/cancel", Command("cancel")),
        ("/CANCEL", Command("cancel")),
        ("  /stop  ", Command("cancel")),
        ("/cancel@steady_bot", Command("cancel")),
        ("/status@steady_bot now", Command("status", "now")),
        ("/new\nsecond line", Command("new", "second line")),
        ("/start", Command("help")),
        ("/etc/hosts is what?", None),
        ("/unknown", None),
        ("cancel", None),
        ("how do I cancel my order", None),
        ("please /cancel", None),
        ("", None),
    ],
)
def test_a_command_stands_alone_and_at_the_start(text: str, command: Command | None) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("cancel", Command("cancel")),
        ("STOP", Command("cancel")),
        ("how do I cancel my order", None),
        ("stop it", None),
        ("help", None),
    ],
)
def test_a_bare_word_is_a_command_only_alone_and_where_that_is_allowed(text: str, command: Command | None) -> None:
    assert parse_command(text, bare=True) == command


def test_every_command_has_a_line_in_every_language() -> None:
    for texts in (ENGLISH, CHINESE):
        assert set(texts.commands) == set(NAMES)
        assert [info.name for info in menu(texts)] == list(NAMES)
