"""Telegram as a channel: updates in to the bridge, replies and final texts out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from bridge.settings import TelegramSettings
from channels.base import ChannelSetupError, CommandInfo, Finding, Intake, Outgoing, ReplyContext, ReplyStream
from channels.telegram.checks import START_DELAYS, connect, findings, set_menu
from channels.telegram.deliver import Deliverer
from channels.telegram.faults import TelegramFault, setup_error
from channels.telegram.pace import Limits
from channels.telegram.polling import Poller, PollPace
from channels.telegram.reply import Pace, live_reply
from channels.telegram.taking_in import IntakePace, TakingIn
from channels.telegram.updates import CHANNEL, Identity
from channels.telegram.webhook import Webhook, WebhookSettings, webhook_settings
from channels.telegram.wire import Wire

ALIASES = frozenset({"start", "stop"})
"""Commands that are ours in a group without being in the menu."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Paces:
    """All times and limits of the channel in one place, so that tests can run them fast."""

    limits: Limits = field(default_factory=Limits)
    poll: PollPace = field(default_factory=PollPace)
    intake: IntakePace = field(default_factory=IntakePace)
    reply: Pace = field(default_factory=Pace)
    start_delays: tuple[float, ...] = START_DELAYS


class TelegramChannel:
    """One Telegram bot, by long polling or by webhook. Implements channels.base.Channel."""

    def __init__(
        self, settings: TelegramSettings, *, data_dir: Path | None = None, paces: Paces | None = None
    ) -> None:
        """`data_dir` is where groups that became supergroups are remembered; None: in memory only."""
        self._settings = settings
        self._data_dir = data_dir
        self._paces = paces or Paces()
        self._started: _Started | None = None

    @property
    def name(self) -> str:
        return CHANNEL

    async def start(self, commands: Sequence[CommandInfo]) -> None:
        """Learns who we are and sets the command menu. Raises ChannelSetupError."""
        webhook = self._webhook()
        wire = self._wire()
        connected = False
        try:
            user = await connect(wire, self._paces.start_delays, polling=webhook is None)
            await set_menu(wire, commands)
            connected = True
        finally:
            if not connected:
                await wire.aclose()
        me = Identity(user.id, user.username or "", ALIASES | {command.name.lower() for command in commands})
        log.info("telegram.started", bot=f"@{me.username}", id=me.user_id)
        self._started = _Started(wire, me, Deliverer(wire))

    async def run(self, intake: Intake) -> None:
        """Takes updates in until cancelled. Raises ChannelSetupError when Telegram gives us none any more."""
        started = self._ready()
        taking_in = TakingIn(
            started.wire,
            started.me,
            intake,
            trigger=self._settings.group_trigger,
            pace=self._paces.intake,
        )
        webhook = self._webhook()
        if webhook is None:
            await Poller(started.wire, taking_in.update, self._paces.poll).run()
        else:
            token = self._settings.token.get_secret_value()
            await Webhook(started.wire, taking_in.update, webhook, token).run()

    def reply(self, context: ReplyContext) -> AbstractAsyncContextManager[ReplyStream]:
        return live_reply(self._ready().wire, self._paces.reply, context)

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """Raises TryLater, Undeliverable."""
        return await self._ready().deliverer.deliver(outgoing)

    async def check(self) -> Sequence[Finding]:
        try:
            webhook = self._webhook()
            wire = self._wire()
        except ChannelSetupError as error:
            return [Finding(False, "telegram", str(error))]
        try:
            return await findings(
                wire,
                nobody_allowed=not self._settings.allow and not self._settings.admins,
                wants_all=self._settings.group_trigger == "all",
                webhook_url=webhook.url if webhook is not None else None,
            )
        finally:
            await wire.aclose()

    async def aclose(self) -> None:
        if self._started is not None:
            await self._started.wire.aclose()
            self._started = None

    def _webhook(self) -> WebhookSettings | None:
        """None where we poll. Raises ChannelSetupError."""
        return webhook_settings(self._settings.webhook) if self._settings.mode == "webhook" else None

    def _wire(self) -> Wire:
        """Raises ChannelSetupError for a token that can't be one."""
        token = self._settings.token.get_secret_value()
        try:
            return Wire(token, self._settings.base_url, limits=self._paces.limits, data_dir=self._data_dir)
        except TelegramFault as fault:
            raise setup_error(fault) from None

    def _ready(self) -> _Started:
        if self._started is None:
            raise RuntimeError("start() was not called, or aclose() was")
        return self._started


@dataclass(frozen=True, slots=True)
class _Started:
    """What exists between `start` and `aclose`."""

    wire: Wire
    me: Identity
    deliverer: Deliverer
