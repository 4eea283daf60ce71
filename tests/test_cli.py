"""The command line as a person meets it: exit codes, one clear line each, nothing written over (§2)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.lock import DirectoryLock
from bridge.store.sqlite import SqliteStore
from tests.servers.model_server import ModelServer
from tests.servers.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer
from tests.servers.telegram_server import TelegramServer


def steadybot(*arguments: str, cwd: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from bridge.cli import main; main()", *arguments],
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        timeout=50,
    )


async def steadybot_beside(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same while servers of this process answer it."""
    return await asyncio.to_thread(steadybot, *arguments, cwd=cwd)


def write(folder: Path, text: str) -> None:
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]  # the log's own lines
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_typed_line_is_answered_and_the_end_of_input_ends_the_program(tmp_path: Path) -> None:
    done = steadybot("run", cwd=tmp_path, typed="hello\n(17 + 4) * 2\n")
    assert done.returncode == 0
    assert "offline model" in done.stdout
    assert "42" in done.stdout
    assert "\x1b" not in done.stdout
    assert (tmp_path / "data" / "steadybot.sqlite3").exists()


def test_no_input_at_all_ends_cleanly(tmp_path: Path) -> None:
    done = steadybot("run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_wrong_config_is_code_2_with_every_mistake(tmp_path: Path) -> None:
    write(tmp_path, "dat_dir: x\nagent: {max_turns: many}\n")
    done = steadybot("run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        'steadybot: config.yaml:1: dat_dir: unknown key; did you mean "data_dir"?',
        'steadybot: config.yaml:2: agent.max_turns: must be a whole number; "many" was given',
    ]


def test_a_missing_config_file_is_code_2(tmp_path: Path) -> None:
    assert "no such file" in one_line(steadybot("run", "-c", "nowhere.yaml", cwd=tmp_path), 2)


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "data"):
        assert "in use by another steadybot (process " in one_line(steadybot("run", cwd=tmp_path), 1)


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    assert "data_dir" in one_line(steadybot("run", cwd=tmp_path), 1)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "steadybot.sqlite3"


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, database: Path) -> None:
    database.write_text("precious notes of another kind " * 50, encoding="utf-8")
    before = database.read_bytes()
    assert "no SQLite file" in one_line(steadybot("run", cwd=tmp_path), 1)
    assert database.read_bytes() == before


def test_a_newer_database_is_left_alone(tmp_path: Path, database: Path) -> None:
    with sqlite3.connect(database) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = database.read_bytes()
    assert "newer steadybot (version 99" in one_line(steadybot("run", cwd=tmp_path), 1)
    assert database.read_bytes() == before


def test_the_schema_is_json(tmp_path: Path) -> None:
    done = steadybot("config", "schema", cwd=tmp_path)
    assert json.loads(done.stdout)["title"] == "Settings"


def test_allow_sessions_and_backup_work_beside_the_bot(tmp_path: Path, database: Path) -> None:
    async def prepare() -> None:
        store = await SqliteStore.open(database)
        await store.pairing_code("telegram", "501", "ABCD2345", datetime.now(UTC))
        await store.close()

    asyncio.run(prepare())
    assert "501 may talk" in steadybot("allow", "telegram", "abcd2345", cwd=tmp_path).stdout
    assert "no pairing code" in one_line(steadybot("allow", "telegram", "WRONG", cwd=tmp_path), 1)
    steadybot("run", cwd=tmp_path, typed="hello\n")
    assert "console/local" in steadybot("sessions", cwd=tmp_path).stdout
    assert steadybot("backup", "copy.sqlite3", cwd=tmp_path).returncode == 0
    with sqlite3.connect(tmp_path / "copy.sqlite3") as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (2,)
    db.close()
    assert "exists already" in one_line(steadybot("backup", "copy.sqlite3", cwd=tmp_path), 1)


def test_without_a_database_the_commands_on_it_say_so(tmp_path: Path) -> None:
    assert "no database" in one_line(steadybot("sessions", cwd=tmp_path), 1)


