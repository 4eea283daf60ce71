"""The log: events with fields, and no secret in whatever form (bridge-and-channels §2, field-notes D 23)."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.config import parse_settings
from bridge.log import configure_logging
from bridge.redact import HIDDEN, SHORTEST, SecretFilter, secrets_of, settings_dump
from bridge.settings import Settings
from tests.bridge.configs import KEYS, everything_on

TOKEN = KEYS["TELEGRAM_BOT_TOKEN"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    names = ("", "agent", "bridge", "channels")
    handlers, levels = logging.getLogger().handlers, {name: logging.getLogger(name).level for name in names}
    hooks = sys.excepthook, threading.excepthook
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.getLogger().handlers = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    sys.excepthook, threading.excepthook = hooks


def settings(keys: str = "level: info, format: json", more: str = "") -> Settings:
    text = f"log: {{{keys}}}\nchannels:\n  telegram: {{token: '{TOKEN}'}}\n{more}"
    return parse_settings(text, "c", {})


def configured(keys: str = "level: info, format: json", more: str = "") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(settings(keys, more), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_are_json_lines_with_their_fields() -> None:
    stream = configured()
    structlog.contextvars.bind_contextvars(request="r1")
    structlog.get_logger("bridge.test").info("trim.turns", dropped=10, session="telegram/1", place=("a", 1))
    (line,) = lines(stream)
    timestamp = str(line.pop("timestamp"))
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", timestamp)
    assert line == {
        "event": "trim.turns",
        "dropped": 10,
        "session": "telegram/1",
        "place": ["a", 1],
        "request": "r1",
        "level": "info",
        "logger": "bridge.test",
    }


def test_a_logger_without_a_name_is_that_of_its_module() -> None:
    stream = configured(more="  console: {}\n")
    structlog.get_logger().warning("x")
    assert lines(stream)[0]["logger"] == __name__


def test_the_libraries_records_come_the_same_way() -> None:
    stream = configured()
    logging.getLogger("slack_bolt.App").warning("retry %d of %s", 2, "three")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("retry 2 of three", "warning", "slack_bolt.App")
    assert "timestamp" in line


@pytest.mark.parametrize("library", ["httpx", "httpx2", "telegram.ext", "slack_bolt", "aiohttp.access", "asyncio"])
@pytest.mark.parametrize(("level", "told"), [("info", 1), ("debug", 3), ("warning", 1), ("error", 0)])
def test_libraries_are_told_from_warning_on_unless_one_looks_for_something(
    library: str, level: str, told: int
) -> None:
    stream = configured(f"level: {level}, format: json")
    logger = logging.getLogger(library)
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    assert len(lines(stream)) == told


@pytest.mark.parametrize("room", ["agent.run", "bridge.app", "channels.slack.wire"])
@pytest.mark.parametrize(
    ("level", "told"), [("debug", "abcd"), ("info", "bcd"), ("warning", "cd"), ("error", "d")]
)
def test_ours_are_told_from_the_level_on(room: str, level: str, told: str) -> None:
    stream = configured(f"level: {level}, format: json")
    log = structlog.get_logger(room)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert "".join(str(line["event"]) for line in lines(stream)) == told


@pytest.mark.parametrize(("keys", "told"), [("format: json", ["c"]), ("format: json, level: info", ["b", "c"])])
def test_with_the_console_only_warnings_are_told_unless_the_config_says_more(keys: str, told: list[str]) -> None:
    stream = io.StringIO()
    configure_logging(parse_settings(f"log: {{{keys}}}\nchannels: {{console: {{}}}}\n", "c", {}), stream)
    structlog.get_logger("bridge.test").info("b")
    structlog.get_logger("bridge.test").warning("c")
    assert [line["event"] for line in lines(stream)] == told


def test_auto_is_pretty_and_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    configure_logging(settings("level: info"), terminal)
    structlog.get_logger("bridge.test").info("hello", n=1)
    configure_logging(settings("level: info"), pipe)
    structlog.get_logger("bridge.test2").info("hello", n=1)
    assert "\x1b[" in terminal.getvalue()
    assert lines(pipe)[0]["event"] == "hello"


@pytest.mark.parametrize(("stream", "no_color"), [(io.StringIO(), ""), (Terminal(), "1")])
def test_pretty_without_colours_names_the_zone(
    stream: io.StringIO, no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    configure_logging(settings("level: info, format: pretty"), stream)
    structlog.get_logger("bridge.test").info("hello", n=1)
    assert "\x1b" not in stream.getvalue()
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} \[info +\] hello .*n=1", stream.getvalue())


def test_a_chats_text_can_neither_forge_a_line_nor_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = configured("level: info, format: pretty")
    structlog.get_logger("bridge.test").info("x", text="a\n2026-01-01 [info] forged \x1b[2J\r\x9b1m")
    logging.getLogger("httpx").warning("a\n2026-01-01 [info] forged \x1b[2J\r\x9b1m")
    try:
        raise RuntimeError("\x1b[2J")
    except RuntimeError:
        structlog.get_logger("bridge.test").exception("y")
    assert len([line for line in stream.getvalue().splitlines() if line.startswith("20")]) == 3
    assert "\x1b" not in stream.getvalue()
    assert "\x9b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_a_token_is_hidden_wherever_it_stands(form: str) -> None:
    stream = configured(f"level: debug, format: {form}")
    log = structlog.get_logger("bridge.test")
    log.warning("http", url=f"https://api.telegram.org/bot{TOKEN}/getMe", nested={"a": [TOKEN]})
    log.warning(f"in the event {TOKEN}", exc_info=RuntimeError(f"no route to /bot{quote(TOKEN)}/getMe"))
    try:
        raise RuntimeError(TOKEN) from ValueError(TOKEN)
    except RuntimeError:
        log.exception("crashed")
        logging.getLogger("telegram").exception("crashed")
    logging.getLogger("httpx").warning("HTTP Request: POST https://x/bot%s/sendMessage", TOKEN)
    logging.getLogger("aiohttp").debug("%r", {"token": TOKEN, "object": settings()})
    assert TOKEN not in stream.getvalue()
    assert TOKEN.split(":")[1] not in stream.getvalue()
    assert stream.getvalue().count(HIDDEN) >= 9
    assert stream.getvalue().count("RuntimeError") >= 3


def test_a_traceback_of_ours_is_whole_but_for_the_secret() -> None:
    stream = configured()
    try:
        raise RuntimeError(f"at {TOKEN}")
    except RuntimeError:
        structlog.get_logger("bridge.test").exception("crashed", place=1)
    (line,) = lines(stream)
    assert str(line["exception"]).startswith("Traceback (most recent call last):")
    assert str(line["exception"]).endswith(f"RuntimeError: at {HIDDEN}")


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("unprintable")

    __repr__ = __str__


def test_a_record_that_cannot_be_written_is_one_line_without_what_it_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = configured()
    logging.getLogger("httpx").warning("%d", TOKEN)
    structlog.get_logger("bridge.test").info("x", secret=TOKEN, broken=Broken())
    assert stream.getvalue().splitlines() == [
        "a log record of httpx could not be written: TypeError",
        "a log record of bridge.test could not be written: RuntimeError",
    ]
    assert capsys.readouterr().err == ""


def test_a_stream_that_is_closed_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = configured()
    stream.close()
    structlog.get_logger("bridge.test").info("x")
    logging.getLogger("httpx").warning("y")
    assert capsys.readouterr().err == ""


def test_an_exception_that_nobody_caught_is_told_without_the_secret() -> None:
    stream = configured()
    error = RuntimeError(f"no route to /bot{TOKEN}/getMe")
    sys.excepthook(RuntimeError, error, None)

    def fail() -> None:
        raise error

    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    first, second = lines(stream)
    assert (first["event"], first["level"], second["thread"]) == ("app.crashed", "critical", "worker")
    assert HIDDEN in str(first["exception"])
    assert TOKEN not in stream.getvalue()


def test_a_thread_that_leaves_by_itself_is_no_crash() -> None:
    stream = configured()
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()
    assert stream.getvalue() == ""


def test_without_a_stream_it_is_standard_error_as_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(settings())
    structlog.get_logger("bridge.test").info("hello")
    assert json.loads(capsys.readouterr().err)["event"] == "hello"


def test_ctrl_c_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    stream = configured()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert stream.getvalue() == ""
    assert "KeyboardInterrupt" in capsys.readouterr().err


SECRETS = st.text(st.characters(codec="utf-8"), min_size=SHORTEST, max_size=20).filter(
    lambda text: text not in HIDDEN
)
AROUND = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(SECRETS, min_size=1, max_size=4), AROUND, AROUND)
@example(["secret-1", "secret-10"], "", "")
@example(['pass"word\\'], "", "")
def test_no_secret_is_left_in_any_of_its_forms(secrets: list[str], before: str, after: str) -> None:
    hide = SecretFilter(secrets)
    for secret in secrets:
        for form in (secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1]):
            shown = hide(f"{before} {form} {after}")
            # What stood around may by chance be the secret's own letters; what it stood for must be gone.
            assert shown.count(form) <= hide(before).count(form) + hide(after).count(form) + HIDDEN.count(form)


@given(st.lists(SECRETS, max_size=3), AROUND)
def test_what_holds_no_secret_is_left_as_it_is(secrets: list[str], text: str) -> None:
    hide = SecretFilter(secrets)
    if not any(secret in text for secret in secrets) and HIDDEN not in hide(text):
        assert hide(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "xoxb-123456789012-abcdefghij",
        "xapp-1-A1B2C3-123456",
        "xoxe.xoxp-1-abcdefghij",
        "sk-ant-api03-abcdefghijklmnop",
        "gsk_abcdefghijklmnopqrst",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "Authorization: Bearer abc.def.ghi-123",
        "authorization: bearer abc.def.ghi-123",
        "https://api.telegram.org/bot987654321:AAabcdefghijklmnopqrstuvwxyz0123456/getUpdates",
        "bot987654321%3AAAabcdefghijklmnopqrstuvwxyz0123456",
        "wss://wss-primary.slack.com/link/?ticket=0b1c&app_id=2",
        "https://x.example/files?a=1&token=abc",
        "http://me:word@proxy:8080/v1",
    ],
)
def test_what_looks_like_a_key_is_hidden_also_if_it_is_not_ours(text: str) -> None:
    assert HIDDEN in SecretFilter()(text)


@pytest.mark.parametrize(
    "text",
    [
        "risk-assessment-of-the-whole-house",
        "telegram/123456789:7 telegram/-100123456789/5",
        "2026-12-01T12:00:00.123456Z",
        "http://127.0.0.1:11434/v1 http://h/a:b@c",
        "the token was refused; channels.telegram.token",
        "xoxb- is what it starts with",
        "Bearer of news",
    ],
)
def test_what_is_no_key_is_left_alone(text: str) -> None:
    assert SecretFilter()(text) == text


def everything() -> Settings:
    more = everything_on().replace("http://127.0.0.1:11434/v1", "http://me:pass%77ord@127.0.0.1:11434/v1")
    return parse_settings(more.replace("signing_secret: null", "signing_secret: 0a0b0c0d0e0f"), "example", KEYS)


def test_all_secrets_of_the_settings_are_known() -> None:
    assert secrets_of(everything()) == {*KEYS.values(), "0a0b0c0d0e0f", "pass%77ord", "password"}


def test_words_for_servers_without_keys_are_no_secrets() -> None:
    text = "".join(
        f"  p{n}: {{kind: openai, model: m, api_key: {key}}}\n"
        for n, key in enumerate(("none", "Ollama", "EMPTY"))
    )
    assert secrets_of(parse_settings(f"providers:\n{text}agent: {{provider: p0}}\n", "c", {})) == set()


def test_secrets_in_blocks_that_are_kept_as_they_are_are_known() -> None:
    class Holder(Settings):
        extra: dict[str, object]

    webhook = "mode: webhook, webhook: {url: 'https://x/y', secret: secret-word-of-mine}"
    text = f"channels:\n  telegram: {{token: '{TOKEN}', {webhook}}}\n"
    assert secrets_of(parse_settings(text, "c", {})) == {TOKEN, "secret-word-of-mine"}
    holder = Holder(extra={"x": {"env": {"API_KEY": "secret-1", "PATH": "/usr/bin"}}, "secret": "secret-2"})
    assert secrets_of(holder) == {"secret-1", "secret-2"}


def test_a_dump_shows_everything_but_the_secrets() -> None:
    found = everything()
    dump = json.dumps(settings_dump(found))
    for secret in secrets_of(found):
        assert secret not in dump
        assert secret not in repr(found) or "://" in repr(found)
    assert settings_dump(found)["channels"] == {
        "console": {"busy": None},
        "telegram": {
            "token": HIDDEN,
            "base_url": "https://api.telegram.org/bot",
            "mode": "polling",
            "webhook": None,
            "allow": [],
            "admins": [],
            "group_trigger": "mention",
            "busy": None,
        },
        "slack": {
            "bot_token": HIDDEN,
            "app_token": HIDDEN,
            "signing_secret": HIDDEN,
            "base_url": "https://slack.com/api/",
            "mode": "socket",
            "http": None,
            "allow": "workspace",
            "admins": [],
            "thread_replies": True,
            "busy": None,
        },
    }


@given(st.from_regex(r"[!-~]{8,40}", fullmatch=True), st.sampled_from(["json", "pretty"]))
def test_whatever_a_key_is_no_output_holds_it(key: str, form: str) -> None:
    text = (
        f"log: {{format: {form}, level: debug}}\nproviders:\n  p: {{kind: openai, model: m, api_key: '${{K}}'}}\n"
    )
    found = parse_settings(text, "c", {"K": key})
    secret = found.model_dump()["providers"]["p"]["api_key"].get_secret_value()
    stream = io.StringIO()
    configure_logging(found, stream)
    log = structlog.get_logger("bridge.test")
    log.warning(f"<{secret}>", field=f" {secret} ", url=f"http://x/{quote(secret)}", nested=[{"a": secret}])
    log.warning("x", exc_info=RuntimeError(f" {secret} "), settings=found)
    logging.getLogger("httpx").warning("got %r", {"key": f" {secret} "})
    told = stream.getvalue() + json.dumps(settings_dump(found)) + repr(found) + str(found)
    if secret not in HIDDEN and secret.lower() not in ("bridge.test",):
        assert secret not in told


def test_the_program_starts_without_yaml_and_without_the_sdks() -> None:
    code = (
        "import sys, io\n"
        "from bridge.config import load_settings\nfrom bridge.log import configure_logging\n"
        "configure_logging(load_settings(None, {}), io.StringIO())\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    heavy = {"yaml", "httpx", "httpx2", "telegram", "slack_sdk", "aiohttp", "anthropic", "openai", "sqlite3"}
    assert heavy.isdisjoint(done.stdout.split())
