"""Logging: events with fields, one pipeline for ours and the libraries', and no secret in it.

On a terminal they are pretty lines, elsewhere JSON, one object a line.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import TextIO
from urllib.parse import quote

import structlog
from structlog.typing import EventDict, WrappedLogger

from bridge.config import secrets_of
from bridge.settings import Settings

HIDDEN = "[hidden]"

SHAPES = re.compile(
    r"""
    (?<!\d)\d{6,}:[A-Za-z0-9_-]{30,}      # a Telegram bot token, also inside a URL
    | \bx(?:ox[a-z]|app)-[A-Za-z0-9-]{8,} # Slack's tokens
    | \bsk-[A-Za-z0-9_-]{16,}             # keys of OpenAI, Anthropic and many that follow them
    | (?<=Bearer\ )[A-Za-z0-9._~+/-]{8,}=*
    """,
    re.VERBOSE,
)
"""What a secret looks like, for those that are not in our config (a library's, a user's)."""


class Redactor:
    """Replaces secrets in text: those given, as they are and as they stand in a URL, and what looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {form for secret in secrets for form in (secret, quote(secret, safe=""))}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return SHAPES.sub(HIDDEN, text)


class _RedactingRenderer:
    """The last step of the pipeline: whatever was rendered, tracebacks included, goes out without secrets."""

    def __init__(self, renderer: structlog.typing.Processor, redact: Redactor) -> None:
        self._renderer = renderer
        self._redact = redact

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        return self._redact(str(self._renderer(logger, name, event)))


def configure_logging(settings: Settings, stream: TextIO = sys.stderr) -> None:
    """Sets the process's logging up. With a console channel the level is `warning` unless the config names one:
    there, standard error is where a person reads answers."""
    pretty = settings.log.format == "pretty" or (settings.log.format == "auto" and stream.isatty())
    level = getattr(logging, _level(settings).upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=not pretty),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    )
    end: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if not pretty:
        end.append(structlog.processors.format_exc_info)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[*end, _RedactingRenderer(renderer, Redactor(secrets_of(settings)))],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries say little unless one looks for something; ours say what the level lets through.
    root.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    for room in ("agent", "bridge", "channels"):
        logging.getLogger(room).setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _level(settings: Settings) -> str:
    chosen = "log" in settings.model_fields_set and "level" in settings.log.model_fields_set
    if settings.channels.console is not None and not chosen:
        return "warning"
    return settings.log.level
