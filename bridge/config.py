"""Reading the config file: every mistake at once, each on one line with file:line, the key and the mend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from bridge._not_yet import not_yet
from bridge._problems import KeyPath, key_path, nearest, shown, told
from bridge.errors import ConfigError
from bridge.redact import SecretFilter
from bridge.settings import Settings

if TYPE_CHECKING:
    from bridge._yaml import Document

DEFAULT_FILE = Path("config.yaml")

Problem = tuple[int, KeyPath, str]
"""The line, from 1; the keys that lead there; what is wrong, with the mend."""

OTHER_KEYS = {
    "anthropic": (("sk-proj-", "sk-svcacct-"), "OpenAI's"),
    "openai": (("sk-ant-",), "Anthropic's"),
}
"""Keys by whose start one sees that they are another provider's, for kinds that are asked at their own address."""


def load_settings(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings in this file; None: ./config.yaml if it is there, else the defaults (console, offline model).

    Raises ConfigError with every mistake in it.
    """
    if path is None:
        # A link that leads nowhere is there, and a mistake; the defaults would hide it.
        if not os.path.lexists(DEFAULT_FILE):
            return Settings()
        path = DEFAULT_FILE
    return parse_settings(_text_of(path), str(path), environment)


def parse_settings(text: str, name: str, environment: Mapping[str, str]) -> Settings:
    """As `load_settings`, of a text; `name` is what mistakes are reported under."""
    from bridge import _yaml  # YAML is read only where there is a file

    document = _yaml.read(text, environment)
    problems = list(document.problems)
    settings, found = _validated(document)
    known = {path for _, path, _ in problems}
    problems += [(document.line(path), path, what) for path, what in found if path not in known]
    if problems or settings is None:
        raise ConfigError(_lines(name, problems))
    return settings


def json_schema() -> dict[str, object]:
    """The config's JSON schema, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file; copy config.example.yaml to it") from None
    except IsADirectoryError:
        raise _unreadable(path, "this is a folder; name the file in it") from None
    except UnicodeDecodeError:
        raise _unreadable(path, "this is no UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise _unreadable(path, f"can't be read ({error.strerror}); mend its permissions") from None


def _unreadable(path: Path, what: str) -> ConfigError:
    return ConfigError([f"{shown(path)}: {what}"])


def _lines(name: str, problems: list[Problem]) -> list[str]:
    """In the order of the file. A secret that was pasted into the wrong place is not told either."""
    hide = SecretFilter()
    found: dict[str, None] = {}  # in order, each once
    for line, path, what in sorted(problems, key=lambda problem: problem[0]):
        key = ".".join(str(part) for part in path)
        found[hide(shown(f"{name}:{line}: {key}: {what}" if path else f"{name}:{line}: {what}"))] = None
    return list(found)


def _validated(document: Document) -> tuple[Settings | None, list[tuple[KeyPath, str]]]:
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        return None, [((), "must be a block of keys at its top")]
    found: list[tuple[KeyPath, str]] = []
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path = key_path(details["loc"], details["type"], data)
            found.append((path, told(details, path, show=path not in document.filled)))
    seen = {path for path, _ in found}
    more = [*not_yet(data), *_channel_problems(data), *_provider_problems(data, document.filled)]
    return settings, found + [(path, what) for path, what in more if path not in seen]


def _channel_problems(data: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    channels = data.get("channels", {"console": {}})
    if channels is None or channels == {}:
        yield ("channels",), "names no channel; switch one on, for instance console: {}"
    if isinstance(channels, dict):
        for name, section in channels.items():
            if section is None:
                yield ("channels", name), "is empty; write {} behind it to switch it on, or take it out"
        yield from _webhook_problems(_block(channels, "telegram"))


def _webhook_problems(telegram: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    """That mode and block fit each other; what is in the block, the channel itself looks at when it starts."""
    path = ("channels", "telegram", "webhook")
    if telegram.get("mode") == "webhook":
        if not telegram.get("webhook"):
            yield path, 'is missing; mode webhook needs it: {url: "https://bot.example.org/telegram"}'
    elif telegram.get("webhook"):
        yield path, "is for mode: webhook; set that, or take this out"


def _provider_problems(data: Mapping[str, object], filled: Set[KeyPath]) -> Iterator[tuple[KeyPath, str]]:
    """Names that must fit each other, and keys that are another provider's. What a variable held is not told."""
    providers = _block(data, "providers")
    names = [*providers, "offline"]
    agent = _block(data, "agent")
    provider = agent.get("provider")
    if provider in (None, "") and len(providers) > 1:
        several = ", ".join(providers)
        yield ("agent", "provider"), f"is missing; say which of your providers answers: {several}"
    elif isinstance(provider, str) and provider and provider not in names:
        path: KeyPath = ("agent", "provider")
        yield path, _unknown_provider(provider, names, show=path not in filled)
    fallback = agent.get("fallback")
    before = [provider or next(iter(providers), "offline")]
    for index, name in enumerate(fallback if isinstance(fallback, list) else []):
        path = ("agent", "fallback", index)
        if isinstance(name, str) and name not in names:
            yield path, _unknown_provider(name, names, show=path not in filled)
        elif name in before:
            yield path, "is asked before already; take it out"
        before.append(name)
    for name in providers:
        yield from _other_keys(name, _block(providers, name))


def _other_keys(name: str, provider: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    key, kind = provider.get("api_key"), provider.get("kind")
    if isinstance(key, str) and isinstance(kind, str) and kind in OTHER_KEYS and not provider.get("base_url"):
        starts, whose = OTHER_KEYS[kind]
        if key.strip().startswith(starts):
            yield ("providers", name, "api_key"), f"is {whose} key, and the kind is {kind}; give that one's key"


def _block(data: Mapping[str, object], key: str) -> dict[str, object]:
    block = data.get(key)
    return block if isinstance(block, dict) else {}


def _unknown_provider(name: str, names: list[str], *, show: bool) -> str:
    what = f'there is no provider "{name}"' if show else "there is no such provider"
    near = nearest(name, names)
    return f'{what}; did you mean "{near}"?' if near else f"{what}; known: {', '.join(names)}"
