"""What an event is to us: a pure reading of Slack's payloads, with no call to anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from channels.base import Place
from channels.slack.decode import mentioned
from channels.slack.payload import Json, map_at, maps_at, text_at
from channels.slack.people import Identity

CHANNEL = "slack"
CANCEL_ACTION = "cancel"
OWN_COMMAND = "/steadybot"

# What is said by a person and is not an event about an older message.
_SAID = frozenset({"", "file_share", "thread_broadcast", "me_message"})


class Why(StrEnum):
    """Why a message is for us."""

    DIRECT = "direct"
    MENTION = "mention"
    THREAD = "thread"  # only if the bot is in that thread already


@dataclass(frozen=True, slots=True)
class Heard:
    """A message from a person that may be for us. `ts` is its id in its channel; `team` is the sender's."""

    keys: tuple[str, ...]
    place: Place
    why: Why
    user: str
    text: str
    ts: str
    team: str = ""
    files: tuple[Json, ...] = ()

    @property
    def in_thread(self) -> bool:
        """Whether it answers in a thread that had begun before it."""
        return self.place.thread is not None and self.place.thread != self.ts


def hear(body: Json, me: Identity) -> Heard | None:
    """Reads an Events API body; None: nothing for us (ours, a bot's, an edit, a channel's other talk)."""
    event = map_at(body, "event")
    if text_at(event, "type") not in ("message", "app_mention") or text_at(event, "subtype") not in _SAID:
        return None
    user, chat, ts = text_at(event, "user"), text_at(event, "channel"), text_at(event, "ts")
    if not (user and chat and ts) or _is_a_bot(event, user, me):
        return None
    why, place = _where(event, chat, ts, me)
    if why is None:
        return None
    team = text_at(body, "team_id")
    return Heard(
        keys=(f"slack:{team}:{text_at(body, 'event_id')}", f"slack:{team}:{chat}:{ts}"),
        place=place,
        why=why,
        user=user,
        text=text_at(event, "text"),
        ts=ts,
        team=text_at(event, "user_team") or text_at(event, "source_team") or text_at(event, "team"),
        files=tuple(maps_at(event, "files")),
    )


def _is_a_bot(event: Json, user: str, me: Identity) -> bool:
    return (
        user in (me.user_id, "USLACKBOT")
        or text_at(event, "bot_id") != ""
        or text_at(event, "app_id") != ""
        or "bot_profile" in event
    )


def _where(event: Json, chat: str, ts: str, me: Identity) -> tuple[Why | None, Place]:
    thread = text_at(event, "thread_ts") or None
    if is_direct(chat) or text_at(event, "channel_type") == "im":
        return Why.DIRECT, Place(CHANNEL, chat, thread)
    place = Place(CHANNEL, chat, thread or ts, "group")
    if text_at(event, "type") == "app_mention" or me.user_id in mentioned(text_at(event, "text")):
        return Why.MENTION, place
    return (Why.THREAD if thread else None), place


def is_direct(chat: str) -> bool:
    """Whether a channel id is a conversation with one person; Slack's ids for those start with D."""
    return chat.startswith("D")


@dataclass(frozen=True, slots=True)
class Slash:
    """A slash command, as one of the bot's own commands. It carries no thread: `place.thread` is None."""

    key: str
    place: Place
    user: str
    text: str
    message_ref: str
    response_url: str


def read_slash(body: Json) -> Slash:
    """`/steadybot status` and `/status` both read as `/status`: Slack keeps some names for itself."""
    chat, user, trigger = (text_at(body, key) for key in ("channel_id", "user_id", "trigger_id"))
    command, rest = text_at(body, "command").lower(), text_at(body, "text").strip()
    if command == OWN_COMMAND:
        command, _, rest = ("/" + (rest.lstrip("/") or "help")).partition(" ")
    elif command.startswith(OWN_COMMAND + "-"):
        command = "/" + command.removeprefix(OWN_COMMAND + "-")
    return Slash(
        key=f"slack:{text_at(body, 'team_id')}:slash:{trigger}",
        place=Place(CHANNEL, chat, None, "direct" if is_direct(chat) else "group"),
        user=user,
        text=f"{command} {rest}".strip(),
        message_ref=slash_ref(user, trigger),
        response_url=text_at(body, "response_url"),
    )


def slash_ref(user: str, trigger: str) -> str:
    """A slash command is no message; its reference tells who alone shall see the answer, after a restart too."""
    return f"slash/{user}/{trigger}"


def slash_user(message_ref: str | None) -> str | None:
    """Whose slash command this is, if it is one."""
    kind, _, rest = (message_ref or "").partition("/")
    return rest.partition("/")[0] if kind == "slash" else None


@dataclass(frozen=True, slots=True)
class Press:
    """A press on a Stop button."""

    request_id: str
    place: Place
    user: str
    message_ts: str
    blocks: tuple[Json, ...]


def read_press(body: Json) -> Press | None:
    chosen = [action for action in maps_at(body, "actions") if text_at(action, "action_id") == CANCEL_ACTION]
    chat = text_at(body, "channel", "id") or text_at(body, "container", "channel_id")
    if not chosen or not chat:
        return None
    message = map_at(body, "message")
    thread = text_at(message, "thread_ts") or text_at(body, "container", "thread_ts") or None
    return Press(
        request_id=text_at(chosen[0], "value"),
        place=Place(CHANNEL, chat, thread, "direct" if is_direct(chat) else "group"),
        user=text_at(body, "user", "id"),
        message_ts=text_at(message, "ts") or text_at(body, "container", "message_ts"),
        blocks=tuple(maps_at(message, "blocks")),
    )


def moment(ts: str) -> datetime:
    """The time in a Slack ts ("1700000000.000100": seconds, and a counter behind the dot)."""
    try:
        return datetime.fromtimestamp(float(ts), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.now(UTC)
