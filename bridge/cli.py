"""The command line. Exit codes: 0 clean, 2 bad config, 1 otherwise."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bridge.lean import without_rich

with without_rich():
    import structlog.dev  # noqa: F401  # before anything that logs

from bridge.config import json_schema, load_settings
from bridge.errors import SteadybotError
from bridge.log import configure_logging
from bridge.settings import Settings
from channels.base import ChannelError


def main(argv: Sequence[str] | None = None) -> None:
    """The `steadybot` command."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        code = command(arguments)
    except SteadybotError as error:
        code = _complain(str(error), error.exit_code)
    except ChannelError as error:
        code = _complain(str(error), 1)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("steadybot", description="A chat bot for Telegram and Slack.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("-c", "--config", type=Path, metavar="FILE", help="default: ./config.yaml if it is there")
        sub.set_defaults(command=command)
        return sub

    add("run", _run, "start the bot")
    add("check", _check, "validate the config, then ask each platform and provider whether the keys work")
    config = commands.add_parser("config", help="about the config file")
    config_commands = config.add_subparsers(required=True, metavar="COMMAND")
    schema = config_commands.add_parser("schema", help="print the JSON schema of the config, for editors")
    schema.set_defaults(command=_schema)
    allow = add("allow", _allow, "let a person in, by pairing code or user id")
    allow.add_argument("channel")
    allow.add_argument("code", metavar="CODE_OR_ID")
    add("sessions", _sessions, "list the conversations")
    history = add("export", _export, "write the whole history of one conversation")
    history.add_argument("session", help="as `steadybot sessions` names it")
    history.add_argument("--format", choices=("md", "json"), default="md")
    history.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
    backup = add("backup", _backup, "write a consistent copy of the database, also while the bot runs")
    backup.add_argument("target", type=Path)
    return parser


def _complain(text: str, code: int) -> int:
    for line in text.splitlines():
        print(f"steadybot: {line}", file=sys.stderr)  # noqa: T201
    return code


def _say(text: str) -> None:
    print(text)  # noqa: T201


def _settings(arguments: argparse.Namespace) -> Settings:
    return load_settings(arguments.config, os.environ)


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    configure_logging(settings)
    from bridge.app import run_app

    asyncio.run(run_app(settings))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    configure_logging(settings)
    from bridge.check import check

    findings = asyncio.run(check(settings))
    for finding in findings:
        _say(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}{f' – {finding.mend}' if finding.mend else ''}")
    return 0 if all(finding.ok for finding in findings) else 1


def _schema(_: argparse.Namespace) -> int:
    _say(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


def _allow(arguments: argparse.Namespace) -> int:
    from bridge.admin import allow

    _say(asyncio.run(allow(_settings(arguments), arguments.channel, arguments.code, datetime.now(UTC))))
    return 0


def _sessions(arguments: argparse.Namespace) -> int:
    from bridge.admin import list_sessions

    for line in asyncio.run(list_sessions(_settings(arguments))):
        _say(line)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from bridge.admin import export_session

    text = asyncio.run(export_session(_settings(arguments), arguments.session, arguments.format))
    if arguments.output is None:
        _say(text)
        return 0
    try:
        with arguments.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SteadybotError(f"{arguments.output}: can't be written ({error.strerror})") from error
    _say(f"written: {arguments.output}")
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    from bridge.admin import backup

    asyncio.run(backup(_settings(arguments), arguments.target))
    _say(f"written: {arguments.target}")
    return 0
