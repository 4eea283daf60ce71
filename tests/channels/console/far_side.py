"""The far sides of the console: a bridge that answers by script, and a terminal that one can look at."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TextIO

from prompt_toolkit.utils import get_cwidth

from bridge.errors import StoreError
from channels.base import (
    Accepted,
    CancelReply,
    CommandInfo,
    Inbound,
    LiveView,
    OutFile,
    Outgoing,
    Place,
    ReplyContext,
    Sender,
)
from channels.console import ConsoleChannel
from channels.console.adapter import PLACE, Streams
from channels.console.terminal import SPINNER

PATIENCE = 20.0  # seconds until a test gives up waiting

Answer = Callable[[str, LiveView], Awaitable[str]]


async def echo(text: str, view: LiveView) -> str:
    """The plainest script."""
    view.append(f"You said {text}")
    return f"You said {text}"


class FakeBridge:
    """An Intake that keeps the real one's promises: in order, one run at a time, `is_running` until delivered."""

    def __init__(self, channel: ConsoleChannel, answer: Answer = echo) -> None:
        self.channel = channel
        self.answer = answer
        self.accepted: list[Inbound] = []
        self.cancelled: list[str] = []
        self.verdict = Accepted.STORED
        self.broken = False
        self.files: tuple[OutFile, ...] = ()
        self._pending = 0
        self._queue: asyncio.Queue[Inbound] = asyncio.Queue()
        self._running: asyncio.Task[str] | None = None
        self._changed = asyncio.Condition()

    async def accept(self, inbound: Inbound) -> Accepted:
        if self.broken:
            raise StoreError("disk full")
        async with self._changed:
            self.accepted.append(inbound)
            self._changed.notify_all()
        if self.verdict is not Accepted.STORED:
            return self.verdict
        if inbound.text.startswith("/"):
            if inbound.text == "/cancel" and self._running is not None:
                self._running.cancel()
            await self.channel.deliver(Outgoing(PLACE, f"command {inbound.text[1:]}", files=self.files))
            return Accepted.COMMAND
        self._pending += 1
        self._queue.put_nowait(inbound)
        return Accepted.STORED

    async def cancel(self, request_id: str, place: Place, sender: Sender) -> CancelReply:
        self.cancelled.append(request_id)
        if self._running is None:
            return CancelReply.NOTHING_RUNNING
        self._running.cancel()
        return CancelReply.STOPPED

    def is_running(self, place: Place) -> bool:
        return self._pending > 0

    async def knows(self, place: Place) -> bool:
        return True

    async def arrived(self, count: int) -> list[str]:
        """The texts of the messages, once there are so many."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.accepted) >= count)
        return [inbound.text for inbound in self.accepted]

    async def work(self) -> None:
        while True:
            inbound = await self._queue.get()
            view = LiveView()
            context = ReplyContext(f"request-{inbound.message_ref}", PLACE, view)
            async with self.channel.reply(context) as stream:
                self._running = asyncio.create_task(self._answered(inbound.text, view))
                try:
                    final = await self._running
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise
                    final = view.snapshot().text + "\n\n_(Cancelled by user)_"
                self._running = None
                posted = await stream.stop()
            await self.channel.deliver(Outgoing(PLACE, final, posted))
            self._pending -= 1

    async def _answered(self, text: str, view: LiveView) -> str:
        return await self.answer(text, view)


@contextlib.asynccontextmanager
async def running(
    streams: Streams, data_dir: Path, answer: Answer = echo
) -> AsyncIterator[tuple[FakeBridge, asyncio.Task[None]]]:
    """A started console with its bridge, and the task of its `run`."""
    channel = ConsoleChannel(data_dir, streams)
    bridge = FakeBridge(channel, answer)
    await channel.start([CommandInfo("cancel", "stops the answer"), CommandInfo("status", "what goes on")])
    worker = asyncio.create_task(bridge.work())
    run = asyncio.create_task(channel.run(bridge))
    try:
        yield bridge, run
    finally:
        for task in (run, worker):
            task.cancel()
        await asyncio.wait([run, worker])
        await channel.aclose()


class Terminal:
    """A pseudo-terminal with somebody who types and looks. `raw` is all that was ever written to it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.entered: TextIO = os.fdopen(slave, "r", encoding="utf-8")
        self.written: TextIO = os.fdopen(os.dup(slave), "w", encoding="utf-8")
        self.raw = ""
        self._screen = Screen(columns, rows)
        self._news = asyncio.Event()
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)

    @property
    def streams(self) -> Streams:
        return Streams(self.entered, self.written, self.written)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def shows(self, *texts: str) -> list[str]:
        """The lines, scrollback included, once all the texts are among them."""
        return await self._until(lambda screen: all(text in screen for text in texts), f"to show {texts}")

    async def no_longer_shows(self, text: str) -> list[str]:
        return await self._until(lambda screen: text not in screen, f"to no longer show {text!r}")

    async def rests(self) -> list[str]:
        """The lines, once no answer is under way any more."""
        return await self._until(lambda screen: not set(screen) & set(SPINNER), "to come to rest")

    async def drew(self, raw: str) -> None:
        """Once this was written to it, whatever became of it."""
        await self._until(lambda _: raw in self.raw, f"to draw {raw!r}")

    def styled_lines(self) -> list[str]:
        return self._screen.styled_lines()

    def settings(self) -> list[object]:
        return list(termios.tcgetattr(self.entered.fileno()))

    def hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()
        self.entered.close()
        with contextlib.suppress(OSError):
            self.written.close()

    async def _until(self, seen: Callable[[str], bool], wanted: str) -> list[str]:
        try:
            async with asyncio.timeout(PATIENCE):
                while not seen("\n".join(self._screen.lines())):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited for the terminal {wanted}, it shows {self._screen.lines()}") from None
        return self._screen.lines()

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536).decode(errors="replace")
        except OSError:
            return
        self.raw += data
        self._screen.feed(data)
        self._news.set()


