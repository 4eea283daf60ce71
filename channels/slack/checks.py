"""What the tokens allow: for the start, and line by line for `steadybot check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from channels.base import ChannelSetupError, Finding
from channels.slack.faults import SlackFault, setup_error
from channels.slack.payload import text_at
from channels.slack.people import Identity
from channels.slack.wire import Wire

NEEDED: Mapping[str, str] = {
    "chat:write": "write answers",
    "users:read": "know names, time zones and guests",
    "app_mentions:read": "hear mentions",
    "channels:history": "hear replies in threads of public channels",
    "groups:history": "hear replies in threads of private channels",
    "im:history": "hear direct messages",
    "mpim:history": "hear replies in group messages",
    "commands": "hear slash commands",
    "files:read": "read files that people send",
    "files:write": "send files",
    "assistant:write": "show that it is thinking in the assistant pane",
}
# Without these nothing can be answered, or nobody can be let in safely.
REQUIRED = ("chat:write", "users:read")


async def identify(wire: Wire) -> tuple[Identity, frozenset[str] | None]:
    """Who we are, and the scopes of the bot token (None where Slack does not say). Raises SlackFault."""
    answer = await wire.ask("auth.test")
    data = answer.data
    identity = Identity(
        user_id=text_at(data, "user_id"),
        bot_id=text_at(data, "bot_id"),
        team_id=text_at(data, "team_id"),
        enterprise_id=text_at(data, "enterprise_id"),
        name=text_at(data, "user"),
        team=text_at(data, "team"),
    )
    return identity, _scopes(answer.headers)


def _scopes(headers: Mapping[str, str]) -> frozenset[str] | None:
    for name, value in headers.items():
        if name.lower() == "x-oauth-scopes":
            return frozenset(scope.strip() for scope in value.split(",") if scope.strip())
    return None


async def connect(wire: Wire, app_token: str) -> tuple[Identity, frozenset[str] | None]:
    """Both tokens work and the bot can answer. Raises ChannelSetupError."""
    try:
        identity, scopes = await identify(wire)
    except SlackFault as fault:
        raise setup_error(fault, "bot_token") from None
    missing = [scope for scope in REQUIRED if scopes is not None and scope not in scopes]
    if missing:
        raise ChannelSetupError(f"channels.slack.bot_token: {_missing_line(missing)}")
    try:
        await wire.open_socket(app_token)
    except SlackFault as fault:
        raise setup_error(fault, "app_token") from None
    return identity, scopes


async def findings(wire: Wire, app_token: str) -> Sequence[Finding]:
    """Every line of the check; a mistake in one does not hide the others."""
    found: list[Finding] = []
    try:
        identity, scopes = await identify(wire)
    except SlackFault as fault:
        found.append(Finding(False, "bot token", str(setup_error(fault, "bot_token"))))
    else:
        found.append(Finding(True, f"bot token: {identity.name} in {identity.team}"))
        found.extend(_scope_findings(scopes))
    try:
        await wire.open_socket(app_token)
    except SlackFault as fault:
        found.append(Finding(False, "app token", str(setup_error(fault, "app_token"))))
    else:
        found.append(Finding(True, "app token: Socket Mode opens"))
    return found


def _scope_findings(scopes: frozenset[str] | None) -> list[Finding]:
    missing = missing_scopes(scopes)
    if not missing:
        return [Finding(True, "scopes")]
    return [Finding(False, f"scope {scope}", f"to {NEEDED[scope]}: {_missing_line([scope])}") for scope in missing]


def missing_scopes(scopes: frozenset[str] | None) -> list[str]:
    return [scope for scope in NEEDED if scopes is not None and scope not in scopes]


def _missing_line(scopes: Sequence[str]) -> str:
    return f"missing scope {', '.join(scopes)}; add it under OAuth & Permissions and install the app again"
