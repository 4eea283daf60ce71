"""What Telegram's refusals mean: the one place where the SDK's errors and the Bot API's words are read."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
    TimedOut,
)

from channels.base import ChannelSetupError, TryLater, Undeliverable

TOKEN_MEND = "Telegram refuses the token under channels.telegram.token; put in the one that @BotFather gave you"  # noqa: S105
CONFLICT_MEND = (
    "channels.telegram: another program polls Telegram with the same token, and only one can; stop the other one, "
    "or give this one a bot of its own"
)
WEBHOOK_MEND = (
    "channels.telegram: a webhook is set for this bot, so Telegram refuses polling; remove it with the Bot API's "
    "deleteWebhook, or stop the program that set it"
)


class FaultKind(StrEnum):
    """What to do about a call that was not granted."""

    RATE = "rate"
    NOT_MODIFIED = "not_modified"
    NO_MESSAGE = "no_message"
    MARKUP = "markup"
    NO_PLACE = "no_place"
    NO_METHOD = "no_method"
    TOKEN = "token"  # noqa: S105
    POLLED_ELSEWHERE = "polled_elsewhere"
    WEBHOOK_SET = "webhook_set"
    MIGRATED = "migrated"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


class TelegramFault(Exception):
    """A call that Telegram did not grant; its text holds neither the token nor what was sent.

    `after` is in seconds, `uncertain` means that the call may have taken effect all the same, `moved_to` is the
    chat's new id.
    """

    def __init__(
        self,
        method: str,
        kind: FaultKind,
        detail: str = "",
        *,
        after: float | None = None,
        uncertain: bool = False,
        moved_to: int | None = None,
    ) -> None:
        super().__init__(f"{method}: {detail or kind}")
        self.method = method
        self.kind = kind
        self.after = after
        self.uncertain = uncertain
        self.moved_to = moved_to


# Parts of the Bot API's descriptions, in lower case.
_WORDS: tuple[tuple[FaultKind, tuple[str, ...]], ...] = (
    (FaultKind.NOT_MODIFIED, ("message is not modified",)),
    (
        FaultKind.NO_MESSAGE,
        (
            "message to edit not found",
            "message can't be edited",
            "message to delete not found",
            "message can't be deleted",
            "message_id_invalid",
            "message not found",
        ),
    ),
    (FaultKind.MARKUP, ("can't parse", "entit", "message is too long", "message_too_long", "unsupported url")),
    (
        FaultKind.NO_PLACE,
        (
            "chat not found",
            "thread not found",
            "topic_deleted",
            "topic_closed",
            "topic_id_invalid",
            "peer_id_invalid",
            "user is deactivated",
            "user not found",
            "group chat was deactivated",
            "not enough rights",
            "no rights to send",
            "have no write access",
            "chat_write_forbidden",
            "chat_restricted",
            "user_is_blocked",
            "bot was kicked",
            "bot is not a member",
        ),
    ),
)

# The request never left, or never got there.
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})


def fault_of(method: str, error: TelegramError) -> TelegramFault:
    """The fault behind what the SDK raised.

    BadRequest is a NetworkError to the SDK, so it comes first; an unknown method and a refused token are both an
    InvalidToken, and only the words tell them apart.
    """
    match error:
        case RetryAfter():
            return TelegramFault(method, FaultKind.RATE, after=seconds(error.retry_after))
        case ChatMigrated():
            return TelegramFault(method, FaultKind.MIGRATED, moved_to=error.new_chat_id)
        case Forbidden():
            return TelegramFault(method, FaultKind.NO_PLACE, _words(error))
        case BadRequest():
            return TelegramFault(method, _kind_of(error.message), _words(error))
        case Conflict():
            webhook = "webhook" in error.message.lower()
            return TelegramFault(method, FaultKind.WEBHOOK_SET if webhook else FaultKind.POLLED_ELSEWHERE)
        case InvalidToken() | EndPointNotFound():
            # A malformed token is "Not Found" as well; where one can be meant, both are told as the token's.
            missing = "not found" in error.message.lower()
            return TelegramFault(method, FaultKind.NO_METHOD if missing else FaultKind.TOKEN)
        case NetworkError():
            return _network(method, error)
        case _:
            return TelegramFault(method, FaultKind.REFUSED, type(error).__name__, uncertain=True)


def seconds(period: int | timedelta) -> float:
    return period.total_seconds() if isinstance(period, timedelta) else float(period)


def _kind_of(words: str) -> FaultKind:
    words = words.lower()
    return next((kind for kind, parts in _WORDS if any(part in words for part in parts)), FaultKind.REFUSED)


def _words(error: TelegramError) -> str:
    return error.message[:200]


def _network(method: str, error: NetworkError) -> TelegramFault:
    """The error's own text is left out: the HTTP library's may hold the URL, and that holds the token."""
    cause = type(error.__cause__).__name__ if error.__cause__ is not None else "HTTP error"
    kind = FaultKind.TIMED_OUT if isinstance(error, TimedOut) else FaultKind.UNREACHABLE
    return TelegramFault(method, kind, cause, uncertain=cause not in _NOT_SENT)


def delivery_error(fault: TelegramFault) -> TryLater | Undeliverable:
    """What `Channel.deliver` raises for a fault."""
    if fault.kind is FaultKind.RATE:
        return TryLater(f"Telegram asks to wait ({fault.method})", fault.after)
    if fault.kind is FaultKind.NO_PLACE:
        return Undeliverable(f"Telegram: {fault}")
    if fault.kind is FaultKind.TOKEN:
        return TryLater(TOKEN_MEND)
    return TryLater(f"Telegram did not take it ({fault})", uncertain=fault.uncertain)


def setup_error(fault: TelegramFault) -> ChannelSetupError:
    """What `Channel.start` and `Channel.run` raise for a fault with which there is no going on."""
    match fault.kind:
        case FaultKind.TOKEN | FaultKind.NO_METHOD:
            return ChannelSetupError(TOKEN_MEND)
        case FaultKind.POLLED_ELSEWHERE:
            return ChannelSetupError(CONFLICT_MEND)
        case FaultKind.WEBHOOK_SET:
            return ChannelSetupError(WEBHOOK_MEND)
        case _:
            return ChannelSetupError(
                f"channels.telegram: Telegram can't be asked ({fault}); look at the network and at "
                "channels.telegram.base_url"
            )
