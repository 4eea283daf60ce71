"""The config file: every mistake at once, each with its line and the mend (bridge-and-channels §2)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import json_schema, load_settings, parse_settings, secrets_of
from bridge.errors import ConfigError
from bridge.settings import Section, Settings

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"
TELEGRAM = "123456789:AAFakeTokenForTestsOnly_0123456789abc"
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef",
    "OPENAI_API_KEY": "sk-0123456789abcdef0123",
    "TELEGRAM_BOT_TOKEN": TELEGRAM,
    "SLACK_BOT_TOKEN": "xoxb-1-fake-bot-token",
    "SLACK_APP_TOKEN": "xapp-1-fake-app-token",
}


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "c.yaml", environment)
    assert caught.value.exit_code == 2
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dat_dir: x\n", ['c.yaml:1: dat_dir: unknown key; did you mean "data_dir"?']),
        (
            "channels:\n  telegram:\n    tokn: x\n",
            [
                "c.yaml:2: channels.telegram.token: is missing; add it",
                'c.yaml:3: channels.telegram.tokn: unknown key; did you mean "token"?',
            ],
        ),
        (
            "providers:\n  claude:\n    kind: anthropic\n    model: m\n    api_key: ${KEY_A}\n",
            [
                "c.yaml:5: providers.claude.api_key: environment variable KEY_A is not set; "
                "set it, or give a default: ${KEY_A:-…}"
            ],
        ),
        (
            "providers:\n  claude: {kind: anthropic, model: m, api_key: ''}\n",
            [
                "c.yaml:2: providers.claude.api_key: is empty; put the key in, or set the environment variable that "
                "it names"
            ],
        ),
        (
            "providers:\n  c: {kind: antropic}\n",
            ['c.yaml:2: providers.c: kind must be "anthropic", "openai" or "offline"'],
        ),
        (
            "providers:\n  c: {model: m}\n",
            ['c.yaml:2: providers.c: needs a kind: "anthropic", "openai" or "offline"'],
        ),
        (
            "providers:\n  c: {kind: offline, model: m}\n",
            ["c.yaml:2: providers.c.model: this kind has no such key; take it out"],
        ),
        (
            "providers:\n  c: {kind: anthropic, model: m, api_key: keykey, base_url: 'https://x.example/v1'}\n",
            ['c.yaml:2: providers.c.base_url: must not end in "/v1"; the SDK adds that'],
        ),
        (
            "providers:\n  claude: {kind: offline}\n  gpt: {kind: offline}\n",
            ["c.yaml:1: agent.provider: is missing; say which of your providers answers: claude, gpt"],
        ),
        (
            "providers:\n  claude: {kind: offline}\nagent:\n  provider: cloude\n  fallback: [nobody]\n",
            [
                'c.yaml:4: agent.provider: there is no provider "cloude"; did you mean "claude"?',
                'c.yaml:5: agent.fallback.0: there is no provider "nobody"; known: claude, offline',
            ],
        ),
        (
            "agent:\n  max_turns: none\n  tool_timeout: -1\n",
            [
                "c.yaml:2: agent.max_turns: must be a whole number",
                "c.yaml:3: agent.tool_timeout: must be greater than 0",
            ],
        ),
        ("data_dir: a\ndata_dir: b\n", ["c.yaml:2: data_dir: stands here a second time; keep one"]),
        ("a: [1\n", ["c.yaml:2: this is no YAML: expected ',' or ']', but got '<stream end>'"]),
        ("a:\n\tb: 1\n", ["c.yaml:2: this is no YAML: found character '\\t' that cannot start any token"]),
        ("- a\n", ["c.yaml:1: must be a block of keys at its top"]),
        ("just text", ["c.yaml:1: must be a block of keys at its top"]),
        (
            "channels:\n  slack: {bot_token: xoxp-1-user, app_token: xoxb-2-bot}\n",
            [
                "c.yaml:2: channels.slack.bot_token: must start with xoxb- and this is a user token; take the Bot User "
                "OAuth Token, under OAuth & Permissions of your app",
                "c.yaml:2: channels.slack.app_token: must start with xapp- and this is a bot token; take an App-Level "
                "Token with connections:write, under Basic Information",
            ],
        ),
        (
            "channels:\n  telegram: {token: '12:short'}\n",
            [
                "c.yaml:2: channels.telegram.token: is no bot token (they look like 123456789:AA…); @BotFather gives "
                "one with /newbot"
            ],
        ),
        (
            f"channels:\n  telegram:\n    token: '{TELEGRAM}'\n    base_url: https://api.telegram.org\n    mode: webhook\n",
            [
                'c.yaml:4: channels.telegram.base_url: must be an http(s) address that ends in "/bot", as '
                "https://api.telegram.org/bot does",
                'c.yaml:5: channels.telegram.mode: "webhook" is not in this version yet; take it out',
            ],
        ),
        (
            "channels:\n  telegram:\n",
            ["c.yaml:2: channels.telegram: is empty; write {} behind it to switch it on, or take it out"],
        ),
        ("channels: {}\n", ["c.yaml:1: channels: names no channel; switch one on, for instance console: {}"]),
        (
            "tools:\n  web_fetch: {enabled: true}\n  mcp: {x: {command: [y]}}\nhealth: {port: 8080}\n",
            [
                "c.yaml:2: tools.web_fetch: is not in this version yet; take it out",
                "c.yaml:3: tools.mcp: is not in this version yet; take it out",
                "c.yaml:4: health.port: is not in this version yet; take it out",
            ],
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_its_key_and_the_mend(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


def test_secrets_are_never_told() -> None:
    told = problems(
        "channels:\n  slack: {bot_token: my-secret-value, app_token: ${APP}}\n", APP="other-secret-value"
    )
    assert "secret-value" not in "".join(told)


def test_variables_fill_texts_with_defaults_and_escapes() -> None:
    text = "data_dir: '${HOME_DIR}/${SUB:-bot}$${X}'\nhealth: {host: '${HOST:-}x'}\n"
    settings = parse_settings(text, "c.yaml", {"HOME_DIR": "/srv"})
    assert settings.data_dir == "/srv/bot${X}"
    assert settings.health.host == "x"


def test_numbers_may_come_from_variables() -> None:
    assert parse_settings("agent: {max_turns: '${N}'}\n", "c.yaml", {"N": "7"}).agent.max_turns == 7


def test_no_file_means_the_console_and_the_offline_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {})
    assert settings.channels.console is not None
    assert settings.providers == {}
    (tmp_path / "config.yaml").write_text("data_dir: elsewhere\n", encoding="utf-8")
    assert load_settings(None, {}).data_dir == "elsewhere"


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n", encoding="utf-8")
    assert load_settings(tmp_path / "c.yaml", {}) == Settings()


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"data_dir: caf\xe9\n")
    for path, says in (
        (tmp_path / "no.yaml", "no such file"),
        (tmp_path, "folder"),
        (tmp_path / "latin.yaml", "UTF-8"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            load_settings(path, {})
        assert len(caught.value.problems) == 1


def test_the_example_starts_as_it_is() -> None:
    settings = load_settings(EXAMPLE, {})
    assert settings == parse_settings("", "x", {}).model_copy(
        update={"providers": settings.providers, "agent": settings.agent, "tools": settings.tools}
    )
    assert settings.agent.provider == "offline"


def everything_on() -> str:
    return re.sub(r"^#(  .*)$", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_example_with_everything_on_is_right_too() -> None:
    settings = parse_settings(everything_on(), "example", KEYS)
    assert set(settings.providers) == {"offline", "claude", "gpt", "local"}
    assert settings.channels.telegram is not None
    assert settings.channels.slack is not None


def test_the_example_names_every_key_with_its_default() -> None:
    settings = parse_settings(everything_on(), "example", KEYS)
    required = {"model", "api_key", "kind", "token", "bot_token", "app_token", "provider", "base_url"}

    def look(section: Section, path: str) -> None:
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            if isinstance(value, Section):
                look(value, f"{path}{name}.")
            elif not isinstance(value, dict):
                assert name in section.model_fields_set or path.startswith("providers.local"), f"{path}{name}"
                if name not in required:
                    assert value == field.get_default(call_default_factory=True), f"{path}{name}"

    look(settings, "")
    for name, provider in settings.providers.items():
        look(provider, f"providers.{name}.")


def test_the_schema_is_one_and_tells_what_keys_are_for() -> None:
    schema = json.dumps(json_schema())
    assert '"max_context_turns"' in schema
    assert "messages that wait in one conversation" in schema


def test_all_secrets_of_the_settings_are_known() -> None:
    settings = parse_settings(everything_on(), "example", KEYS)
    assert secrets_of(settings) == set(KEYS.values())


@given(
    st.text(max_size=200)
    | st.recursive(
        st.sampled_from(
            ["a", "channels", "{", "}", ":", "\n  ", "- ", "${X}", "!!python/object:os.system", "&a", "*a"]
        ),
        lambda inner: st.lists(inner, max_size=6).map("".join),
    )
)
def test_any_text_is_settings_or_a_config_error(text: str) -> None:
    try:
        parse_settings(text, "c.yaml", {})
    except ConfigError as error:
        assert all(line.startswith("c.yaml:") and "\n" not in line for line in error.problems)
