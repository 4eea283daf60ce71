"""What else the process writes to the terminal while a person types there: log lines, warnings, stray prints."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from channels.console.clean import clean

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


@contextmanager
def others_write(put: Callable[[str], None]) -> Iterator[None]:
    """Gives each line that is written to standard output or error to `put`, on the running loop. Log handlers that
    hold on to the terminal are turned to it too, and back at the end."""
    lines = _Lines(put, asyncio.get_running_loop())
    out, err = sys.stdout, sys.stderr
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    turned = [(each, each.stream) for each in handlers if each.stream in (out, err) and each.stream.isatty()]
    sys.stdout = sys.stderr = lines
    for handler, _ in turned:
        handler.setStream(lines)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        for handler, stream in turned:
            handler.setStream(stream)


class _Lines(io.TextIOBase):
    """A text file whose lines go to a callback. May be written from any thread."""

    def __init__(self, put: Callable[[str], None], loop: asyncio.AbstractEventLoop) -> None:
        self._put = put
        self._loop = loop
        self._open = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._put, _harmless(line))
        return len(text)


def _harmless(line: str) -> str:
    """Colours stay, since the log's own renderer makes them."""
    return "".join(part if _COLOUR.fullmatch(part) else clean(part) for part in _COLOUR.split(line))
