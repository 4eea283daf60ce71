"""The config file: every mistake at once, each with its line and the mend (bridge-and-channels §2)."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from bridge.config import json_schema, load_settings, parse_settings
from bridge.errors import ConfigError
from bridge.settings import Section, Settings, types_in
from tests.bridge.configs import EXAMPLE, KEYS, everything_on

TELEGRAM = KEYS["TELEGRAM_BOT_TOKEN"]


def problems(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text, "c.yaml", environment)
    assert caught.value.exit_code == 2
    return caught.value.problems


def telegram(keys: str) -> str:
    return f"channels:\n  telegram:\n    token: '{TELEGRAM}'\n    {keys}\n"


def slack(keys: str) -> str:
    return f"channels:\n  slack:\n    bot_token: xoxb-1\n    app_token: xapp-1\n    {keys}\n"


def provider(keys: str) -> str:
    return f"providers:\n  p: {{kind: openai, model: m, api_key: none, {keys}}}\n"


NO_YAML = "this is no YAML: "
KNOWN = "known here: agent, channels, data_dir, health, log, providers, retention_days, session, tools"
NOT_YET = "is not in this version yet; take it out"

MISTAKES: dict[str, list[tuple[str, list[str]]]] = {
    "keys": [
        ("dat_dir: x\n", ['1: dat_dir: unknown key; did you mean "data_dir"?']),
        ("zzz: x\n", [f"1: zzz: unknown key; {KNOWN}"]),
        ("zzz: ''\n", [f"1: zzz: unknown key; {KNOWN}"]),
        ("zzz:\n", [f"1: zzz: unknown key; {KNOWN}"]),
        ('"a\\nb\\e[2J": 1\n', [f"1: a\\nb\\x1b[2J: unknown key; {KNOWN}"]),
        (
            "channels:\n  telegram:\n    tokn: x\n",
            [
                "2: channels.telegram.token: is missing; add it",
                '3: channels.telegram.tokn: unknown key; did you mean "token"?',
            ],
        ),
        (
            "providers:\n  c: {kind: offline, model: m}\n",
            ["2: providers.c.model: this kind has no such key; take it out"],
        ),
        (
            "providers:\n  c: {kind: offline, api_key: none}\n",
            ["2: providers.c.api_key: this kind has no such key; take it out"],
        ),
        (
            "providers:\n  anthropic: {kind: anthropic, api_key: none, modle: m}\n",
            [
                "2: providers.anthropic.model: is missing; add it",
                '2: providers.anthropic.modle: unknown key; did you mean "model"?',
            ],
        ),
        (
            "data_dir: a\nlog: {level: info}\ndata_dir: b\n",
            ["3: data_dir: stands here a second time, after line 1; keep one"],
        ),
        ("agent: {? [a] : 1}\n", ["1: agent: a key must be a plain word"]),
        ("channels:\n  discord:\n", ["2: channels.discord: unknown key; known here: console, slack, telegram"]),
    ],
    "YAML": [
        ("a: [1\nb: 2\n", [f"1: {NO_YAML}in this [ ] the end, a comma, or the quotes of a ${{NAME}} are missing"]),
        (
            "a: {b: 1\nc: 2\n",
            [f"1: {NO_YAML}in this {{ }} the end, a comma, or the quotes of a ${{NAME}} are missing"],
        ),
        (
            "log: {level: ${LEVEL}, format: json}\n",
            [f"1: {NO_YAML}in this {{ }} the end, a comma, or the quotes of a ${{NAME}} are missing"],
        ),
        ("a:\n\tb: 1\n", [f"2: {NO_YAML}a tab stands here; YAML is indented with blanks only"]),
        ("a: @x\n", [f"1: {NO_YAML}a text can't start with this character; put it in quotes"]),
        ("a:\n  b: 1\n c: 2\n", [f"3: {NO_YAML}the indentation does not fit the lines above"]),
        ("\na: 'x\nb: 1\n", [f"2: {NO_YAML}the quote that opens here is not closed"]),
        ("a: 1\nb\nc: 2\n", [f'2: {NO_YAML}this is no "key: value"; a ":" with a blank after it is missing']),
        (
            "a: b: c\n",
            [
                f'1: {NO_YAML}no ":" can stand here; is one missing above, the indentation off, or a text without its '
                "quotes?"
            ],
        ),
        ("a: *x\n", [f"1: {NO_YAML}a text that starts with * or & must stand in quotes"]),
        ("a: * x\n", [f"1: {NO_YAML}a text that starts with * or & must stand in quotes"]),
        ("a: &x 1\nb: &x 2\n", [f"2: {NO_YAML}this &name stands here a second time; give each its own"]),
        ("a: 1\n---\nb: 1\n", [f'2: {NO_YAML}a second document starts here; take the "---" out']),
        ("a: 1\nb: \0\n", [f"2: {NO_YAML}a character that YAML does not allow (U+0000); take it out"]),
        ("a: &a [*a]\n", [f"1: {NO_YAML}it is nested too deeply"]),
        ("[" * 5000, [f"1: {NO_YAML}it is nested too deeply"]),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"a{i}: &a{i} [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n".replace("*a", f"*a{i - 1 or ''}")
                for i in range(1, 9)
            ),
            [f"1: {NO_YAML}it unfolds to more than 100,000 values; use fewer aliases"],
        ),
        (
            "data_dir: !!python/object/apply:os.getcwd []\nlog: !x {}\n",
            [
                "1: data_dir: has a tag (!), which means nothing here; take it out",
                "2: log: has a tag (!), which means nothing here; take it out",
            ],
        ),
        (
            "health:\n  host: !!bool x\n  port: 0b_\n",
            [
                "2: health.host: can't be read as what it looks like; put it in quotes",
                "3: health.port: can't be read as what it looks like; put it in quotes",
            ],
        ),
        ("agent: {<<: 5}\n", ["1: agent: << takes a block of keys, such as *name"]),
        ("- a\n", ["1: must be a block of keys at its top"]),
        ("just text", ["1: must be a block of keys at its top"]),
        ("0", ["1: must be a block of keys at its top"]),
    ],
    "variables": [
        (
            "providers:\n  claude:\n    kind: anthropic\n    model: m\n    api_key: ${KEY_A}\n",
            [
                "5: providers.claude.api_key: environment variable KEY_A is not set; set it or write ${KEY_A:-default}"
            ],
        ),
        (
            "data_dir: ${A}/${B}\n",
            [
                "1: data_dir: environment variable A is not set; set it or write ${A:-default}",
                "1: data_dir: environment variable B is not set; set it or write ${B:-default}",
            ],
        ),
        (
            "agent:\n  provider: ${P}\n",
            ["2: agent.provider: environment variable P is not set; set it or write ${P:-default}"],
        ),
        (
            "providers:\n  p:\n    kind: ${K}\n",
            ["3: providers.p.kind: environment variable K is not set; set it or write ${K:-default}"],
        ),
        (
            "data_dir: ${home}/x${\n",
            [
                "1: data_dir: environment variable home is not set; set it or write ${home:-default}",
                "1: data_dir: ${ starts no ${NAME} or ${NAME:-default}; write $${ where ${ is meant",
            ],
        ),
        (
            "data_dir: ${SET:-${OTHER:-x}}\n",
            ["1: data_dir: ${ starts no ${NAME} or ${NAME:-default}; write $${ where ${ is meant"],
        ),
    ],
    "values": [
        (
            "agent:\n  max_turns: many\n  max_context_turns: 2.5\n  tool_timeout: 0\n  max_context_tokens: true\n",
            [
                '2: agent.max_turns: must be a whole number; "many" was given',
                "3: agent.max_context_turns: must be a whole number; 2.5 was given",
                "4: agent.tool_timeout: must be more than 0; 0 was given",
                "5: agent.max_context_tokens: must be a number; true was given",
            ],
        ),
        (
            "session: {idle_evict: 1e12, queue_limit: 0, shutdown_grace: .nan, busy: qeue}\n",
            [
                '1: session.busy: must be "queue", "interrupt" or "steer"; "qeue" was given',
                "1: session.queue_limit: must be at least 1; 0 was given",
                '1: session.idle_evict: must be at most 1000000000; "1e12" was given',
                "1: session.shutdown_grace: must be a number that ends; NaN was given",
            ],
        ),
        (
            "agent:\n  retry: {delays: 3, rate_limit_delays: [1, x]}\n  system_prompt: null\n  fallback: a\n",
            [
                '2: agent.retry.rate_limit_delays.1: must be a number; "x" was given',
                "2: agent.retry.delays: must be a list, like [a, b]; 3 was given",
                "3: agent.system_prompt: must be a text, in quotes; null was given",
                '4: agent.fallback: must be a list, like [a, b]; "a" was given',
            ],
        ),
        (
            "agent: {retry: {delays: [1,1,1,1,1,1,1,1,1,1,1]}}\n",
            ["1: agent.retry.delays: has too many entries; at most 10"],
        ),
        (
            f"log: {{level: {'x' * 60}}}\ntools: {{time: {{enabled: maybe}}}}\n",
            [
                f'1: log.level: must be "debug", "info", "warning" or "error"; "{"x" * 40}…" was given',
                '2: tools.time.enabled: must be true or false; "maybe" was given',
            ],
        ),
        (
            "log: 5\ntools: []\nproviders: x\ndata_dir: {}\nhealth: {host: ''}\n",
            [
                "1: log: must be a block of keys; 5 was given",
                "2: tools: must be a block of keys; a list was given",
                '3: providers: must be a block of keys; "x" was given',
                "4: data_dir: must be a text, in quotes; a block of keys was given",
                "5: health.host: must not be empty",
            ],
        ),
    ],
    "providers": [
        (
            "providers:\n  claude: {kind: anthropic, model: m, api_key: ''}\n",
            [
                "2: providers.claude.api_key: is empty; put the secret in, or set the environment variable that it names"
            ],
        ),
        (
            "providers:\n  c:\n    kind: antropic\n",
            ['3: providers.c.kind: must be "anthropic", "openai" or "offline"; "antropic" was given'],
        ),
        (
            "providers:\n  c: {model: m}\n",
            ['2: providers.c.kind: is missing; write "anthropic", "openai" or "offline"'],
        ),
        ("providers:\n  c:\n", ["2: providers.c: must be a block of keys; null was given"]),
        (
            "providers:\n  c: {kind: anthropic, model: m, api_key: 'a\n b', base_url: 'https://x.example/v1/messages'}\n",
            [
                "2: providers.c.api_key: holds a blank, a line break or a letter beyond ASCII and can't be right; copy it "
                "anew",
                '3: providers.c.base_url: must stop before "/v1/messages", which is added to it',
            ],
        ),
        (
            "providers:\n  c: {kind: anthropic, model: m, api_key: key, base_url: 'https://x.example/v1'}\n",
            ['2: providers.c.base_url: must stop before "/v1", which is added to it'],
        ),
        (
            provider("base_url: 'http://x/v1/chat/completions'"),
            [
                '2: providers.p.base_url: must stop before "/chat/completions", which is added to it; most end in /v1'
            ],
        ),
        *[
            (
                provider(f"base_url: '{url}'"),
                ["2: providers.p.base_url: must be an address such as http://127.0.0.1:8080/v1"],
            )
            for url in (
                "127.0.0.1:8080",
                "ftp://x/v1",
                "http://",
                "http://x:99999/v1",
                "http://x y/v1",
                "http://[::1/v1",
                "x",
            )
        ],
        *[
            (
                provider(f"base_url: 'http://x/v1{tail}'"),
                ["2: providers.p.base_url: must end with its path; take out what follows the ? or #"],
            )
            for tail in ("?key=1", "#a", "?", "#")
        ],
        (
            "providers:\n  claude: {kind: offline}\n  gpt: {kind: offline}\n",
            ["1: agent.provider: is missing; say which of your providers answers: claude, gpt"],
        ),
        (
            "providers:\n  claude: {kind: offline}\n  gpt: {kind: offline}\nagent:\n  provider: null\n",
            ["5: agent.provider: is missing; say which of your providers answers: claude, gpt"],
        ),
        (
            "providers:\n  claude: {kind: offline}\nagent:\n  provider: cloude\n  fallback: [nobody, claude, claude, 5]\n",
            [
                '4: agent.provider: there is no provider "cloude"; did you mean "claude"?',
                "5: agent.fallback.3: must be a text, in quotes; 5 was given",
                '5: agent.fallback.0: there is no provider "nobody"; known: claude, offline',
                "5: agent.fallback.2: is asked before already; take it out",
            ],
        ),
        ("agent: {fallback: [offline]}\n", ["1: agent.fallback.0: is asked before already; take it out"]),
        (
            "providers:\n"
            "  a: {kind: anthropic, model: m, api_key: sk-proj-0123456789abcdef}\n"
            "  b: {kind: openai, model: m, api_key: sk-ant-0123456789abcdef}\n"
            "agent: {provider: a}\n",
            [
                "2: providers.a.api_key: is OpenAI's key, and the kind is anthropic; give that one's key",
                "3: providers.b.api_key: is Anthropic's key, and the kind is openai; give that one's key",
            ],
        ),
    ],
    "channels": [
        ("channels: {}\n", ["1: channels: names no channel; switch one on, for instance console: {}"]),
        ("channels:\n", ["1: channels: names no channel; switch one on, for instance console: {}"]),
        ("channels: [console]\n", ["1: channels: must be a block of keys; a list was given"]),
        (
            "channels:\n  telegram:\n",
            ["2: channels.telegram: is empty; write {} behind it to switch it on, or take it out"],
        ),
        (
            "channels:\n  slack: {bot_token: xoxp-1-user, app_token: xoxb-2-bot}\n",
            [
                "2: channels.slack.bot_token: must start with xoxb- and this is a user token (xoxp-); take the Bot User "
                "OAuth Token, under OAuth & Permissions of your app",
                "2: channels.slack.app_token: must start with xapp- and this is a bot token (xoxb-); take an App-Level "
                "Token with connections:write, under Basic Information",
            ],
        ),
        (
            f"channels:\n  slack: {{bot_token: '{TELEGRAM}', app_token: {'0a' * 16}, signing_secret: ''}}\n",
            [
                "2: channels.slack.bot_token: must start with xoxb- and this is a Telegram bot token; take the Bot User "
                "OAuth Token, under OAuth & Permissions of your app",
                "2: channels.slack.app_token: must start with xapp- and this is a signing secret, a client secret or the "
                "like; take an App-Level Token with connections:write, under Basic Information",
                "2: channels.slack.signing_secret: is empty; put the secret in, or set the environment variable that it "
                "names",
            ],
        ),
        (
            slack("allow: everyone\n    admins: ['@bob']\n    base_url: https://slack.com\n"),
            [
                "5: channels.slack.allow: must be workspace, or a list of member ids such as [U012AB3CD]",
                "6: channels.slack.admins.0: must be a member id such as U012AB3CD: in Slack, the profile, ⋮, Copy "
                "member ID",
                "7: channels.slack.base_url: must be https://slack.com/api/",
            ],
        ),
        (
            slack("allow: [U012AB3CD, bob]\n"),
            [
                "5: channels.slack.allow.1: must be a member id such as U012AB3CD: in Slack, the profile, ⋮, Copy "
                "member ID",
            ],
        ),
        (
            "channels:\n  telegram: {token: '12:short'}\n",
            [
                "2: channels.telegram.token: is no Telegram bot token (123456789:AA…); @BotFather gives one with /newbot"
            ],
        ),
        (
            f"channels:\n  telegram: {{token: 'bot{TELEGRAM}'}}\n",
            [
                '2: channels.telegram.token: must not start with "bot", which belongs to the address; take the token alone'
            ],
        ),
        (
            "channels:\n  telegram: {token: xoxb-1-2}\n",
            [
                "2: channels.telegram.token: is a bot token (xoxb-), no Telegram token; @BotFather gives one with /newbot"
            ],
        ),
        (
            "channels:\n  telegram: {token: 123456789}\n",
            ["2: channels.telegram.token: must be a text, in quotes"],
        ),
        (
            telegram("base_url: https://api.telegram.org\n    allow: ['@ann', 7, '8', -1, true]"),
            [
                '4: channels.telegram.base_url: must end in "/bot", as https://api.telegram.org/bot does',
                *[
                    f"5: channels.telegram.allow.{index}: must be a person's number; who writes to the bot is told theirs"
                    for index in (0, 3, 4)
                ],
            ],
        ),
    ],
    "webhook": [
        (
            telegram("mode: webhook"),
            [
                "2: channels.telegram.webhook: is missing; mode webhook needs it: "
                '{url: "https://bot.example.org/telegram"}'
            ],
        ),
        (
            telegram("webhook: {url: 'https://x/y'}"),
            ["4: channels.telegram.webhook: is for mode: webhook; set that, or take this out"],
        ),
        (
            telegram("webhook: https://x/y\n    mode: webhook"),
            ['4: channels.telegram.webhook: must be a block of keys; "https://x/y" was given'],
        ),
    ],
    "not yet": [
        (
            slack("mode: http\n    http: {port: 1}"),
            [f'5: channels.slack.mode: "http" {NOT_YET}', f"6: channels.slack.http: {NOT_YET}"],
        ),
        (
            "tools:\n  memory: {enabled: on}\n  reminders: {enabled: 'true'}\n  web_fetch: {enabled: true}\n"
            "  mcp: {x: {command: [y]}}\n",
            [
                f"2: tools.memory.enabled: {NOT_YET}",
                f"3: tools.reminders.enabled: {NOT_YET}",
                f"4: tools.web_fetch.enabled: {NOT_YET}",
                f"5: tools.mcp: {NOT_YET}",
            ],
        ),
    ],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(text, expected, id=f"{group} {number}")
        for group, cases in MISTAKES.items()
        for number, (text, expected) in enumerate(cases)
    ],
)
def test_a_mistake_is_told_with_its_line_its_key_and_the_mend(text: str, expected: list[str]) -> None:
    assert problems(text, SET="") == [f"c.yaml:{line}" for line in expected]


@pytest.mark.parametrize(
    "text",
    [
        "agent:\nproviders:\nlog:\ntools:\n  time:\n  mcp:\nsession:\nhealth:\n",
        "# nothing\n",
        "",
        "{}",
        "\ufefflog:\n",
        "---\nlog: {}\n...\n",
        "tools: {memory: {enabled: false}, reminders: {}, web_fetch: {enabled: 'no'}, mcp: {}}\n",
    ],
)
def test_what_is_left_empty_is_the_defaults(text: str) -> None:
    assert parse_settings(text, "c.yaml", {}) == Settings()


@pytest.mark.parametrize(
    "text",
    [
        provider("base_url: 'https://api.deepseek.com'"),
        provider("base_url: 'http://[::1]:8080/v1/'"),
        provider("base_url: '${URL:-}', context_window: '${WINDOW:-}'"),
        "providers: {p: {kind: anthropic, model: m, api_key: sk-proj-0123456789abcdef, base_url: 'http://proxy'}}",
        telegram("base_url: 'http://127.0.0.1:8081/bot'\n    allow: [1, '501', '${ID}']"),
        slack("base_url: 'http://127.0.0.1:1/api'\n    allow: [U012AB3CD]\n    admins: [W012]"),
        telegram("mode: webhook\n    webhook: {url: 'https://x/y', port: 8443}"),
        slack("mode: socket\n    http: null\n    signing_secret: null"),
        "agent: {fallback: [], provider: offline}",
        "agent: {provider: ''}",
        "providers: {one: {kind: offline}}\nagent: {fallback: [offline]}",
    ],
)
def test_what_is_right_is_taken(text: str) -> None:
    parse_settings(text, "c.yaml", {"ID": "77"})


@pytest.mark.parametrize(
    ("path", "lowest", "below"),
    [
        ("agent.max_turns", 1, 0),
        ("agent.max_context_turns", 1, 0),
        ("agent.max_context_tokens", 1000, 999),
        ("agent.tool_timeout", 0.1, 0),
        ("agent.retry.max_wait", 0, -1),
        ("session.queue_limit", 1, 0),
        ("session.max_running", 1, 0),
        ("session.idle_evict", 0.1, 0),
        ("session.shutdown_grace", 0, -0.1),
        ("providers.p.timeout", 0.1, 0),
        ("providers.p.max_output_tokens", 1, 0),
        ("providers.p.context_window", 1024, 1023),
    ],
)
def test_the_lowest_that_is_right_is_taken_and_what_is_below_is_not(
    path: str, lowest: float, below: float
) -> None:
    *blocks, key = path.split(".")

    def config(value: float) -> str:
        inner = f"{key}: {value}"
        for block in reversed(blocks):
            more = "kind: openai, model: m, api_key: none, " if block == "p" else ""
            inner = f"{block}: {{{more}{inner}}}"
        return inner

    found: object = parse_settings(config(lowest), "c.yaml", {}).model_dump()
    for name in path.split("."):
        assert isinstance(found, dict)
        found = found[name]
    assert found == lowest
    assert problems(config(below))[0].startswith(f"c.yaml:1: {path}: must be ")


@pytest.mark.parametrize(
    ("kind", "url"),
    [("anthropic", "http://proxy/anthropic"), ("openai", "http://h:1/v1/"), ("openai", "https://h")],
)
def test_addresses_are_kept_as_they_are(kind: str, url: str) -> None:
    text = f"providers: {{p: {{kind: {kind}, model: m, api_key: none, base_url: '{url}'}}}}"
    assert parse_settings(text, "c.yaml", {}).model_dump()["providers"]["p"]["base_url"] == url


def test_platforms_addresses_and_ids_are_kept_as_they_are() -> None:
    text = telegram("base_url: 'http://h/bot'\n    allow: [1, '501']\n    admins: [7]")
    text += slack("base_url: 'http://h/api'\n    allow: [U1]\n    admins: [W2]").removeprefix("channels:\n")
    channels = parse_settings(text, "c.yaml", {}).model_dump()["channels"]
    assert [channels["telegram"][key] for key in ("base_url", "allow", "admins")] == [
        "http://h/bot",
        (1, 501),
        (7,),
    ]
    assert [channels["slack"][key] for key in ("base_url", "allow", "admins")] == [
        "http://h/api",
        ("U1",),
        ("W2",),
    ]


def test_settings_do_not_change_after_reading() -> None:
    with pytest.raises(ValidationError):
        Settings().data_dir = "elsewhere"  # type: ignore[misc]  # that it is refused is what is tested


def test_empty_texts_are_null_where_null_may_be() -> None:
    settings = parse_settings(provider("base_url: '${URL:-}', context_window: '${URL:-}'"), "c.yaml", {})
    assert settings.providers["p"].model_dump(include={"base_url", "context_window"}) == {
        "base_url": None,
        "context_window": None,
    }


def test_variables_fill_texts_with_defaults_and_escapes() -> None:
    text = "data_dir: '${HOME_DIR}/${SUB:-bot}$${X}$5${EMPTY:-e}'\nhealth: {host: '${HOST:-}x'}\n"
    settings = parse_settings(text, "c.yaml", {"HOME_DIR": "/srv", "EMPTY": ""})
    assert settings.data_dir == "/srv/bot${X}$5e"
    assert settings.health.host == "x"


def test_what_a_variable_holds_is_not_filled_again() -> None:
    assert parse_settings("data_dir: ${A}\n", "c.yaml", {"A": "${B} $${C} !x"}).data_dir == "${B} $${C} !x"


def test_numbers_and_truth_values_may_come_from_variables() -> None:
    text = "agent: {max_turns: '${N}'}\ntools: {time: {enabled: '${T}'}}\n"
    settings = parse_settings(text, "c.yaml", {"N": "7", "T": "false"})
    assert settings.agent.max_turns == 7
    assert not settings.tools.time.enabled


def test_what_a_variable_holds_is_never_told() -> None:
    text = (
        "agent: {max_turns: '${A}', provider: '${A}', fallback: ['${A}', 'x${A}'], language: '${A}'}\n"
        "log: {level: 'x${A}'}\nproviders: {p: {kind: '${A}'}}\nchannels: {telegram: {token: '${A}', mode: '${A}'}}\n"
    )
    told = problems(text, A="what-it-holds")
    assert len(told) == 9
    assert "what-it-holds" not in "".join(told)


def test_a_secret_in_the_wrong_place_is_not_told() -> None:
    told = problems(f"agent: {{language: '{TELEGRAM}'}}\nsk-ant-0123456789abcdef: x\n")
    assert len(told) == 2
    assert TELEGRAM not in "".join(told)
    assert "sk-ant-0123456789abcdef" not in "".join(told)


def test_a_line_break_after_a_secret_does_no_harm() -> None:
    settings = parse_settings(
        telegram("mode: polling").replace(TELEGRAM, "${T}"), "c.yaml", {"T": f"{TELEGRAM}\n"}
    )
    assert settings.channels.telegram is not None
    assert settings.channels.telegram.token.get_secret_value() == TELEGRAM


def test_blocks_can_be_merged_and_their_own_keys_win() -> None:
    text = (
        "providers:\n"
        "  a: &a {kind: openai, model: m, api_key: none, timeout: 7}\n"
        "  b: {model: n, <<: *a}\n"
        "  c: {<<: [{timeout: 9}, *a]}\n"
        "agent: {provider: a}\n"
    )
    given = {name: one.model_dump() for name, one in parse_settings(text, "c.yaml", {}).providers.items()}
    assert (given["b"]["model"], given["b"]["timeout"]) == ("n", 7)
    assert (given["c"]["model"], given["c"]["timeout"]) == ("m", 9)


def test_no_file_means_the_console_and_the_offline_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {})
    assert settings.channels.console is not None
    assert settings.providers == {}
    (tmp_path / "config.yaml").write_text("data_dir: elsewhere\n", encoding="utf-8")
    assert load_settings(None, {}).data_dir == "elsewhere"


def test_mistakes_in_the_file_that_is_found_by_itself_are_told_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("\nzzz: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^config\.yaml:2: zzz: unknown key"):
        load_settings(None, {})


def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"^config\.yaml: there is no such file"):
        load_settings(None, {})


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"data_dir: caf\xe9\n")
    (tmp_path / "wide.yaml").write_text("data_dir: x\n", encoding="utf-16")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for path, says in (
        (tmp_path / "no.yaml", "there is no such file; copy config.example.yaml to it"),
        (tmp_path, "this is a folder; name the file in it"),
        (tmp_path / "latin.yaml", "this is no UTF-8 text; save it as UTF-8"),
        (tmp_path / "wide.yaml", "this is no UTF-8 text; save it as UTF-8"),
        (tmp_path / "file" / "x", "can't be read (Not a directory); mend its permissions"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(path, {})
        assert caught.value.problems == [f"{path}: {says}"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").touch(mode=0)
    with pytest.raises(ConfigError, match="Permission denied"):
        load_settings(tmp_path / "c.yaml", {})


def test_the_schema_has_a_word_on_every_key() -> None:
    schema: dict[str, Any] = json_schema()
    objects = [schema, *schema["$defs"].values()]
    assert len(objects) > 15
    for each in objects:
        assert each["additionalProperties"] is False
        for name, one in each["properties"].items():
            assert one.get("description"), f"{each['title']}.{name}"


def test_the_schema_can_be_written_and_tells_bounds_and_defaults() -> None:
    schema: dict[str, Any] = json.loads(json.dumps(json_schema()))
    session = schema["$defs"]["SessionSection"]["properties"]
    assert session["queue_limit"]["default"] == 20
    assert session["queue_limit"]["minimum"] == 1
    assert session["busy"]["enum"] == ["queue", "interrupt", "steer"]


def fields(
    data: object, section: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and annotation of each plain key that the example has."""
    assert isinstance(data, dict)
    for name, field in section.model_fields.items():
        kinds = [
            kind for kind in types_in(field.annotation) if isinstance(kind, type) and issubclass(kind, Section)
        ]
        if name == "providers":
            for chosen, each in data[name].items():
                kind = next(kind for kind in kinds if each["kind"] in str(kind.model_fields["kind"].annotation))
                yield from fields(each, kind, (*path, name, chosen))
        elif kinds:
            yield from fields(data.get(name) or {}, kinds[0], (*path, name))
        elif name in data:
            yield (*path, name), field


