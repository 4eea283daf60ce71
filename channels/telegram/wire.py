"""The one road to Telegram: the SDK's Bot with our time limits, and every error of it as a TelegramFault."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from telegram import Bot, Update
from telegram.error import InvalidToken, TelegramError
from telegram.request import HTTPXRequest

from channels.base import Place
from channels.telegram.faults import FaultKind, TelegramFault, fault_of
from channels.telegram.migrations import Migrations
from channels.telegram.pace import Limits, Pacer

CONNECT_TIMEOUT, WRITE_TIMEOUT, POOL_TIMEOUT = 5.0, 10.0, 5.0  # seconds
READ_TIMEOUT = 12.0  # seconds; what takes longer counts as unknown
MEDIA_TIMEOUT = 60.0  # seconds for a file
POOL_SIZE = 64  # connections; polling has its own
POLL_SLACK = 10.0  # seconds a poll may be answered later than it should

GENERAL_TOPIC = "1"
"""The General topic of a forum: left out when sending (Telegram refuses it there), kept for typing."""

# The SDK's own switch to its next behaviour; without it every RetryAfter brings a deprecation warning.
os.environ.setdefault("PTB_TIMEDELTA", "true")

T = TypeVar("T")
JsonDict = dict[str, object]


class PollRequest(HTTPXRequest):
    """Polling's own connection. An update that the SDK can't read comes out empty, and hides no other."""

    @staticmethod
    def parse_json_payload(payload: bytes) -> JsonDict:
        data: JsonDict = HTTPXRequest.parse_json_payload(payload)
        result = data.get("result")
        if isinstance(result, list):
            data["result"] = [_readable(update) for update in result]
        return data


def _readable(update: JsonDict) -> JsonDict:
    try:
        Update.de_json(dict(update), None)
    except (KeyError, TypeError, ValueError, AttributeError, TelegramError):
        return {"update_id": update.get("update_id", 0)}
    return update


class Wire:
    """The Bot, the pace, and where chats have moved. Usable between `open` and `aclose`."""

    def __init__(
        self, token: str, base_url: str, *, limits: Limits | None = None, data_dir: Path | None = None
    ) -> None:
        """Raises TelegramFault for a token that can't be one."""
        # They log every URL, and Telegram's hold the token; the SDK's debug lines hold what people wrote as well.
        for name in ("httpx", "httpcore", "telegram"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.pacer = Pacer(asyncio.get_running_loop().time, limits)
        self.chats = Migrations(data_dir)
        self.drafts = True
        self._poll_request = PollRequest(
            connection_pool_size=2,
            read_timeout=POLL_SLACK,
            write_timeout=WRITE_TIMEOUT,
            connect_timeout=CONNECT_TIMEOUT,
            pool_timeout=POOL_TIMEOUT,
        )
        request = HTTPXRequest(
            connection_pool_size=POOL_SIZE,
            read_timeout=READ_TIMEOUT,
            write_timeout=WRITE_TIMEOUT,
            connect_timeout=CONNECT_TIMEOUT,
            pool_timeout=POOL_TIMEOUT,
            media_write_timeout=MEDIA_TIMEOUT,
        )
        try:
            self.bot = Bot(
                token,
                base_url=base_url,
                base_file_url=file_url(base_url),
                request=request,
                get_updates_request=self._poll_request,
            )
        except InvalidToken:
            raise TelegramFault("getMe", FaultKind.TOKEN) from None

    async def open(self) -> None:
        """Asks who we are. Raises TelegramFault."""
        await self.ask("getMe", self.bot.initialize)

    async def ask(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        """One call at once. Raises TelegramFault, which hides the SDK's error: that may hold the token."""
        try:
            return await call()
        except TelegramError as error:
            raise fault_of(method, error) from None

    async def write(self, method: str, place: Place, call: Callable[[], Awaitable[T]]) -> T:
        """One call that counts for a chat's pace. The caller has waited for its turn.

        Raises TelegramFault; a wait that Telegram asks for holds the chat.
        """
        self.pacer.sent(place.chat)
        try:
            return await self.ask(method, call)
        except TelegramFault as fault:
            if fault.kind is FaultKind.RATE:
                self.pacer.hold(place.chat, fault.after or 0.0)
            if fault.moved_to is not None:
                self.chats.note(self.chats.target(place.chat), fault.moved_to)
            raise

    async def reopen_polling(self) -> None:
        """A fresh connection for polling, in place of one that hangs."""
        await self._poll_request.shutdown()
        await self._poll_request.initialize()

    async def aclose(self) -> None:
        await self.bot.shutdown()


def file_url(base_url: str) -> str:
    """Where files are fetched from; Telegram's two addresses differ only in the middle."""
    return f"{base_url.removesuffix('/bot')}/file/bot"


def thread_to_write(place: Place) -> int | None:
    return int(place.thread) if place.thread not in (None, GENERAL_TOPIC) else None


def thread_to_type(place: Place) -> int | None:
    return int(place.thread) if place.thread is not None else None
