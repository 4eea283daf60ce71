"""Updates by webhook: Telegram calls us, and hears that we have an update when it is stored."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import partial

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from telegram import Update
from telegram.error import TelegramError
from yarl import URL

from channels.base import ChannelSetupError
from channels.telegram.faults import TelegramFault, setup_error
from channels.telegram.polling import WANTED, Handle
from channels.telegram.wire import Wire

ANSWER_WITHIN = 25.0  # seconds; after that Telegram is asked to send the update again
CONNECTIONS = 20
MOST_BYTES = 4 * 1024 * 1024  # of one update
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the header's name

log = structlog.get_logger()


class WebhookSettings(BaseModel):
    """`channels.telegram.webhook`: the public HTTPS address that Telegram calls, and where we listen for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https://[^/]+/.+", description="with a path; what stands before us ends the TLS")
    host: str = "127.0.0.1"
    port: int = Field(8443, ge=1, le=65535)
    secret: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{16,256}$", description="null: made from the token")


def webhook_settings(section: Mapping[str, object] | None) -> WebhookSettings:
    """Raises ChannelSetupError that names what is wrong."""
    try:
        return WebhookSettings.model_validate(section or {})
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()
        )
        raise ChannelSetupError(f"channels.telegram.webhook: {wrong}") from None


class Webhook:
    """The HTTP server that Telegram calls."""

    def __init__(self, wire: Wire, handle: Handle, settings: WebhookSettings, token: str) -> None:
        """`handle` returns when the update is stored, and raises for one that never can be."""
        self._wire = wire
        self._handle = handle
        self._settings = settings
        self._secret = settings.secret or hashlib.sha256(f"webhook {token}".encode()).hexdigest()

    async def run(self) -> None:
        """Until cancelled. Raises ChannelSetupError when we can't listen, or Telegram refuses the address."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post(URL(self._settings.url).path, self._take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            await self._listen(runner)
            await self._register()
            log.info("telegram.webhook", url=self._settings.url, port=self._settings.port)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ChannelSetupError(f"channels.telegram.webhook: can't listen on {host}:{port}: {error}") from None

    async def _register(self) -> None:
        call = partial(
            self._wire.bot.set_webhook,
            self._settings.url,
            max_connections=CONNECTIONS,
            allowed_updates=WANTED,
            secret_token=self._secret,
        )
        try:
            await self._wire.ask("setWebhook", call)
        except TelegramFault as fault:
            raise setup_error(fault) from None

    async def _take(self, request: web.Request) -> web.Response:
        """200: we have it. 503: send it again."""
        given = request.headers.get(SECRET_HEADER, "")
        if not hmac.compare_digest(given.encode(), self._secret.encode()):
            log.warning("telegram.webhook_refused", remote=request.remote)
            return web.Response(status=403)
        try:
            update = Update.de_json(json.loads(await request.read()), self._wire.bot)
        except (KeyError, TypeError, ValueError, AttributeError, TelegramError):
            log.warning("telegram.update_unreadable")
            return web.Response()
        return web.Response(status=200 if await self._stored(update) else 503)

    async def _stored(self, update: Update) -> bool:
        task = asyncio.ensure_future(self._handle(update))
        try:
            await asyncio.wait([task], timeout=ANSWER_WITHIN)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            return False
        if (error := task.exception()) is not None:
            # One that can't be taken in must not be given to us for ever.
            log.error("telegram.update_dropped", update=update.update_id, exc_info=error)
        return True
