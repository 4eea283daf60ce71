"""Slack as a channel: events in to the bridge, replies and final texts out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import structlog

from bridge.settings import SlackSettings
from channels.base import CommandInfo, Finding, Intake, Outgoing, ReplyContext, ReplyStream
from channels.slack.checks import connect, findings, missing_scopes
from channels.slack.deliver import Deliverer
from channels.slack.events import CHANNEL
from channels.slack.people import Identity, People
from channels.slack.reply import Abilities, Pace, live_reply
from channels.slack.socket_mode import Handlers, Socket, SocketPace
from channels.slack.taking_in import TakingIn
from channels.slack.wire import Wire

log = structlog.get_logger()


class SlackChannel:
    """One Slack workspace, by Socket Mode. Implements channels.base.Channel."""

    def __init__(
        self,
        settings: SlackSettings,
        *,
        pace: Pace | None = None,
        socket_pace: SocketPace | None = None,
        stream_in_channels: bool = False,
    ) -> None:
        """`stream_in_channels` uses Slack's native streaming in channel threads as well, where only the asker
        sees the text grow; the default shows it to everyone by edits."""
        self._settings = settings
        self._pace = pace or Pace()
        self._socket_pace = socket_pace or SocketPace()
        self._abilities = Abilities(stream_in_channels=stream_in_channels)
        self._started: _Started | None = None

    @property
    def name(self) -> str:
        return CHANNEL

    async def start(self, commands: Sequence[CommandInfo]) -> None:  # noqa: ARG002 - Slack's are in the manifest
        """Checks both tokens and learns who we are.

        Raises ChannelSetupError.
        """
        wire = self._wire()
        try:
            me, scopes = await connect(wire, self._settings.app_token.get_secret_value())
        except BaseException:
            await wire.aclose()
            raise
        missing = missing_scopes(scopes)
        if missing:
            log.warning("slack.scopes_missing", scopes=missing)
        log.info("slack.started", bot=me.name, team=me.team)
        self._started = _Started(wire, me)

    async def run(self, intake: Intake) -> None:
        """Takes events in until cancelled. Raises ChannelSetupError when Slack takes the app token no more."""
        started = self._ready()
        token = self._settings.bot_token.get_secret_value()
        taking_in = TakingIn(
            started.wire,
            started.people,
            started.deliverer,
            intake,
            token=token,
            thread_replies=self._settings.thread_replies,
        )
        handlers = Handlers(event=taking_in.event, slash=taking_in.slash, press=taking_in.press)
        app_token = self._settings.app_token.get_secret_value()
        await Socket(started.wire, token, app_token, started.me, handlers, self._socket_pace).run()

    def reply(self, context: ReplyContext) -> AbstractAsyncContextManager[ReplyStream]:
        started = self._ready()
        return live_reply(started.wire, started.me.team_id, self._abilities, self._pace, context)

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """Raises TryLater, Undeliverable."""
        return await self._ready().deliverer.deliver(outgoing)

    async def check(self) -> Sequence[Finding]:
        wire = self._wire()
        try:
            return await findings(wire, self._settings.app_token.get_secret_value())
        finally:
            await wire.aclose()

    async def aclose(self) -> None:
        if self._started is not None:
            await self._started.wire.aclose()
            self._started = None

    def _wire(self) -> Wire:
        return Wire(self._settings.bot_token.get_secret_value(), self._settings.base_url)

    def _ready(self) -> _Started:
        if self._started is None:
            raise RuntimeError("start() was not called, or aclose() was")
        return self._started


class _Started:
    """What exists between `start` and `aclose`."""

    def __init__(self, wire: Wire, me: Identity) -> None:
        self.wire = wire
        self.me = me
        self.people = People(wire, me)
        self.deliverer = Deliverer(wire)
