"""The console as a channel: one person, one place, on a terminal or in a pipe."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import uuid
import zoneinfo
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from bridge.errors import StoreError
from bridge.settings import ConsoleSettings
from channels.base import (
    Accepted,
    Channel,
    CommandInfo,
    Finding,
    Inbound,
    Intake,
    LiveView,
    OutFile,
    Outgoing,
    Place,
    ReplyContext,
    ReplyStream,
    Sender,
    Undeliverable,
)
from channels.console.progress import Live, NoticePiece, Piece, Progress
from channels.console.ui import Ui

PLACE = Place(channel="console", chat="local")
FRAME_SECONDS = 0.05  # the shortest time between two drawings of a growing answer
SPIN_SECONDS = 0.12  # the longest, so that the person sees that it is alive
POLL_SECONDS = 0.02  # the end of a request is told by `Intake.is_running` alone
_UNDELIVERED_REPLIES = 8


@dataclass(frozen=True, slots=True)
class Streams:
    """Where the console reads and writes."""

    entered: TextIO = field(default_factory=lambda: sys.stdin)
    written: TextIO = field(default_factory=lambda: sys.stdout)
    noted: TextIO = field(default_factory=lambda: sys.stderr)

    @property
    def is_terminal(self) -> bool:
        smart = os.environ.get("TERM", "dumb") != "dumb"
        return smart and self.entered.isatty() and self.written.isatty()


def open_channel(settings: ConsoleSettings, *, data_dir: Path) -> Channel:  # noqa: ARG001
    """The console on this process's standard streams; its settings are for the bridge."""
    return ConsoleChannel(data_dir)


class ConsoleChannel:
    """See the module. `streams` are the process's own unless given."""

    def __init__(self, data_dir: Path, streams: Streams | None = None) -> None:
        self._data_dir = data_dir
        self._streams = streams or Streams()
        self._commands: Sequence[CommandInfo] = ()
        self._opened: Ui | None = None
        self._replies: dict[str, Progress] = {}  # until delivered, by the id that is given out as posted
        self._on_screen: Progress | None = None  # whose open text is drawn, until it is delivered
        self._current_request: str | None = None

    @property
    def name(self) -> str:
        return PLACE.channel

    async def start(self, commands: Sequence[CommandInfo]) -> None:
        """Never raises ChannelSetupError: there is always a console of some kind."""
        self._commands = commands
        self._ui()

    async def run(self, intake: Intake) -> None:
        """Until the person leaves, or the input ends and everything is answered."""
        with suppress(Undeliverable):
            await self._ui().run(_Desk(intake, self.notice, lambda: self._current_request), self._commands)

    @asynccontextmanager
    async def reply(self, context: ReplyContext) -> AsyncIterator[ReplyStream]:
        """Shows the reply as it grows; what is open when it stops stays until `deliver` prints the whole."""
        ui = self._ui()
        shown = uuid.uuid4().hex
        progress = Progress(ui.finished)
        self._remember(shown, progress)
        self._on_screen, self._current_request = progress, context.request_id
        with suppress(Undeliverable):
            await ui.start_answer()
        stream = _ConsoleReply(ui, progress, context.view, shown)
        try:
            yield stream
        finally:
            self._current_request = None
            await stream.stop()

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """Prints what of the text is not there yet. Raises Undeliverable when nobody reads any more."""
        ui = self._ui()
        started = [self._replies.pop(shown) for shown in outgoing.posted if shown in self._replies]
        progress = started[-1] if started else Progress(ui.finished)
        if started:
            self._on_screen = None if self._on_screen is progress else self._on_screen
        else:
            await self._leave_unfinished(ui)
            await ui.start_answer()
        pieces = progress.finish(outgoing.text)
        for file in outgoing.files:
            pieces.append(await self._save(file))
        await ui.show(pieces, self._live())
        await ui.end_answer()
        return outgoing.posted or (uuid.uuid4().hex,)

    async def check(self) -> Sequence[Finding]:
        kind = "on this terminal" if self._streams.is_terminal else "piped, without colour"
        return [Finding(ok=True, what=f"console: {kind}")]

    async def aclose(self) -> None: ...

    async def notice(self, text: str) -> None:
        """Shows a line of the program itself, where there is somebody to see it."""
        with suppress(Undeliverable):
            await self._ui().show([NoticePiece(text)], self._live())

    def _ui(self) -> Ui:
        if self._opened is None:
            self._opened = _open_ui(self._streams, self._data_dir)
        return self._opened

    def _live(self) -> Live | None:
        return self._on_screen.live if self._on_screen is not None else None

    async def _leave_unfinished(self, ui: Ui) -> None:
        """A run that has stopped may be answered by another text (it crashed): what was seen of it stays."""
        if self._on_screen is not None and self._current_request is None:
            pieces, self._on_screen = self._on_screen.abandon(), None
            await ui.show(pieces, None)

    def _remember(self, shown: str, progress: Progress) -> None:
        while len(self._replies) >= _UNDELIVERED_REPLIES:  # a run that crashed gets an answer of its own
            del self._replies[next(iter(self._replies))]
        self._replies[shown] = progress

    async def _save(self, file: OutFile) -> Piece:
        try:
            path = await asyncio.to_thread(_write_new, self._data_dir / "files", file)
        except OSError as error:
            return NoticePiece(f"could not save {file.name}: {error}")
        return NoticePiece(f"saved: {path}")


