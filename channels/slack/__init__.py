"""Slack. Importing this package does not import the SDK; `open_channel` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bridge.settings import SlackSettings
    from channels.base import Channel

__all__ = ["open_channel"]


def open_channel(settings: SlackSettings, *, data_dir: Path | None = None) -> Channel:  # noqa: ARG001
    """The Slack channel; it connects when it is started. It keeps nothing of its own in `data_dir`."""
    from channels.slack.adapter import SlackChannel

    return SlackChannel(settings)
