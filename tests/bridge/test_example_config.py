"""The example file: it starts as it is, and shows every key with its default and a word on it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bridge.config import load_settings, parse_settings
from bridge.settings import Section, Settings
from tests.bridge.configs import EXAMPLE, KEYS, everything_on

CHOSEN = {"kind", "model", "api_key", "token", "bot_token", "app_token"}
"""Keys without a default."""

BLOCKS = ("log", "providers", "agent", "tools", "session", "channels", "health")


def shown() -> Settings:
    return parse_settings(everything_on(), "example", KEYS)


def sections(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    yield path, section
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = value if isinstance(value, dict) else {name: value}
        for key, each in inner.items():
            if isinstance(each, Section):
                yield from sections(each, f"{path}{key if inner is not value else f'{name}.{key}'}.")


def test_copied_as_it_is_it_starts_on_the_console_with_the_offline_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(EXAMPLE, tmp_path / "config.yaml")
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {})
    assert settings.agent.provider == "offline"
    assert settings.providers["offline"].kind == "offline"
    assert settings.channels.console is not None
    assert settings.channels.telegram is None
    assert settings.channels.slack is None


def test_copied_as_it_is_it_is_the_same_as_no_file_at_all() -> None:
    here, nothing = load_settings(EXAMPLE, {}), Settings()
    assert here.model_dump(exclude={"providers", "agent"}) == nothing.model_dump(exclude={"providers", "agent"})
    assert here.agent.model_dump(exclude={"provider"}) == nothing.agent.model_dump(exclude={"provider"})


def test_the_level_of_the_log_is_left_open_so_that_the_console_stays_quiet() -> None:
    assert "level" not in load_settings(EXAMPLE, {}).log.model_fields_set


def test_with_everything_on_it_is_right_too() -> None:
    settings = shown()
    assert set(settings.providers) == {"offline", "claude", "gpt", "local"}
    assert {provider.kind for provider in settings.providers.values()} == {"offline", "anthropic", "openai"}
    assert settings.channels.telegram is not None
    assert settings.channels.slack is not None


def test_each_part_can_be_switched_on_alone() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    parts = re.findall(r"^  # [a-z]+:.*\n(?:  #   .*\n)*", text, flags=re.MULTILINE)
    assert [part.split(":")[0] for part in parts] == [
        f"  # {name}" for name in ("level", "claude", "gpt", "local", "telegram", "slack")
    ]
    for part in parts:
        taken_in = re.sub(r"^  # ", "  ", part, flags=re.MULTILINE)
        parse_settings(text.replace(part, taken_in), "example", KEYS)


def test_every_key_is_there_with_its_default() -> None:
    for path, section in sections(shown()):
        for name, field in type(section).model_fields.items():
            if path == "providers.local.":
                continue  # the short form; "gpt" is of the same kind
            assert name in section.model_fields_set, f"{path}{name} is missing"
            value = getattr(section, name)
            if (
                name not in CHOSEN
                and not isinstance(value, Section)
                and f"{path}{name}"
                not in (
                    "providers",
                    "agent.provider",
                )
            ):
                assert value == field.get_default(call_default_factory=True), f"{path}{name}"


def test_every_kind_of_section_is_there() -> None:
    found = {type(section) for _, section in sections(shown())}
    known, look = set(), [Section]
    while look:
        kinds = look.pop().__subclasses__()
        known.update(kinds)
        look.extend(kinds)
    # The common part of two providers is never a section by itself.
    assert {kind.__name__ for kind in known - found} <= {"_Remote"}


def test_every_key_has_a_word_on_it_once() -> None:
    lines = [line for line in everything_on().splitlines() if re.match(r" *[a-z_]+:", line)]
    told = {match[1] for line in lines if "#" in line and (match := re.match(r" *([a-z_]+):", line))}
    keys = {match[1] for line in lines if (match := re.match(r" *([a-z_]+):", line))}
    obvious = {"claude", "gpt", "model", "api_key", "token", "system_prompt", *BLOCKS}
    assert keys - told - obvious == set()


def test_it_is_in_the_order_of_the_settings() -> None:
    node = yaml.safe_load(everything_on())
    assert list(node) == list(Settings.model_fields)
    for name in ("agent", "tools", "session", "channels", "health", "log"):
        kind = Settings.model_fields[name].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        assert list(node[name]) == list(kind.model_fields)


def test_no_line_of_its_comments_names_a_key_that_is_not_there() -> None:
    for path in re.findall(
        r"\b((?:agent|session|channels|providers)\.[a-z_.]+)", EXAMPLE.read_text(encoding="utf-8")
    ):
        section, _, key = path.rstrip(".").partition(".")
        assert key in type(getattr(Settings(), section)).model_fields, path
