"""What Slack's refusals mean: the one place where its error codes are read."""

from __future__ import annotations

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from channels.base import ChannelError, ChannelSetupError, TryLater, Undeliverable

RATE_LIMITED = "ratelimited"
UNREACHABLE = "unreachable"
NO_ANSWER = "no_answer"
SERVER_ERROR = "server_error"

DEFAULT_RETRY_AFTER = 30.0  # seconds, where a 429 names none

_RATE = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
# These may have done something before they failed (Slack's own words on both).
_SERVER = frozenset({"internal_error", "fatal_error"})
_BUSY = frozenset({"service_unavailable", "request_timeout", "team_added_to_org", "update_failed"})

MARKUP = frozenset(
    {
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_block_type",
        "msg_blocks_too_long",
        "msg_too_long",
        "markdown_text_conflict",
        "invalid_arguments",
        "no_text",
    }
)
GONE_MESSAGE = frozenset(
    {"message_not_found", "cant_update_message", "edit_window_closed", "cant_delete_message", "invalid_ts"}
)
NO_FEATURE = frozenset(
    {
        "unknown_method",
        "method_not_supported_for_channel_type",
        "channel_type_not_supported",
        "feature_not_enabled",
        "not_allowed",
        "not_allowed_token_type",
        "missing_scope",
        "invalid_arguments",
        "invalid_thread_ts",
        "missing_recipient_team_id",
        "missing_recipient_user_id",
        "team_not_found",
        "access_denied",
    }
)
_TOKEN = frozenset(
    {
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "not_allowed_token_type",
        "org_login_required",
        "team_access_not_granted",
    }
)
_PLACE = {
    "channel_not_found": "the channel is gone, or the bot is not in it: /invite it there",
    "not_in_channel": "the bot is not in this channel: /invite it there",
    "is_archived": "the channel is archived",
    "channel_is_archived": "the channel is archived",
    "user_not_in_channel": "the person is not in this channel",
    "user_not_found": "the person is gone",
    "user_disabled": "the person is deactivated",
    "cannot_dm_bot": "the other side is a bot",
    "messages_tab_disabled": "switch the Messages Tab on under App Home in the app's settings",
    "thread_not_found": "the thread is gone",
    "thread_locked": "the thread is locked",
    "restricted_action": "the workspace does not let the bot write here",
    "restricted_action_read_only_channel": "only some people may write in this channel",
    "restricted_action_thread_only_channel": "only threads may be written to in this channel",
    "restricted_action_thread_locked": "the thread is locked",
    "restricted_action_non_threadable_channel": "this channel has no threads",
    "ekm_access_denied": "the workspace's administrators suspended posting",
    "no_permission": "the bot may not write here",
    "access_denied": "the bot may not write here",
}


class SlackFault(Exception):
    """A call that Slack did not grant. `code` is Slack's own, or one of this module's for the network.

    `retry_after` is in seconds; `uncertain` means that the call may have taken effect all the same; `needed` is
    the scope that was missing.
    """

    def __init__(
        self,
        method: str,
        code: str,
        *,
        retry_after: float | None = None,
        uncertain: bool = False,
        needed: str = "",
    ) -> None:
        super().__init__(f"{method}: {code}")
        self.method = method
        self.code = code
        self.retry_after = retry_after
        self.uncertain = uncertain
        self.needed = needed

    @property
    def token_is_bad(self) -> bool:
        return self.code in _TOKEN


def fault_of(method: str, error: SlackApiError | aiohttp.ClientError | TimeoutError) -> SlackFault:
    """The fault behind whatever the SDK raised. Its text holds neither a token nor what was sent."""
    if isinstance(error, SlackApiError):
        return _from_answer(method, error)
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return SlackFault(method, UNREACHABLE)
    return SlackFault(method, NO_ANSWER, uncertain=True)


def _from_answer(method: str, error: SlackApiError) -> SlackFault:
    response = error.response
    if not isinstance(response, AsyncSlackResponse) or not isinstance(response.data, dict):
        return SlackFault(method, SERVER_ERROR, uncertain=True)
    code = str(response.data.get("error") or "")
    if response.status_code == 429 or code in _RATE:
        return SlackFault(method, RATE_LIMITED, retry_after=_retry_after(response))
    if code in _SERVER or (response.status_code >= 500 and not code):
        return SlackFault(method, SERVER_ERROR, uncertain=True)
    return SlackFault(
        method, code or f"http_{response.status_code}", needed=str(response.data.get("needed") or "")
    )


def _retry_after(response: AsyncSlackResponse) -> float:
    for name, value in dict(response.headers).items():
        if str(name).lower() == "retry-after":
            try:
                return max(0.0, float(value))
            except ValueError:
                break
    return DEFAULT_RETRY_AFTER


def delivery_error(fault: SlackFault) -> TryLater | Undeliverable:
    """What `Channel.deliver` raises for a fault."""
    if fault.code == RATE_LIMITED:
        return TryLater(f"Slack asks to wait ({fault.method})", fault.retry_after)
    if fault.code in _PLACE:
        return Undeliverable(f"Slack: {fault.code}: {_PLACE[fault.code]}")
    if fault.token_is_bad:
        return Undeliverable(f"Slack: {fault.code}: channels.slack.bot_token no longer works; put in a new one")
    if fault.code == "missing_scope":
        return Undeliverable(f"Slack: {_scope_line(fault)}")
    if fault.code in {UNREACHABLE, NO_ANSWER, SERVER_ERROR} or fault.code in _BUSY:
        return TryLater(f"Slack could not be reached ({fault})", uncertain=fault.uncertain)
    return TryLater(f"Slack refused ({fault})", uncertain=fault.uncertain)


def setup_error(fault: SlackFault, key: str) -> ChannelError:
    """What `Channel.start` raises for a fault of a call that was made with the token under config `key`."""
    if fault.code == "missing_scope":
        return ChannelSetupError(f"channels.slack.{key}: {_scope_line(fault)}")
    if fault.token_is_bad:
        return ChannelSetupError(f"channels.slack.{key}: Slack says {fault.code}; {_TOKEN_HINT[key]}")
    return ChannelSetupError(f"channels.slack: Slack could not be asked ({fault})")


_TOKEN_HINT = {
    "bot_token": "put in the Bot User OAuth Token (xoxb-…) from OAuth & Permissions in the app's settings",
    "app_token": "put in an App-Level Token (xapp-…) with the scope connections:write from Basic Information in "
    "the app's settings, and switch Socket Mode on",
}


def _scope_line(fault: SlackFault) -> str:
    scope = fault.needed or "one that " + fault.method + " needs"
    return f"missing scope: {scope}; add it under OAuth & Permissions and install the app again"
