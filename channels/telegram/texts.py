"""What this channel itself says to people, in the language that their Telegram is set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from channels.base import CancelReply


@dataclass(frozen=True, slots=True)
class TelegramTexts:
    """`pressed` answers a press on the Cancel button."""

    cancel: str
    pressed: Mapping[CancelReply, str]


ENGLISH = TelegramTexts(
    cancel="Cancel",
    pressed={
        CancelReply.STOPPED: "Stopped.",
        CancelReply.NOTHING_RUNNING: "Nothing is running here any more.",
        CancelReply.NOT_ALLOWED: "Only people of this conversation can stop its answer.",
    },
)

CHINESE = TelegramTexts(
    cancel="取消",
    pressed={
        CancelReply.STOPPED: "已停止。",
        CancelReply.NOTHING_RUNNING: "这里已没有正在运行的任务。",
        CancelReply.NOT_ALLOWED: "只有参与此对话的人才能停止回答。",
    },
)


def texts_for(language_code: str | None) -> TelegramTexts:
    """`language_code` is an IETF tag, as Telegram gives it with a person; None: English."""
    return CHINESE if (language_code or "").lower().startswith("zh") else ENGLISH
