"""Makes docs/console.svg: a real session of the bot with the offline model, typed into a real pseudo-terminal.

python -m docs.picture             # from the repository's root, with the development packages
python -m docs.picture COMMAND …   # another program than `steadybot run`
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.channels.console.far_side import Terminal

TARGET = Path(__file__).parent / "console.svg"
COLUMNS, ROWS = 84, 50
CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"
CONFIG = "data_dir: {data}\nchannels: {{console: {{}}}}\n"


async def record(command: Sequence[str]) -> list[str]:
    """What the terminal shows in the end, with colours."""
    terminal = Terminal(COLUMNS, ROWS)
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=terminal.entered,
        stdout=terminal.written,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        await terminal.shows("you ›")
        terminal.type("what time is it in Tokyo?\r")
        await terminal.shows("config.example.yaml")
        await terminal.rests()
        terminal.type("15% of 80\r")
        await terminal.shows("= 12")
        await terminal.rests()
        terminal.type("tell me a long story\r")
        await terminal.shows("2. The storm", "names of")
        terminal.type("and what is 2**64?" + CTRL_C)
        await terminal.shows("Cancelled by user")
        await terminal.rests()
        await terminal.shows("you › and what is 2**64?")
        lines = terminal.styled_lines()
        terminal.type(CTRL_U + CTRL_D)
        await asyncio.wait_for(process.wait(), 10)
        return lines
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        terminal.close()


def svg(lines: Sequence[str]) -> str:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    picture = console.export_svg(title="steadybot", unique_id="steadybot")
    # Without this some programs leave out the spaces at the start of a line.
    picture = picture.replace("<svg ", '<svg xml:space="preserve" ', 1)
    # Fonts of the reader's own machine only: the picture asks no other host for anything.
    return re.sub(r",\s*url\([^)]*\)\s*format\([^)]*\)", "", picture)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.yaml"
        config.write_text(CONFIG.format(data=directory), encoding="utf-8")
        own = [str(Path(sys.executable).parent / "steadybot"), "run", "-c", str(config)]
        lines = asyncio.run(record(sys.argv[1:] or own))
    TARGET.write_text(svg(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
