"""Logging: events with fields, one pipeline for ours and the libraries', and no secret in it.

On a terminal they are pretty lines, elsewhere JSON, one object a line.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import threading
from types import TracebackType
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from bridge.redact import SecretFilter, secrets_of
from bridge.settings import Settings

ROOMS = ("agent", "bridge", "channels")
"""Whose loggers are ours."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def configure_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Sets the process's logging up, to this stream (None: standard error), uncaught exceptions included.

    With a console channel the level is `warning` unless the config names one: there, standard error is where a
    person reads answers. Libraries are told from `warning` on, below that only at `debug`.
    """
    stream = sys.stderr if stream is None else stream
    level = getattr(logging, _level(settings).upper())
    pretty = settings.log.format == "pretty" or (settings.log.format == "auto" and stream.isatty())
    fields = _fields(pretty=pretty)
    handler = _Handler(stream)
    handler.setFormatter(_formatter(fields, SecretFilter(secrets_of(settings)), stream, pretty=pretty))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    for room in ROOMS:
        logging.getLogger(room).setLevel(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *fields,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _level(settings: Settings) -> str:
    chosen = "log" in settings.model_fields_set and "level" in settings.log.model_fields_set
    if settings.channels.console is not None and not chosen:
        return "warning"
    return settings.log.level


def _fields(*, pretty: bool) -> list[Processor]:
    """What each record gets, ours and the libraries' alike."""
    # A person reads local time, a machine sorts UTC; both name their zone.
    time = (
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S%z", utc=False)
        if pretty
        else structlog.processors.TimeStamper(fmt="iso", utc=True)
    )
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        time,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(
    fields: list[Processor], hide: SecretFilter, stream: TextIO, *, pretty: bool
) -> structlog.stdlib.ProcessorFormatter:
    processors: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if pretty:
        renderer: Processor = structlog.dev.ConsoleRenderer(
            colors=stream.isatty() and not os.environ.get("NO_COLOR"), exception_formatter=_plain_traceback
        )
        processors += [_without_control_characters]
    else:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
        processors += [structlog.processors.format_exc_info]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=fields, processors=[*processors, _FilteringRenderer(renderer, hide)]
    )


class _FilteringRenderer:
    """The last step of the pipeline: whatever was rendered, tracebacks included, goes out without secrets."""

    def __init__(self, renderer: Processor, hide: SecretFilter) -> None:
        self._renderer = renderer
        self._hide = hide

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        return self._hide(str(self._renderer(logger, name, event)))


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _without_control_characters(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A chat's text in a field must not move the cursor of the terminal that shows the log, or forge a line."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _escaped(value).replace("\n", "\\n")
    return event


def _plain_traceback(stream: TextIO, exception: ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, exception)
    stream.write(_escaped(plain.getvalue()))


class _Handler(logging.StreamHandler[TextIO]):
    """The standard library prints a record that it can't format with all its arguments, secrets included."""

    def handleError(self, record: logging.LogRecord) -> None:
        kind = sys.exc_info()[0]
        with contextlib.suppress(OSError, ValueError):
            name = kind.__name__ if kind is not None else "error"
            self.stream.write(f"a log record of {record.name} could not be written: {name}\n")


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None, thread: str = ""
) -> None:
    """Python itself prints an uncaught exception as it is, with the token in the address that failed."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    where = {"thread": thread} if thread else {}
    structlog.get_logger("bridge").critical("app.crashed", exc_info=(kind, error, traceback), **where)


def _log_uncaught_in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not issubclass(found.exc_type, SystemExit):
        name = found.thread.name if found.thread is not None else "unknown"
        _log_uncaught(found.exc_type, found.exc_value, found.exc_traceback, name)
