"""Kinds of value in the config: what each may be, told so that the person at the file can mend it.

Where a check here raises ValueError, its text is what stands behind file, line and key. It never holds the value.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_core import PydanticCustomError


def _no_truth(value: object) -> object:
    """pydantic takes `true` for 1; in a config it is a slip."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a number is wanted")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth)]
Number = Annotated[float, Field(allow_inf_nan=False, le=1e9), BeforeValidator(_no_truth)]
Seconds = Annotated[Number, Field(gt=0)]
SecondsOrNone = Annotated[Number, Field(ge=0)]
Delays = Annotated[tuple[SecondsOrNone, ...], Field(max_length=10)]


def _secret(secret: SecretStr) -> SecretStr:
    """A secret from a file often has a line break at its end, which no secret has by itself."""
    value = secret.get_secret_value().strip()
    if not value:
        raise ValueError("is empty; put the secret in, or set the environment variable that it names")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ValueError("holds a blank, a line break or a letter beyond ASCII and can't be right; copy it anew")
    return SecretStr(value)


_TOKEN_KINDS = (
    ("xoxb-", "a bot token (xoxb-)"),
    ("xapp-", "an app token (xapp-)"),
    ("xoxp-", "a user token (xoxp-)"),
    ("xoxe", "a token for rotation (xoxe)"),
    ("xox", "another kind of Slack token"),
    ("sk-", "a model provider's key (sk-)"),
)


def _kind_of_token(value: str) -> str:
    if re.fullmatch(r"\d+:[A-Za-z0-9_-]{30,}", value):
        return "a Telegram bot token"
    if re.fullmatch(r"[0-9a-f]{32}", value):
        return "a signing secret, a client secret or the like"
    return next((kind for start, kind in _TOKEN_KINDS if value.startswith(start)), "something else")


def _telegram_token(secret: SecretStr) -> SecretStr:
    value = secret.get_secret_value()
    if not re.fullmatch(r"\d+:[A-Za-z0-9_-]{30,}", value):
        wrong = _kind_of_token(value)
        if _kind_of_token(value.removeprefix("bot")) == "a Telegram bot token":
            raise ValueError('must not start with "bot", which belongs to the address; take the token alone')
        what = (
            "no Telegram bot token (123456789:AA…)" if wrong == "something else" else f"{wrong}, no Telegram token"
        )
        raise ValueError(f"is {what}; @BotFather gives one with /newbot")
    return secret


def _slack_token(prefix: str, where: str) -> AfterValidator:
    def check(secret: SecretStr) -> SecretStr:
        value = secret.get_secret_value()
        if not value.startswith(prefix):
            raise ValueError(f"must start with {prefix} and this is {_kind_of_token(value)}; take {where}")
        return secret

    return AfterValidator(check)


Secret = Annotated[SecretStr, AfterValidator(_secret)]
TelegramToken = Annotated[Secret, AfterValidator(_telegram_token)]
SlackBotToken = Annotated[
    Secret, _slack_token("xoxb-", "the Bot User OAuth Token, under OAuth & Permissions of your app")
]
SlackAppToken = Annotated[
    Secret, _slack_token("xapp-", "an App-Level Token with connections:write, under Basic Information")
]


def _http_url(url: str) -> str:
    told = "must be an address such as http://127.0.0.1:8080/v1"
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not url.isprintable() or " " in url:
        raise ValueError(told)
    if parts.query or parts.fragment or url[-1] in "?#":
        raise ValueError("must end with its path; take out what follows the ? or #")
    return url


def _telegram_url(url: str) -> str:
    if not url.endswith("/bot"):
        raise ValueError('must end in "/bot", as https://api.telegram.org/bot does')
    return url


def _anthropic_url(url: str) -> str:
    if match := re.search(r"/v1(/messages)?/*$", url):
        raise ValueError(f'must stop before "{match[0]}", which is added to it')
    return url


def _openai_url(url: str) -> str:
    """A path is not asked for: most servers want /v1, and some (DeepSeek's) none."""
    if match := re.search(r"/(chat/completions|completions|responses|models)/*$", url):
        raise ValueError(f'must stop before "{match[0]}", which is added to it; most end in /v1')
    return url


def _slack_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.hostname == "slack.com" and parts.path.rstrip("/") != "/api":
        raise ValueError("must be https://slack.com/api/")
    return url


HttpUrl = Annotated[str, AfterValidator(_http_url)]
TelegramUrl = Annotated[HttpUrl, AfterValidator(_telegram_url)]
AnthropicUrl = Annotated[HttpUrl, AfterValidator(_anthropic_url)]
OpenAIUrl = Annotated[HttpUrl, AfterValidator(_openai_url)]
SlackUrl = Annotated[HttpUrl, AfterValidator(_slack_url)]


def _telegram_id(value: object) -> object:
    if not re.fullmatch(r"[1-9]\d{0,18}", str(value)):
        raise ValueError("must be a person's number; who writes to the bot is told theirs")
    return value


def _slack_id(value: str) -> str:
    if not re.fullmatch(r"[UW][A-Z0-9]+", value):
        raise ValueError("must be a member id such as U012AB3CD: in Slack, the profile, ⋮, Copy member ID")
    return value


def _workspace(value: object) -> object:
    if value != "workspace":
        raise ValueError("must be workspace, or a list of member ids such as [U012AB3CD]")
    return value


Workspace = Annotated[Literal["workspace"], BeforeValidator(_workspace)]
TelegramId = Annotated[int, BeforeValidator(_telegram_id)]
SlackId = Annotated[str, AfterValidator(_slack_id)]