async def test_wrong_tokens_are_one_line_that_names_the_key_of_the_config(tmp_path: Path) -> None:
    wrong = "123456789:AAWrongTokenWrongTokenWrongToken1234"
    async with TelegramServer() as telegram, SlackServer() as slack:
        write(tmp_path, f"channels:\n  telegram: {{token: '{wrong}', base_url: '{telegram.base_url}'}}\n")
        line = one_line(await steadybot_beside("run", cwd=tmp_path), 1)
        assert "channels.telegram.token" in line
        assert wrong not in line
        write(
            tmp_path,
            f"channels:\n  slack: {{bot_token: xoxb-wrong-token, app_token: {APP_TOKEN}, base_url: '{slack.base_url}'}}\n",
        )
        line = one_line(await steadybot_beside("run", cwd=tmp_path), 1)
        assert "channels.slack.bot_token" in line
        assert "xoxb-wrong-token" not in line
        write(
            tmp_path,
            f"channels:\n  slack: {{bot_token: {BOT_TOKEN}, app_token: xapp-wrong-token, base_url: '{slack.base_url}'}}\n",
        )
        assert "channels.slack.app_token" in one_line(await steadybot_beside("run", cwd=tmp_path), 1)


@pytest.mark.parametrize(("kind", "path"), [("anthropic", ""), ("openai", "/v1")])
async def test_check_names_what_is_wrong_with_a_provider(tmp_path: Path, kind: str, path: str) -> None:
    async with ModelServer(key="the-right-key", models=["good"]) as model:

        async def check(api_key: str, name: str, url: str = model.url) -> tuple[int, str]:
            write(
                tmp_path,
                f"providers:\n  p: {{kind: {kind}, model: {name}, api_key: {api_key}, base_url: '{url}{path}'}}\n",
            )
            done = await steadybot_beside("check", cwd=tmp_path)
            assert "Traceback" not in done.stderr
            return done.returncode, done.stdout

        assert await check("the-right-key", "good") == (
            0,
            "ok    console: piped, without colour\nok    provider p (model good)\n",
        )
        code, said = await check("the-wrong-key", "good")
        assert code == 1
        assert "providers.p.api_key" in said
        code, said = await check("the-right-key", "bad")
        assert code == 1
        assert "providers.p.model" in said
        code, said = await check("the-right-key", "good", "http://127.0.0.1:9")
        assert code == 1
        assert "providers.p.base_url" in said


async def test_check_asks_the_platforms(tmp_path: Path) -> None:
    async with TelegramServer() as telegram, SlackServer() as slack:
        write(
            tmp_path,
            "channels:\n"
            f"  telegram: {{token: '{telegram.token}', base_url: '{telegram.base_url}'}}\n"
            f"  slack: {{bot_token: {BOT_TOKEN}, app_token: {APP_TOKEN}, base_url: '{slack.base_url}'}}\n",
        )
        done = await steadybot_beside("check", cwd=tmp_path)
        assert "steady_bot" in done.stdout
        assert "privacy" in done.stdout.lower()
        assert done.returncode == 0, done.stdout


def test_a_conversation_is_exported_to_read_or_to_keep_and_nothing_is_written_over(tmp_path: Path) -> None:
    steadybot("run", cwd=tmp_path, typed="(17 + 4) * 2\n")
    read = steadybot("export", "console/local", cwd=tmp_path)
    assert (read.returncode, read.stderr) == (0, "")
    assert "## Person, " in read.stdout
    assert "- tool `calculator` " in read.stdout
    kept = steadybot("export", "console/local", "--format", "json", "-o", "c.json", cwd=tmp_path)
    assert kept.returncode == 0
    whole = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [message["role"] for message in whole["messages"]] == ["user", "assistant", "user", "assistant"]
    assert "c.json: can't be written" in one_line(
        steadybot("export", "console/local", "-o", "c.json", cwd=tmp_path), 1
    )
    assert 'no session "nobody"' in one_line(steadybot("export", "nobody", cwd=tmp_path), 1)
