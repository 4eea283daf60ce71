"""Slack's Web API as this room uses it: one call, one fault class, and one memory of how long to wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.faults import RATE_LIMITED, SlackFault, fault_of
from channels.slack.payload import Json

CALL_TIMEOUT = 20.0  # seconds for one Web API call

sdk_log = logging.getLogger("steadybot.slack_sdk")
# The SDK's info lines are noise and its debug lines hold whole messages; set here, as it asks for `level`.
sdk_log.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Answer:
    data: Json
    headers: Mapping[str, str]


class Holds:
    """Until when each channel must be left alone: Slack's Retry-After, kept per channel id."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def hold(self, chat: str, seconds: float) -> None:
        now = time.monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[chat] = max(self._until.get(chat, 0.0), now + seconds)

    def left(self, chat: str) -> float:
        """Seconds still to wait; 0.0 when the channel may be called."""
        return max(0.0, self._until.get(chat, 0.0) - time.monotonic())


class Wire:
    """Calls the Web API with the bot's token. Must be made inside the running loop, and closed in it."""

    def __init__(self, token: str, base_url: str, *, timeout: float = CALL_TIMEOUT) -> None:
        self.holds = Holds()
        self._timeout = timeout
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout))
        # No retry handlers: the SDK's default sends a request again whose connection broke, and a message that
        # had arrived is then posted twice.
        self.client = AsyncWebClient(
            token=token,
            base_url=base_url if base_url.endswith("/") else base_url + "/",
            session=self._session,
            retry_handlers=[],
            logger=sdk_log,
        )

    @property
    def session(self) -> aiohttp.ClientSession:
        return self._session

    async def send(self, method: str, body: Json, *, timeout: float | None = None) -> Answer:
        """A call that changes something, with a JSON body. Raises SlackFault; a 429 also holds its channel."""
        try:
            return await self._call(method, timeout, http_verb="POST", json=dict(body))
        except SlackFault as fault:
            chat = body.get("channel")
            if fault.code == RATE_LIMITED and isinstance(chat, str):
                self.holds.hold(chat, fault.retry_after or 0.0)
            raise

    async def ask(self, method: str, *, timeout: float | None = None, **params: str) -> Answer:
        """A call that only reads. Raises SlackFault."""
        return await self._call(method, timeout, http_verb="GET", params=params)

    async def open_socket(self, app_token: str) -> None:
        """Asks for a Socket Mode address and throws it away: whether the app token works. Raises SlackFault."""
        try:
            await self.client.apps_connections_open(app_token=app_token)
        except (SlackApiError, aiohttp.ClientError, TimeoutError) as error:
            raise fault_of("apps.connections.open", error) from None

    async def respond(self, url: str, body: Json) -> None:
        """Answers a slash command at the address that came with it. Raises SlackFault."""
        try:
            async with self._session.post(url, json=dict(body)) as response:
                if response.status >= 400:
                    raise SlackFault("response_url", f"http_{response.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise fault_of("response_url", error) from None

    async def upload(self, chat: str, thread: str | None, name: str, data: bytes) -> None:
        """Shows a file, by Slack's external upload. Raises SlackFault."""
        try:
            await self.client.files_upload_v2(
                filename=name, title=name, content=data, channel=chat, thread_ts=thread, request_file_info=False
            )
        except (SlackApiError, aiohttp.ClientError, TimeoutError) as error:
            raise fault_of("files.upload", error) from None

    async def _call(
        self,
        method: str,
        timeout: float | None,
        *,
        http_verb: str,
        json: dict[str, object] | None = None,
        params: dict[str, str] | None = None,
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout or self._timeout):
                response = await self.client.api_call(method, http_verb=http_verb, json=json, params=params)
        except (SlackApiError, aiohttp.ClientError, TimeoutError) as error:
            # Without its cause: the SDK's error holds the request with its headers.
            raise fault_of(method, error) from None
        data = response.data
        return Answer(data if isinstance(data, dict) else {}, dict(response.headers))

    async def aclose(self) -> None:
        await self._session.close()
