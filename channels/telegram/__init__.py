"""Telegram. Importing this package does not import the SDK; `open_channel` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.settings import TelegramSettings
    from channels.base import Channel

__all__ = ["open_channel"]


def open_channel(settings: TelegramSettings, *, data_dir: Path | None = None) -> Channel:
    """The Telegram channel; it connects when it is started.

    `data_dir` is where it remembers groups that became supergroups; None: for as long as it runs.
    """
    from bridge.lean import without_rich

    with without_rich():
        from channels.telegram.adapter import TelegramChannel

    return TelegramChannel(settings, data_dir=data_dir)
