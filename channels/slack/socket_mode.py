"""Socket Mode by slack-bolt, so that an envelope is acknowledged only after its handler returned.

Bolt's defaults lose messages for a bot like this one in three ways, each switched off here: events are
acknowledged before their listener runs (`process_before_response` turns that round), an event nobody listens to
is never acknowledged (a last listener takes them all), and an auth.test that fails while a message is handled
acknowledges the message (`authorize` answers from what `start` learned).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass

import structlog
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.context.ack.async_ack import AsyncAck
from slack_sdk.web.async_client import AsyncWebClient

from bridge.errors import StoreError
from channels.slack.faults import SlackFault, setup_error
from channels.slack.payload import Json
from channels.slack.people import Identity
from channels.slack.wire import Wire, sdk_log

PING_INTERVAL = 10.0  # seconds between pings; after four without an answer the SDK connects anew
WATCH_INTERVAL = 30.0  # seconds between two looks at the connection
ACK_MARGIN = 0.05  # seconds; bolt sends an acknowledgement shortly after its handler returned
DRAIN_TIMEOUT = 5.0  # seconds for messages that are being stored while we stop

_ANY = re.compile(".*", re.DOTALL)

log = structlog.get_logger()

Handle = Callable[[Json], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """What is done with each kind of envelope; a handler that raises leaves its envelope to be sent again."""

    event: Handle
    slash: Handle
    press: Handle


@dataclass(frozen=True, slots=True)
class SocketPace:
    ping: float = PING_INTERVAL
    watch: float = WATCH_INTERVAL


class Socket:
    """One Socket Mode connection, renewed for as long as `run` runs."""

    def __init__(
        self, wire: Wire, token: str, app_token: str, me: Identity, handlers: Handlers, pace: SocketPace
    ) -> None:
        self._wire = wire
        self._app_token = app_token
        self._pace = pace
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._greeted = False
        self._app = _bolt(wire, token, me)
        self._listen(handlers)

    def _listen(self, handlers: Handlers) -> None:
        for name in ("message", "app_mention"):
            self._app.event(name)(self._handled(handlers.event))
        self._app.command(_ANY)(self._handled(handlers.slash))
        self._app.action(_ANY)(self._handled(handlers.press))
        self._app.event(_ANY)(_ack_only)
        self._app.shortcut(_ANY)(_ack_only)
        self._app.error(_on_error)

    def _handled(self, handle: Handle) -> Callable[..., Awaitable[None]]:
        async def listener(body: dict[str, object], ack: AsyncAck) -> None:
            self._busy += 1
            self._idle.clear()
            try:
                await handle(body)
                await ack()
            finally:
                self._busy -= 1
                if self._busy == 0:
                    self._idle.set()

        return listener

    async def run(self) -> None:
        """Takes envelopes in until cancelled. Raises ChannelSetupError when Slack takes the app token no more."""
        handler = AsyncSocketModeHandler(
            self._app,
            app_token=self._app_token,
            logger=sdk_log,
            web_client=self._wire.client,
            ping_interval=self._pace.ping,
        )
        handler.client.message_listeners.append(self._greet)
        connect: Callable[[], Coroutine[None, None, None]] = handler.connect_async
        connecting = asyncio.create_task(connect(), name="slack connect")
        try:
            await self._watch(handler)
        finally:
            connecting.cancel()
            with suppress(asyncio.CancelledError):
                await connecting
            await self._close(handler)

    async def _watch(self, handler: AsyncSocketModeHandler) -> None:
        """The SDK reconnects by itself, but tries one address, which soon runs out, for ever."""
        while True:
            await asyncio.sleep(self._pace.watch)
            if await handler.client.is_connected():
                continue
            log.warning("slack.disconnected")
            handler.client.wss_uri = None  # its next try asks for a fresh address
            try:
                await self._wire.open_socket(self._app_token)
            except SlackFault as fault:
                if fault.token_is_bad or fault.code == "missing_scope":
                    raise setup_error(fault, "app_token") from None

    async def _close(self, handler: AsyncSocketModeHandler) -> None:
        """Lets messages that are being stored be stored and acknowledged, then closes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await self._idle.wait()
                await asyncio.sleep(ACK_MARGIN)
        tasks = [
            task
            for task in (
                handler.client.message_processor,
                handler.client.current_session_monitor,
                handler.client.message_receiver,
            )
            if task is not None
        ]
        close: Callable[[], Coroutine[None, None, None]] = handler.close_async
        await close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, _client: object, message: dict[str, object], _raw: str | None = None) -> None:
        if message.get("type") != "hello" or self._greeted:
            return
        self._greeted = True
        connections = message.get("num_connections")
        log.info("slack.connected", connections=connections)
        if isinstance(connections, int) and connections > 1:
            log.warning(
                "slack.second_process",
                connections=connections,
                mend="another process uses this app token, and Slack gives each event to one of them at random: "
                "stop the other one",
            )


def _bolt(wire: Wire, token: str, me: Identity) -> AsyncApp:
    async def authorize() -> AuthorizeResult:
        return AuthorizeResult(
            enterprise_id=me.enterprise_id or None,
            team_id=me.team_id,
            bot_user_id=me.user_id,
            bot_id=me.bot_id,
            bot_token=token,
        )

    # Its own client without a token: bolt warns of one that it does not use.
    client = AsyncWebClient(base_url=wire.client.base_url, session=wire.session, retry_handlers=[], logger=sdk_log)
    return AsyncApp(
        logger=sdk_log,
        name="steadybot",
        client=client,
        authorize=authorize,
        process_before_response=True,
        request_verification_enabled=False,
        ssl_check_enabled=False,
    )


async def _ack_only(ack: AsyncAck) -> None:
    await ack()


async def _on_error(error: Exception) -> None:
    """Nothing is acknowledged then, and Slack sends the envelope again."""
    if isinstance(error, (StoreError, SlackFault)):
        log.warning("slack.not_accepted", error=str(error))
    else:
        log.error("slack.handler_failed", exc_info=error)