DATA = yaml.safe_load(everything_on())
PLAIN_KEYS = dict(fields(DATA, Settings))
SCALARS: list[object] = [None, True, -1, 0, 7, 10**30, 2.5, float("inf"), "", "x", "7", "2024-01-01", "${", "a\nb"]
NESTED: list[object] = [[], {}, [None], ["x"], [7, "x"], {"x": 1}, [[]]]


def put(data: object, path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        assert isinstance(data, dict)
        data = data[key]
    assert isinstance(data, dict)
    data[path[-1]] = value


def key_line(text: str, path: tuple[str, ...]) -> int:
    """The line, from 1, of this key in a block-style dump."""
    lines, start = text.splitlines(), 0
    for depth, key in enumerate(path):
        start = next(n for n in range(start, len(lines)) if re.match(rf" {{{2 * depth}}}{key}:", lines[n])) + 1
    return start


def test_the_walk_over_the_example_sees_all_of_it() -> None:
    assert len(PLAIN_KEYS) > 60
    assert ("providers", "claude", "base_url") in PLAIN_KEYS
    assert ("agent", "retry", "max_wait") in PLAIN_KEYS
    assert ("channels", "slack", "thread_replies") in PLAIN_KEYS


@given(
    st.dictionaries(
        st.sampled_from(sorted(PLAIN_KEYS)), st.sampled_from(SCALARS + NESTED), min_size=1, max_size=4
    ),
)
def test_every_wrong_value_is_told_at_its_own_line_and_nothing_else_is(
    changes: dict[tuple[str, ...], object],
) -> None:
    """The oracle is each key's own annotation, asked alone."""
    data = copy.deepcopy(DATA)
    for path, value in changes.items():
        put(data, path, copy.deepcopy(value))  # the same list twice would be an alias
    text = yaml.safe_dump(data, sort_keys=False, width=10_000, allow_unicode=True)
    try:
        parse_settings(text, "c.yaml", KEYS)
        told: list[str] = []
    except ConfigError as error:
        told = error.problems
    places = {(int(line.split(":")[1]), line.split(": ")[1]) for line in told}
    for path, value in changes.items():
        unread = path[0] == "providers" and (*path[:-1], "kind") in changes and path[-1] != "kind"
        if alone_is_wrong(path, value) and not unread:
            line = key_line(text, path)
            at = ".".join(path)
            assert any(where == at or where.startswith(f"{at}.") for number, where in places if number >= line), (
                path,
                value,
                told,
            )
    touched = tuple(".".join(path) for path in changes)
    for _, where in places:
        related = where.startswith(touched) or where in ("agent.provider", *touched)
        kind_changed = any(path[-1] == "kind" for path in changes) and where.startswith("providers.")
        assert related or kind_changed, (where, told)


def alone_is_wrong(path: tuple[str, ...], value: object) -> bool:
    field = PLAIN_KEYS[path]
    if value == "${":
        return True
    if value == "":
        value = (
            None
            if type(None) in types_in(field.annotation) and SecretStr not in types_in(field.annotation)
            else ""
        )
    if value is None and field.default_factory is dict:
        return False
    if path == ("providers", "offline", "kind") and value != "offline":
        return True
    annotation = field.rebuild_annotation()
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return True
    return False


WORDS = """a channels agent { } [ ] : - ${X} ${ $${ &a *a <<: ' " ? | > # % @ --- ... = \\ \\ud800
    !!python/object:os.system !!bool !!int !!set !!binary !!omap
    0b_ 0o7 1:30 null ~ true 1e999 -.inf 2024-01-01 \ufeff \ud800 \0"""
SNIPPETS = st.sampled_from(WORDS.split()).flatmap(
    lambda word: st.sampled_from([word, f"{word} ", f"{word}\n", f"{word}\n  ", f"\t{word}", f"{word}\x85\u2028"])
)
BARE = re.sub(r" +#.*$", "", everything_on(), flags=re.MULTILINE)
"""Without comments: it is read many times."""


def is_settings_or_told(text: str, environment: dict[str, str]) -> None:
    try:
        assert isinstance(parse_settings(text, "c.yaml", environment), Settings)
    except ConfigError as error:
        assert error.problems
        lines = max(1, len(text.splitlines()) + 1)
        for problem in error.problems:
            match = re.match(r"c\.yaml:(\d+): .", problem)
            assert match is not None, problem
            assert 1 <= int(match[1]) <= lines
            assert problem.isprintable()


@given(st.text(max_size=200) | st.lists(SNIPPETS, max_size=12).map("".join))
def test_any_text_is_settings_or_a_config_error(text: str) -> None:
    is_settings_or_told(text, {})


@given(st.data())
def test_the_example_however_damaged_is_settings_or_a_config_error(data: st.DataObject) -> None:
    text = BARE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        text = text[:start] + data.draw(SNIPPETS) + text[end:]
    is_settings_or_told(text, KEYS)


@given(st.sampled_from(sorted(KEYS)), st.text(min_size=8, max_size=60))
def test_whatever_a_secret_is_no_error_holds_it(name: str, secret: str) -> None:
    secret = f"q7{secret}7q"
    try:
        parse_settings(BARE + "\nzzz: 1\n", "c.yaml", {**KEYS, name: secret})
    except ConfigError as error:
        assert secret not in str(error)
        assert secret.strip() not in str(error)
        assert str(error.__cause__) == "None"
        assert error.__context__ is None or secret not in str(error.__context__)


def test_only_the_keys_that_must_be_are_without_a_default() -> None:
    required = {
        path[-1]
        for path, field in PLAIN_KEYS.items()
        if field.default is PydanticUndefined and field.is_required()
    }
    assert required == {"kind", "model", "api_key", "token", "bot_token", "app_token"}


def test_the_example_is_no_wider_than_a_page() -> None:
    wide = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if len(line) > 120]
    assert [line.split(":")[0].strip() for line in wide] == ["system_prompt"]
