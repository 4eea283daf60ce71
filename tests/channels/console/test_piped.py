"""The console without a terminal on both ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import pytest

from bridge.settings import ConsoleSettings
from channels.base import Inbound, LiveView, Outgoing, Sender, ToolLine, Undeliverable
from channels.console import ConsoleChannel, open_channel, plain
from channels.console.adapter import PLACE, Streams
from tests.channels.console.far_side import PATIENCE, FakeBridge, Terminal, running


class Pipes:
    """Standard input, output and error as files, so that everything written can be read afterwards."""

    def __init__(self, directory: Path) -> None:
        self._out, self._err = directory / "out", directory / "err"
        read, self._typing = os.pipe()
        self.entered: TextIO = os.fdopen(read, encoding="utf-8")
        self.written: TextIO = self._out.open("w", encoding="utf-8")
        self.noted: TextIO = self._err.open("w", encoding="utf-8")

    @property
    def streams(self) -> Streams:
        return Streams(self.entered, self.written, self.noted)

    def type(self, text: str | bytes) -> None:
        os.write(self._typing, text if isinstance(text, bytes) else text.encode())

    def end(self) -> None:
        os.close(self._typing)
        self._typing = -1

    def out(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def err(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def close(self) -> None:
        if self._typing >= 0:
            self.end()
        for file in (self.entered, self.written, self.noted):
            file.close()


@pytest.fixture
async def pipes(tmp_path: Path) -> AsyncIterator[Pipes]:
    pipes = Pipes(tmp_path)
    yield pipes
    pipes.close()


async def test_every_line_is_answered_in_order_and_then_it_ends(pipes: Pipes, tmp_path: Path) -> None:
    pipes.type("one\r\n\n  \n/status\ntwo **bold** é\nlast without an end")
    pipes.end()
    async with running(pipes.streams, tmp_path) as (bridge, run):
        await asyncio.wait_for(run, PATIENCE)
    assert pipes.out() == (
        "You said one\n\ncommand status\n\nYou said two **bold** é\n\nYou said last without an end\n\n"
    )
    assert pipes.err() == ""
    keys = {inbound.event_keys for inbound in bridge.accepted}
    assert len(keys) == 4
    assert bridge.accepted[0].place == PLACE
    assert bridge.accepted[0].sender.id


async def test_two_processes_never_share_an_event_key(pipes: Pipes, tmp_path: Path) -> None:
    keys: set[tuple[str, ...]] = set()
    pipes.type("one\n")
    for _ in range(2):
        async with running(pipes.streams, tmp_path) as (bridge, _run):
            await bridge.arrived(1)
            keys.add(bridge.accepted[0].event_keys)
            pipes.type("one\n")
    assert len(keys) == 2


async def test_the_next_line_is_not_taken_in_before_the_last_is_delivered(pipes: Pipes, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)

    async def answer(text: str, view: LiveView) -> str:
        order.append(f"start {text}")
        await gate.acquire()
        order.append(f"end {text}")
        return text

    order: list[str] = []
    pipes.type("one\ntwo\n")
    pipes.end()
    async with running(pipes.streams, tmp_path, answer) as (bridge, run):
        await bridge.arrived(1)
        gate.release()
        await bridge.arrived(2)
        assert pipes.out() == "one\n\n"
        gate.release()
        await asyncio.wait_for(run, PATIENCE)
    assert order == ["start one", "end one", "start two", "end two"]


@pytest.mark.parametrize("source", ["/dev/null", "file"])
async def test_any_kind_of_input_can_end(source: str, pipes: Pipes, tmp_path: Path) -> None:
    path = Path(source)
    if source == "file":
        path = tmp_path / "questions"
        path.write_text("one\ntwo", encoding="utf-8")
    with path.open(encoding="utf-8") as entered:
        async with running(Streams(entered, pipes.written, pipes.noted), tmp_path) as (_, run):
            await asyncio.wait_for(run, PATIENCE)
    assert pipes.out() == ("" if source == "/dev/null" else "You said one\n\nYou said two\n\n")


async def test_what_was_left_from_an_earlier_process_is_waited_for_at_the_end(
    pipes: Pipes, tmp_path: Path
) -> None:
    channel = ConsoleChannel(tmp_path, pipes.streams)
    bridge = FakeBridge(channel)
    left = Inbound(("old",), PLACE, Sender("me", "me"), "left over", datetime.now(UTC), message_ref="1")
    await bridge.accept(left)
    pipes.end()
    worker = asyncio.create_task(bridge.work())
    await asyncio.wait_for(channel.run(bridge), PATIENCE)
    assert pipes.out() == "You said left over\n\n"
    worker.cancel()
    await asyncio.wait([worker])


async def test_what_was_left_unanswered_is_waited_for_at_the_end(pipes: Pipes, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(text: str, view: LiveView) -> str:
        await gate.wait()
        return text

    async with running(pipes.streams, tmp_path, answer) as (bridge, run):
        pipes.type("one\n")
        await bridge.arrived(1)
        pipes.end()
        assert not run.done()
        gate.set()
        await asyncio.wait_for(run, PATIENCE)
    assert pipes.out() == "one\n\n"


async def test_it_can_be_stopped_while_it_waits_for_input(pipes: Pipes, tmp_path: Path) -> None:
    async with running(pipes.streams, tmp_path) as (bridge, run):
        pipes.type("one\n")
        await bridge.arrived(1)
        run.cancel()
        await asyncio.wait_for(asyncio.wait([run]), PATIENCE)


async def test_tool_calls_go_to_standard_error_and_only_the_answer_to_output(pipes: Pipes, tmp_path: Path) -> None:
    async def answer(text: str, view: LiveView) -> str:
        view.append("Half of ")
        view.tool("a", ToolLine("time", "Tokyo", "running"))
        view.tool_done("a", failed=False)
        view.tool("b", ToolLine("search", "x\ny", "running"))
        view.tool_done("b", failed=True)
        return "# Whole\n"

    pipes.type("x\n")
    pipes.end()
    async with running(pipes.streams, tmp_path, answer) as (_, run):
        await asyncio.wait_for(run, PATIENCE)
    assert pipes.out() == "# Whole\n\n"
    assert pipes.err() == "· time Tokyo\n✗ search x y\n"


async def test_control_characters_are_made_visible(pipes: Pipes, tmp_path: Path) -> None:
    async def answer(text: str, view: LiveView) -> str:
        return "\x1b[31mred\x07\x9b"

    pipes.type("x\n")
    pipes.end()
    async with running(pipes.streams, tmp_path, answer) as (_, run):
        await asyncio.wait_for(run, PATIENCE)
    assert pipes.out() == "␛[31mred␇�\n\n"


async def test_bytes_that_are_no_text_and_lines_without_end_are_taken_as_they_can_be(
    pipes: Pipes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "LONGEST_LINE", 10)
    pipes.type(b"a\xff\n" + b"b" * 25 + b"\xc3")
    pipes.end()
    async with running(pipes.streams, tmp_path) as (bridge, run):
        await asyncio.wait_for(run, PATIENCE)
    texts = [inbound.text for inbound in bridge.accepted]
    assert texts[0] == "a�"
    assert "".join(texts[1:]) == "b" * 25 + "�"


async def test_a_message_that_can_not_be_stored_is_said_to_be_and_the_next_is_taken(
    pipes: Pipes, tmp_path: Path
) -> None:
    pipes.type("one\ntwo\n")
    pipes.end()
    async with running(pipes.streams, tmp_path) as (bridge, run):
        bridge.broken = True
        await asyncio.wait_for(run, PATIENCE)
    assert pipes.err().count("could not be stored") == 2
    assert "disk full" in pipes.err()


async def test_when_nobody_reads_the_output_it_ends_and_the_answer_is_undeliverable(
    pipes: Pipes, tmp_path: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    written = os.fdopen(write, "w", encoding="utf-8")
    channel = ConsoleChannel(tmp_path, Streams(pipes.entered, written, pipes.noted))
    with pytest.raises(Undeliverable, match="standard output is closed"):
        await channel.deliver(Outgoing(PLACE, "text"))
    with contextlib.suppress(BrokenPipeError):  # what is unwritten still is
        written.close()


async def test_a_person_who_watches_sees_questions_and_growing_answers_without_escape_codes(
    pipes: Pipes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    gate = asyncio.Semaphore(0)

    async def answer(text: str, view: LiveView) -> str:
        view.append("Let me **see")
        await gate.acquire()
        view.append("**.")
        view.tool("a", ToolLine("time", "Tokyo", "done"))
        await gate.acquire()
        view.append("\n\nNoon.")
        await gate.acquire()
        return "Let me **see**.\n\nNoon.\n\nYours."

    pipes.type("when?\nand?\n")
    pipes.end()
    async with running(Streams(pipes.entered, terminal.written, terminal.written), tmp_path, answer) as (_, run):
        await terminal.shows("you › when?", "Let me **see")
        gate.release()
        await terminal.shows("· time Tokyo")
        for _ in range(5):
            gate.release()
        await terminal.shows("you › and?", "Yours.")
        await asyncio.wait_for(run, PATIENCE)
        lines = await terminal.shows("you › and?")
    assert "\x1b" not in terminal.raw
    assert lines[:9] == ["you › when?", "Let me **see**.", "· time Tokyo", "", "", "Noon.", "", "Yours.", ""]
    terminal.close()


async def test_check_says_how_it_would_run(tmp_path: Path) -> None:
    findings = await open_channel(ConsoleSettings(), data_dir=tmp_path).check()
    assert [finding.ok for finding in findings] == [True]


def test_what_only_a_terminal_needs_is_not_imported_for_a_pipe() -> None:
    code = (
        "import sys, channels.console, channels.console.plain;"
        "print([name for name in ('rich', 'prompt_toolkit', 'markdown_it', 'pygments') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
