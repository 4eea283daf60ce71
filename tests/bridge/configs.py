"""What the tests of the config share: tokens that have the right shape, and the example with everything on."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"

KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef",
    "OPENAI_API_KEY": "sk-0123456789abcdef0123",
    "TELEGRAM_BOT_TOKEN": "123456789:AAFakeTokenForTestsOnly_0123456789abc",
    "SLACK_BOT_TOKEN": "xoxb-1-fake-bot-token",
    "SLACK_APP_TOKEN": "xapp-1-fake-app-token",
}


def everything_on() -> str:
    """The example as it is when each "# " before a key is taken away."""
    return re.sub(r"^  # ", "  ", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