class _ConsoleReply:
    """A running reply; a task follows the view until `stop`."""

    def __init__(self, ui: Ui, progress: Progress, view: LiveView, shown: str) -> None:
        self._ui = ui
        self._progress = progress
        self._view = view
        self._shown = shown
        self._stopping = False
        self._following = asyncio.create_task(self._follow(), name="console reply")

    async def stop(self) -> tuple[str, ...]:
        self._stopping = True
        self._view.changed.set()
        await self._following
        return (self._shown,)

    async def _follow(self) -> None:
        with suppress(Undeliverable):  # `deliver` will say so
            while not self._stopping:
                self._view.changed.clear()
                pieces = self._progress.advance(self._view.snapshot())
                await self._ui.show(pieces, self._progress.live)
                await asyncio.sleep(FRAME_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(SPIN_SECONDS):
                        await self._view.changed.wait()
            pieces = self._progress.advance(self._view.snapshot())
            await self._ui.show(pieces, self._progress.live)


class _Desk:
    """Host, on top of the bridge's intake."""

    def __init__(
        self,
        intake: Intake,
        notice: Callable[[str], Awaitable[None]],
        current_request: Callable[[], str | None],
    ) -> None:
        self._intake = intake
        self._notice = notice
        self._current_request = current_request
        self._sender = Sender(*_person(), time_zone=local_time_zone())
        self._process = uuid.uuid4().hex
        self._sent = 0

    async def send(self, text: str) -> None:
        self._sent += 1
        key = f"console:{self._process}:{self._sent}"
        inbound = Inbound((key,), PLACE, self._sender, text, datetime.now(UTC), message_ref=str(self._sent))
        try:
            accepted = await self._intake.accept(inbound)
        except StoreError as error:
            await self._notice(f"this could not be stored, so it will not be answered: {error}")
            return
        if accepted is Accepted.FULL:
            await self._notice("too many messages are waiting; please send this one again later")
        elif accepted is Accepted.DENIED:
            await self._notice("you may not talk to this bot")

    async def answered(self) -> None:
        while self._intake.is_running(PLACE):  # noqa: ASYNC110 - the bridge has no event for it
            await asyncio.sleep(POLL_SECONDS)

    def is_running(self) -> bool:
        return self._intake.is_running(PLACE)

    async def cancel(self) -> None:
        request = self._current_request()
        if request is None:  # it waits for its turn, or is being delivered
            await self.send("/cancel")
        else:
            await self._intake.cancel(request, PLACE, self._sender)


def _open_ui(streams: Streams, data_dir: Path) -> Ui:
    if streams.is_terminal:
        from channels.console.terminal import TerminalUi

        return TerminalUi(streams.entered, streams.written, data_dir / "console_history", os.environ)
    from channels.console.plain import PlainUi

    return PlainUi(streams.entered, streams.written, streams.noted)


def _person() -> tuple[str, str]:
    """Id and name of who runs this process."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        name = str(os.getuid())
    return name, name


def local_time_zone() -> str | None:
    """The machine's zone as an IANA name, where it can be told."""
    name = os.environ.get("TZ", "").removeprefix(":")
    if not name:
        _, _, name = os.path.realpath("/etc/localtime").partition("zoneinfo/")
    try:
        return zoneinfo.ZoneInfo(name).key if name else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return None


def _write_new(directory: Path, file: OutFile) -> Path:
    """Never over a file that is there. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    name = Path(file.name).name or "file"
    for number in range(1, 1000):
        path = directory / (name if number == 1 else f"{Path(name).stem}-{number}{Path(name).suffix}")
        with suppress(FileExistsError), path.open("xb") as target:
            target.write(file.data)
            return path
    raise FileExistsError(f"too many files named {name} in {directory}")
