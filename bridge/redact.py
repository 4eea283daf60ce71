"""No secret in what is told: not in logs, in errors, or in a dump of the settings (bridge-and-channels §2)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr

HIDDEN = "[hidden]"

SHORTEST = 6
"""Characters. A shorter one is a word for a server without keys ("none"), and would blacken the whole log."""

STAND_INS = frozenset({"ollama", "no-key", "nokey", "not-needed", "lm-studio", "unused"})
"""Other words that people write where a server wants no key."""

SHAPES = re.compile(
    r"""
    (?<!\d)\d{6,}(?::|%3A)[A-Za-z0-9_-]{30,}            # a Telegram bot token, also inside a URL
    | \bx(?:ox[a-z](?:\.xox[a-z])?|app)-[A-Za-z0-9-]{8,}  # Slack's tokens
    | \bsk-[A-Za-z0-9_-]{16,}                           # keys of OpenAI, Anthropic and many that follow them
    | \b(?:gsk_|xai-|hf_|nvapi-|pplx-)[A-Za-z0-9_-]{16,}
    | \bAIza[A-Za-z0-9_-]{30,}                          # Google's
    | (?<=(?i:Bearer)\ )[A-Za-z0-9._~+/-]{8,}=*
    | (?<=(?i:Bearer)%20)[A-Za-z0-9._~-]{8,}
    | (?<=[?&]ticket=)[^&\s"'\\]+                       # Slack's WebSocket address
    | (?<=[?&]token=)[^&\s"'\\]+
    | (?<=[?&]key=)[^&\s"'\\]+
    | (?<=://)[^/\s:@"'\\]*:[^/\s@"'\\]+(?=@)           # name and password in an address
    """,
    re.VERBOSE,
)
"""What a secret looks like, for those that are not in our config (a library's, a user's)."""


SECRET_KEYS = re.compile("secret|token|key|passw", re.IGNORECASE)
"""Keys, in blocks that are kept as they are (an MCP server's env), whose values are secrets."""


class SecretFilter:
    """Replaces secrets in text: those given, as they are and as they stand in URLs, JSON and Python's quotes, and
    whatever looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if secret for form in _forms(secret)}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return SHAPES.sub(HIDDEN, text)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield repr(secret)[1:-1]
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
    for safe in ("", "/"):
        # Half a surrogate pair has no form in a URL.
        yield quote(secret, safe=safe, errors="replace")


def secrets_of(settings: BaseModel) -> set[str]:
    """Every secret in the settings that is long enough to be one, passwords in addresses included."""
    found: set[str] = set()
    values: list[object] = [settings]
    while values:
        value = values.pop()
        if isinstance(value, SecretStr):
            found.add(value.get_secret_value())
        elif isinstance(value, BaseModel):
            values.extend(getattr(value, name) for name in type(value).model_fields)
        elif isinstance(value, dict):
            values.extend(value.values())
            found.update(each for key, each in value.items() if isinstance(each, str) and SECRET_KEYS.search(key))
        elif isinstance(value, str) and "@" in value and (password := _password(value)):
            found.update((password, unquote(password)))
    return {secret for secret in found if len(secret) >= SHORTEST and secret.lower() not in STAND_INS}


def _password(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None


def settings_dump(settings: BaseModel) -> dict[str, object]:
    """The settings as plain values, for a person to look at; every secret in them is HIDDEN."""
    hide = SecretFilter(secrets_of(settings))

    def plain(value: object) -> object:
        match value:
            case SecretStr():
                return HIDDEN
            case str():
                return hide(value)
            case dict():
                return {str(key): plain(each) for key, each in value.items()}
            case list() | tuple():
                return [plain(each) for each in value]
        return value

    return {name: plain(value) for name, value in settings.model_dump().items()}
