"""The console where there is no terminal on both ends: lines in, text out, no escape codes.

Questions are read only as fast as they are answered. Answers go to standard output; tool calls and notices, which
are no part of an answer, go to standard error.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TextIO

from channels.base import CommandInfo, Undeliverable
from channels.console.clean import clean, clean_line
from channels.console.progress import Live, NoticePiece, Piece, TextPiece, ToolPiece
from channels.console.ui import Host

LONGEST_LINE = 1_000_000  # characters; a longer one is taken in parts
_READ_BYTES = 65_536


class PlainUi:
    """See the module. `streams` tells whether answers are written as they come (a person watches) or whole."""

    def __init__(self, entered: TextIO, written: TextIO, noted: TextIO) -> None:
        self._entered = entered
        self._written = written
        self._noted = noted
        self.streams = written.isatty()
        self._echoes = written.isatty() and not entered.isatty()
        self._at_line_start = True
        self._writing = asyncio.Lock()

    def finished(self, text: str) -> int:
        """How much of a growing text may be written: all of it to a person, nothing to a pipe."""
        return len(text) if self.streams else 0

    async def run(self, host: Host, commands: Sequence[CommandInfo]) -> None:  # noqa: ARG002 - the Ui's form
        """Each line is a message; the next is read when it is answered. Raises Undeliverable."""
        async for line in _lines(self._entered.fileno()):
            if line.strip():
                if self._echoes:
                    await self._write(f"you › {clean(line)}\n")
                await host.send(line)
                await host.answered()
        # What was left from an earlier run may still be answered here.
        await host.answered()

    async def show(self, pieces: Sequence[Piece], live: Live | None) -> None:  # noqa: ARG002 - nothing is redrawn
        """Writes the pieces. Raises Undeliverable when nobody reads any more."""
        for piece in pieces:
            match piece:
                case TextPiece(text):
                    await self._write(text)
                case ToolPiece(line):
                    mark = "✗" if line.state == "failed" else "·"
                    await self._note(f"{mark} {clean_line(line.name)} {clean_line(line.args)}".rstrip())
                case NoticePiece(text):
                    await self._note(clean(text))

    async def start_answer(self) -> None:
        if not self._at_line_start:
            await self._write("\n\n")

    async def end_answer(self) -> None:
        """Ends the line and leaves an empty one."""
        await self._write("\n" if self._at_line_start else "\n\n")

    async def _note(self, line: str) -> None:
        if self.streams and not self._at_line_start:
            await self._write("\n")
        await self._put(self._noted, line + "\n")

    async def _write(self, text: str) -> None:
        if text:
            await self._put(self._written, text)
            self._at_line_start = text.endswith("\n")

    async def _put(self, stream: TextIO, text: str) -> None:
        def put() -> None:
            stream.write(text)
            stream.flush()

        try:
            async with self._writing:
                await asyncio.to_thread(put)  # a pipe whose reader is slow must not stop the loop
        except (OSError, ValueError) as error:
            raise Undeliverable(f"standard output is closed: {error}") from error


async def _lines(fd: int) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pending = ""
    async for data in _chunks(fd):
        pending += decoder.decode(data)
        *complete, pending = pending.replace("\r\n", "\n").split("\n")
        if len(pending) > LONGEST_LINE:
            complete.append(pending)
            pending = ""
        for line in complete:
            yield line
    pending += decoder.decode(b"", final=True)
    if pending:
        yield pending


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    """Bytes from any kind of file. A thread reads, since the loop can't wait for a plain file or /dev/null; a
    daemon thread on the bare descriptor, since a read from an open terminal can't be ended from outside."""
    loop = asyncio.get_running_loop()
    wanted = threading.Semaphore(0)
    arrived: asyncio.Queue[bytes] = asyncio.Queue(1)

    def read() -> None:
        data = b"-"
        while data:
            wanted.acquire()
            try:
                data = os.read(fd, _READ_BYTES)
            except OSError:
                data = b""
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.put_nowait, data)

    threading.Thread(target=read, name="console input", daemon=True).start()
    while True:
        wanted.release()
        data = await arrived.get()
        if not data:
            return
        yield data