@contextlib.asynccontextmanager
async def talking(
    terminal: Terminal, data_dir: Path, answer: Answer = echo
) -> AsyncIterator[tuple[FakeBridge, asyncio.Task[None]]]:
    """As `running`, once the line to type on is there: before, the kernel itself would edit what is typed."""
    async with running(terminal.streams, data_dir, answer) as (bridge, run):
        await terminal.shows("you ›")
        yield bridge, run


_SEQUENCE = re.compile(r"\x1b\[(?P<digits>[?0-9;]*)(?P<end>[ -/]*[A-Za-z])|\x1b(?P<other>[^\[])|(?P<char>.)", re.S)


Cell = tuple[str, str]  # a character and its style, as the digits of an SGR sequence


class Screen:
    """As much of a VT100 as is needed to tell what a person sees; raises for what it does not know."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._height = columns, rows
        self._rows: list[list[Cell]] = [[] for _ in range(rows)]
        self._scrollback: list[list[Cell]] = []
        self._x = self._y = 0
        self._style = ""
        self._pending = ""

    def lines(self) -> list[str]:
        """Scrollback and screen, without spaces and empty lines at the end."""
        lines = ["".join(char for char, _ in row).rstrip() for row in self._scrollback + self._rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def styled_lines(self) -> list[str]:
        """As `lines`, with their colours."""
        rows = (self._scrollback + self._rows)[: len(self.lines())]
        return ["".join(f"\x1b[0;{style}m{char}" for char, style in row) + "\x1b[0m" for row in rows]

    def feed(self, data: str) -> None:
        data = self._pending + data
        cut = data.rfind("\x1b")
        whole = cut < 0 or _SEQUENCE.match(data, cut) is not None
        data, self._pending = (data, "") if whole else (data[:cut], data[cut:])
        for match in _SEQUENCE.finditer(data):
            if match["end"]:
                self._control(match["digits"], match["end"])
            elif match["char"]:
                self._write(match["char"])
            else:
                raise AssertionError(f"unknown escape sequence {match[0]!r}")

    def _control(self, digits: str, end: str) -> None:
        if digits.startswith("?") or end == " q":
            return
        if end == "m":
            self._set_style(digits)
            return
        count = int(digits or 1)
        row = self._rows[self._y]
        match end:
            case "A":
                self._y = max(self._y - count, 0)
            case "B":
                self._y = min(self._y + count, self._height - 1)
            case "C":
                self._x = min(self._x + count, self._columns - 1)
            case "D":
                self._x = max(self._x - count, 0)
            case "K":
                del row[self._x :]
            case "J":
                del row[self._x :]
                self._rows[self._y + 1 :] = [[] for _ in range(self._height - self._y - 1)]
            case _:
                raise AssertionError(f"unknown control sequence {digits}{end}")

    def _set_style(self, digits: str) -> None:
        for code in (digits or "0").split(";"):
            self._style = "" if int(code or 0) == 0 else f"{self._style};{code}".strip(";")

    def _write(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\n":
            self._down()
        elif char == "\b":
            self._x = max(self._x - 1, 0)
        elif char >= " ":
            self._put(char)
        else:
            raise AssertionError(f"control character {char!r} reached the terminal")

    def _put(self, char: str) -> None:
        width = get_cwidth(char)
        if self._x + width > self._columns:
            self._x = 0
            self._down()
        row = self._rows[self._y]
        row += [(" ", "")] * (self._x + width - len(row))
        row[self._x : self._x + width] = [(char, self._style)] + [("", "")] * (width - 1)
        self._x += width

    def _down(self) -> None:
        if self._y + 1 < self._height:
            self._y += 1
        else:
            self._scrollback.append(self._rows.pop(0))
            self._rows.append([])
