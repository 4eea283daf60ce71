"""What can be told about the bot before it runs: for the start, and line by line for `steadybot check`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from telegram import BotCommand, User, WebhookInfo

from channels.base import CommandInfo, Finding
from channels.telegram.faults import FaultKind, TelegramFault, setup_error
from channels.telegram.wire import Wire

START_DELAYS = (1.0, 3.0)
"""Seconds between tries to reach Telegram at the start: a machine that has just booted may not be online yet."""

log = structlog.get_logger()


async def connect(wire: Wire, delays: Sequence[float] = START_DELAYS, *, polling: bool = True) -> User:
    """Who we are. Raises ChannelSetupError: for a wrong token, no way to reach Telegram, or a webhook that would
    keep us from polling."""
    for delay in (*delays, None):
        try:
            await wire.open()
            webhook = await wire.ask("getWebhookInfo", wire.bot.get_webhook_info)
        except TelegramFault as fault:
            if delay is None or fault.kind not in (FaultKind.UNREACHABLE, FaultKind.TIMED_OUT, FaultKind.RATE):
                raise setup_error(fault) from None
            log.warning("telegram.unreachable", error=str(fault))
            await asyncio.sleep(max(delay, fault.after or 0.0))
        else:
            if polling and webhook.url:
                raise setup_error(TelegramFault("getWebhookInfo", FaultKind.WEBHOOK_SET))
            break
    return wire.bot.bot


async def set_menu(wire: Wire, commands: Sequence[CommandInfo]) -> None:
    """The menu next to the text field. Nothing depends on it, so a fault is only logged."""
    menu = [BotCommand(command.name.lower(), command.description[:256]) for command in commands]
    try:
        await wire.ask("setMyCommands", lambda: wire.bot.set_my_commands(menu))
    except TelegramFault as fault:
        log.warning("telegram.menu_not_set", error=str(fault))


async def findings(
    wire: Wire, *, nobody_allowed: bool, wants_all: bool, webhook_url: str | None = None
) -> Sequence[Finding]:
    """Every line of the check. `webhook_url` is where Telegram should call us; None: we poll."""
    try:
        await wire.open()
    except TelegramFault as fault:
        return [Finding(False, "bot token", str(setup_error(fault)))]
    me = wire.bot.bot
    found = [Finding(True, f"bot token: @{me.username} ({me.full_name})")]
    try:
        found.append(_webhook(await wire.ask("getWebhookInfo", wire.bot.get_webhook_info), webhook_url))
    except TelegramFault as fault:
        found.append(Finding(False, "webhook", str(setup_error(fault))))
    found.append(_privacy(me, wants_all=wants_all))
    if nobody_allowed:
        found.append(
            Finding(
                True,
                "allow list: empty; whoever writes to the bot in private gets a code, and "
                "`steadybot allow telegram CODE` lets them in",
            )
        )
    if webhook_url is None:
        what = "second poller: not looked for, since a look would disturb a bot that runs; the log tells of one"
        found.append(Finding(True, what))
    return found


def _webhook(webhook: WebhookInfo, wanted: str | None) -> Finding:
    if wanted is None:
        if not webhook.url:
            return Finding(True, "webhook: none is set, polling will work")
        return Finding(False, "webhook", str(setup_error(TelegramFault("getWebhookInfo", FaultKind.WEBHOOK_SET))))
    if webhook.url == wanted and webhook.last_error_message:
        return Finding(False, "webhook", f"Telegram's last call of {wanted} failed: {webhook.last_error_message}")
    return Finding(True, f"webhook: {wanted}" + ("" if webhook.url == wanted else " (is set when the bot starts)"))


def _privacy(me: User, *, wants_all: bool) -> Finding:
    if me.can_read_all_group_messages:
        return Finding(True, "group privacy mode: off, the bot sees everything that is said in its groups")
    mend = (
        "to let it hear all, send /setprivacy to @BotFather, choose Disable, then remove the bot from the group "
    )
    mend += "and add it again"
    what = "group privacy mode: on, in groups the bot sees only commands, mentions and replies to it"
    if wants_all:
        return Finding(False, f"{what}, but group_trigger is all", mend)
    return Finding(True, what, mend)
