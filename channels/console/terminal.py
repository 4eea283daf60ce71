"""The console on a terminal: a line to type on that stays usable while an answer streams above it.

What is finished is printed above the line for good; what may still change is drawn with the line and redrawn in
place, so nothing flickers and the scrollback holds only finished text. Imported only where there is a terminal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings.completion import generate_completions
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from channels.base import CommandInfo, Undeliverable
from channels.console.clean import clean
from channels.console.others import others_write
from channels.console.progress import Live, NoticePiece, Piece, TextPiece, ToolPiece
from channels.console.render import INDENT, Renderer, finished_length
from channels.console.ui import Host

PROMPT = "you › "
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ROWS_FOR_INPUT = 6
_WAITING_LINES = 100
_STYLE = Style.from_dict({"prompt": "ansicyan bold", "quiet": "ansibrightblack"})


class TerminalUi:
    """See the module. `environ` is read for TERM and NO_COLOR."""

    def __init__(self, entered: TextIO, written: TextIO, history: Path, environ: Mapping[str, str]) -> None:
        self._input = create_input(entered)
        self._output = Vt100_Output.from_pty(written, term=environ.get("TERM"))
        # Without this each print would wait for the terminal to tell where its cursor is.
        self._output.enable_cpr = False
        color = not environ.get("NO_COLOR")
        self._renderer = Renderer(color=color)
        self._depth = None if color else ColorDepth.DEPTH_1_BIT
        self._history = history
        self._app: Application[None] | None = None
        self._live: Live | None = None
        self._drawn: tuple[Live | None, int, int, str] = (None, 0, 0, "")
        self._frames = count()
        self._hint = ""
        self._in_answer = False

    def finished(self, text: str) -> int:
        """How much of a growing text can be printed for good: whole Markdown blocks."""
        return finished_length(text)

    async def run(self, host: Host, commands: Sequence[CommandInfo]) -> None:
        """Lets the person type until they leave."""
        waiting: asyncio.Queue[str | None] = asyncio.Queue(_WAITING_LINES)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send_all(host, waiting))

            def interrupted() -> bool:
                if not host.is_running():
                    return False
                tasks.create_task(host.cancel())
                return True

            await self._type(commands, waiting, interrupted)
            await waiting.put(None)
            await sending

    async def _type(
        self, commands: Sequence[CommandInfo], waiting: asyncio.Queue[str | None], interrupted: Callable[[], bool]
    ) -> None:
        self._prepare_history()

        def entered(text: str) -> None:
            try:
                waiting.put_nowait(text)
            except asyncio.QueueFull:
                self._print(self._quiet("too many messages are waiting; this one was not taken"))

        self._app = self._application(commands, entered, interrupted)
        self._print(self._quiet("steadybot · /help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves"))
        with others_write(self._print):
            try:
                # Ctrl-C arrives as a key; the process's own SIGINT handler stays in place.
                await self._app.run_async(handle_sigint=False, set_exception_handler=False)
            except (EOFError, OSError):  # the terminal was closed
                pass
            finally:
                self._app = None

    async def show(self, pieces: Sequence[Piece], live: Live | None) -> None:
        """Prints the pieces above the line, and draws what is still open. Raises Undeliverable."""
        self._live = live
        try:
            for piece in pieces:
                self._show_piece(piece)
        except (OSError, ValueError) as error:
            raise Undeliverable(f"the terminal is gone: {error}") from error
        if self._app is not None:
            self._app.invalidate()

    async def start_answer(self) -> None:
        self._in_answer = False

    async def end_answer(self) -> None:
        self._in_answer = False

    def _show_piece(self, piece: Piece) -> None:
        width = self._output.get_size().columns
        match piece:
            case TextPiece(text):
                if text.strip():
                    self._print("\n" + self._renderer.markdown(text, width))
                    self._in_answer = False
            case ToolPiece(line):
                self._print(("" if self._in_answer else "\n") + self._renderer.tool(line, width))
                self._in_answer = True
            case NoticePiece(text):
                self._print(self._quiet(clean(text)))

    def _quiet(self, text: str) -> str:
        return self._renderer.notice(text)

    def _print(self, text: str) -> None:
        """For good, above the line. Never leaves raw mode, so no key that is typed meanwhile is lost."""
        if self._app is not None and self._app.is_running:
            self._app.renderer.erase()
        self._output.write_raw(text + "\n")
        self._output.flush()
        if self._app is not None:
            self._app.invalidate()

    def _application(
        self, commands: Sequence[CommandInfo], entered: Callable[[str], None], interrupted: Callable[[], bool]
    ) -> Application[None]:
        def accept(buffer: Buffer) -> bool:
            text = buffer.text
            self._hint = ""
            if text.strip():
                self._in_answer = False
                self._print("\n" + self._renderer.asked(text.strip("\n"), self._output.get_size().columns))
                entered(text)
            return False

        names = [f"/{command.name}" for command in commands]
        completer = WordCompleter(names, meta_dict={}, sentence=True)
        buffer = Buffer(
            history=FileHistory(str(self._history)), completer=completer, multiline=True, accept_handler=accept
        )
        typing = Window(
            BufferControl(buffer), wrap_lines=True, dont_extend_height=True, get_line_prefix=_line_prefix
        )
        above = Window(FormattedTextControl(self._above), dont_extend_height=True)
        return Application(
            layout=Layout(HSplit([above, typing]), focused_element=typing),
            key_bindings=self._keys(buffer, interrupted),
            style=_STYLE,
            color_depth=self._depth,
            erase_when_done=True,
            input=self._input,
            output=self._output,
        )

    def _keys(self, buffer: Buffer, interrupted: Callable[[], bool]) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _send(_: KeyPressEvent) -> None:
            buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _new_line(_: KeyPressEvent) -> None:
            buffer.insert_text("\n")

        @keys.add("c-c")
        def _stop(_: KeyPressEvent) -> None:
            if interrupted():
                self._hint = ""
            elif buffer.text:
                buffer.reset()
            else:
                self._hint = "nothing is running; Ctrl-D leaves"

        @keys.add("c-d", filter=Condition(lambda: not buffer.text))
        def _leave(event: KeyPressEvent) -> None:
            event.app.exit()

        keys.add("tab", filter=Condition(lambda: buffer.text.startswith("/")))(generate_completions)
        return keys

    def _above(self) -> AnyFormattedText:
        """What is drawn above the line: the open text, the tools that run, what is waited for."""
        lines: StyleAndTextTuples = []
        if self._live is not None:
            lines += to_formatted_text(ANSI(self._live_text(self._live)))
            spin = SPINNER[next(self._frames) % len(SPINNER)]
            status = clean(self._live.status or ("" if self._live.text else "thinking"))
            lines.append(("class:quiet", f"\n{INDENT}{spin} {status}".rstrip()))
        if self._hint:
            lines.append(("class:quiet", f"\n{INDENT}{self._hint}"))
        return [*lines, ("", "\n " if lines else " ")]

    def _live_text(self, live: Live) -> str:
        """Rendered once for each state and size, not once for each turn of the spinner."""
        size = self._output.get_size()
        if self._drawn[:3] != (live, size.columns, size.rows):
            tools = [self._renderer.tool(line, size.columns) for line in live.tools]
            parts = [""]
            if live.text.strip():
                room = size.rows - _ROWS_FOR_INPUT - len(tools)
                parts += [self._renderer.live(live.text, size.columns, room), ""]
            self._drawn = (live, size.columns, size.rows, "\n".join([*parts, *tools]))
        return self._drawn[3]

    def _prepare_history(self) -> None:
        """Only its owner may read what was typed."""
        self._history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._history, os.O_CREAT | os.O_APPEND, 0o600))


async def _send_all(host: Host, waiting: asyncio.Queue[str | None]) -> None:
    while (text := await waiting.get()) is not None:
        await host.send(text)


def _line_prefix(line: int, wrapped: int) -> AnyFormattedText:
    return [("class:prompt", PROMPT)] if line == 0 and wrapped == 0 else " " * len(PROMPT)
