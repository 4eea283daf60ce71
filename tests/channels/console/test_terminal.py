"""The console on a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import Accepted, LiveView, OutFile, Outgoing, ReplyContext, ToolLine
from channels.console.adapter import PLACE
from tests.channels.console.far_side import PATIENCE, Terminal, talking

CTRL_C, CTRL_D, UP, TAB, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\t", "\x1b\r"


@pytest.fixture
async def terminal(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    yield terminal
    terminal.close()


class Script:
    """An answer whose every step the test allows."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts
        self.steps = asyncio.Semaphore(0)
        self.final: str | None = None

    async def __call__(self, text: str, view: LiveView) -> str:
        for part in self.parts:
            view.append(part)
            await self.steps.acquire()
        return self.final if self.final is not None else "".join(self.parts)


def count(lines: list[str], text: str) -> int:
    return sum(line.count(text) for line in lines)


async def test_an_answer_grows_above_the_line_and_stands_there_once_in_the_end(
    terminal: Terminal, tmp_path: Path
) -> None:
    script = Script("First **paragraph**.\n\nSecond ", "paragraph.\n\n- one\n", "- two\n\nLast", " words.")
    async with talking(terminal, tmp_path, script) as (bridge, _):
        terminal.type("hello\r")
        await terminal.shows("you › hello", "First paragraph.", "Second")
        script.steps.release()
        await terminal.shows("Second paragraph.", "• one")
        script.steps.release()
        await terminal.shows("• two", "Last")
        script.steps.release()
        await terminal.shows("Last words.")
        script.steps.release()
        lines = await terminal.rests()
        assert await bridge.arrived(1) == ["hello"]
    for text in ("you › hello", "First paragraph.", "Second paragraph.", "• one", "• two", "Last words."):
        assert count(lines, text) == 1, text
    assert count(lines, "**") == 0


async def test_one_can_type_while_an_answer_runs(terminal: Terminal, tmp_path: Path) -> None:
    script = Script("Working", " on it.")
    async with talking(terminal, tmp_path, script) as (bridge, _):
        terminal.type("begin\r")
        await terminal.shows("Working")
        terminal.type("half a li")
        await terminal.shows("you › half a li")
        script.steps.release()
        await terminal.shows("Working on it.", "you › half a li")
        terminal.type("ne\r")
        assert await bridge.arrived(2) == ["begin", "half a line"]
        for _ in range(4):
            script.steps.release()
        await terminal.shows("you › half a line")
        lines = await terminal.rests()
    assert count(lines, "you › half a line") == 1


async def test_a_command_goes_through_while_an_answer_runs(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path, Script("Working")) as (bridge, _):
        terminal.type("begin\r")
        await terminal.shows("Working")
        terminal.type("/cancel\r")
        lines = await terminal.shows("command cancel", "(Cancelled by user)")
        assert await bridge.arrived(2) == ["begin", "/cancel"]
    assert count(lines, "Working") == 1


async def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path, Script("Working")) as (bridge, run):
        terminal.type("begin\r")
        await terminal.shows("Working")
        terminal.type("kept" + CTRL_C)
        lines = await terminal.shows("(Cancelled by user)", "you › kept")
        assert bridge.cancelled == ["request-1"]
        assert not run.done()
        bridge.answer = Script("Again")
        terminal.type("!\r")
        assert await bridge.arrived(2) == ["begin", "kept!"]
    assert count(lines, "Working") == 1


async def test_ctrl_c_with_nothing_running_clears_the_line_then_says_how_to_leave(
    terminal: Terminal, tmp_path: Path
) -> None:
    async with talking(terminal, tmp_path) as (bridge, run):
        await terminal.shows("you ›")
        terminal.type("nonsense")
        await terminal.shows("you › nonsense")
        terminal.type(CTRL_C)
        await terminal.no_longer_shows("nonsense")
        terminal.type(CTRL_C)
        await terminal.shows("Ctrl-D leaves", "nothing is running")
        assert not run.done()
        assert bridge.cancelled == []
        terminal.type("hello\r")
        await terminal.shows("You said hello")
        await terminal.no_longer_shows("nothing is running")


async def test_ctrl_d_leaves_and_an_answer_still_under_way_is_printed(terminal: Terminal, tmp_path: Path) -> None:
    before = terminal.settings()
    script = Script("Working", " on it.")
    async with talking(terminal, tmp_path, script) as (_, run):
        terminal.type("begin\r")
        await terminal.shows("Working")
        terminal.type(CTRL_D)
        await asyncio.wait_for(run, PATIENCE)
        assert terminal.settings() == before
        script.steps.release()
        script.steps.release()
        lines = await terminal.shows("Working on it.")
    assert count(lines, "Working") == 1


async def test_ctrl_d_in_a_line_does_not_leave(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, run):
        terminal.type("stay" + CTRL_D + "ing\r")
        assert await bridge.arrived(1) == ["staying"]
        assert not run.done()


async def test_the_terminal_is_left_as_it_was_when_the_program_is_stopped(
    terminal: Terminal, tmp_path: Path
) -> None:
    before = terminal.settings()
    async with talking(terminal, tmp_path) as (_, run):
        await terminal.shows("you ›")
        assert terminal.settings() != before
        run.cancel()
        await asyncio.wait([run])
        assert terminal.settings() == before


async def test_a_terminal_that_is_closed_ends_the_console(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (_, run):
        await terminal.shows("you ›")
        terminal.hang_up()
        await asyncio.wait_for(run, PATIENCE)


async def test_tool_calls_are_one_quiet_line_each_between_the_texts(terminal: Terminal, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)

    async def answer(text: str, view: LiveView) -> str:
        view.append("Let me look.")
        await gate.acquire()
        view.tool("a", ToolLine("time", "Tokyo", "running"))
        view.tool("b", ToolLine("search", "x" * 200, "running"))
        await gate.acquire()
        view.tool_done("b", failed=True)
        view.tool_done("a", failed=False)
        view.append("\n\nIt is noon.")
        await gate.acquire()
        return "Let me look.\n\nIt is noon."

    async with talking(terminal, tmp_path, answer):
        terminal.type("time?\r")
        await terminal.shows("Let me look.")
        gate.release()
        await terminal.shows("· time  Tokyo")
        gate.release()
        await terminal.shows("It is noon.")
        gate.release()
        await terminal.shows("✓ time  Tokyo", "✗ search  xxx")
        lines = await terminal.rests()
    order = ["Let me look.", "✓ time  Tokyo", "✗ search", "It is noon."]
    found = [next(i for i, line in enumerate(lines) if text in line) for text in order]
    assert found == sorted(found)
    assert all(count(lines, text) == 1 for text in order)
    assert count(lines, "· time") == 0


async def test_what_the_reply_waits_for_is_shown_while_it_waits(terminal: Terminal, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(text: str, view: LiveView) -> str:
        view.status("rate limit, trying again in 30 s")
        await gate.wait()
        return "Done."

    async with talking(terminal, tmp_path, answer):
        terminal.type("x\r")
        await terminal.shows("rate limit, trying again in 30 s")
        gate.set()
        await terminal.shows("Done.")
        await terminal.no_longer_shows("rate limit")


async def test_an_answer_that_was_started_anew_is_shown_whole(terminal: Terminal, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)

    async def answer(text: str, view: LiveView) -> str:
        view.append("Cats.\n\nAre\n\nfine")
        await gate.acquire()
        view.replace("Dogs.\n\nAre fine")
        await gate.acquire()
        return "Dogs.\n\nAre fine, too."

    async with talking(terminal, tmp_path, answer):
        terminal.type("x\r")
        await terminal.shows("Cats.", "fine")
        gate.release()
        await terminal.shows("Dogs.")
        gate.release()
        lines = await terminal.shows("started anew", "Are fine, too.")
    assert count(lines, "Dogs.") == 1


async def test_a_model_can_not_drive_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\rgone \x1b[10A bell\x07"

    async def answer(text: str, view: LiveView) -> str:
        view.tool("a", ToolLine("t\x1b[2J", "a\x1b]0;x\x07\nb", "running"))
        view.status("wait \x1b[2J")
        view.append(evil)
        view.tool_done("a", failed=False)
        return evil + "\n\nEnd of it."

    async with talking(terminal, tmp_path, answer):
        terminal.type("x\r")
        await terminal.shows("End of it.", "␛]0;owned␇␛[2J")
    for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\x1b[10A", "\x07"):
        assert sequence not in terminal.raw


async def test_what_was_typed_is_recalled_in_the_next_session_and_private(
    terminal: Terminal, tmp_path: Path
) -> None:
    async with talking(terminal, tmp_path) as (_, run):
        terminal.type("remember me\r")
        await terminal.shows("You said remember me")
        terminal.type(CTRL_D)
        await asyncio.wait_for(run, PATIENCE)
    assert stat.S_IMODE((tmp_path / "console_history").stat().st_mode) == 0o600
    async with talking(terminal, tmp_path) as (bridge, _):
        await terminal.shows("you › remember me")
        terminal.type(UP + "\r")
        assert await bridge.arrived(1) == ["remember me"]


async def test_a_message_may_have_several_lines(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        terminal.type("one" + ALT_ENTER + "two\r")
        assert await bridge.arrived(1) == ["one\ntwo"]
        terminal.type("\x1b[200~three\nfour\x1b[201~\r")
        assert await bridge.arrived(2) == ["one\ntwo", "three\nfour"]


async def test_tab_completes_commands(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        terminal.type("/st" + TAB)
        await terminal.shows("you › /status")
        terminal.type("\r")
        assert await bridge.arrived(1) == ["/status"]


async def test_an_empty_line_is_no_message(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        terminal.type("\r  \rreal\r")
        assert await bridge.arrived(1) == ["real"]


async def test_a_message_that_is_not_taken_is_said_to_be(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        bridge.verdict = Accepted.FULL
        terminal.type("x\r")
        await terminal.shows("too many messages are waiting")
        bridge.broken = True
        terminal.type("y\r")
        await terminal.shows("could not be stored", "disk full")


async def test_what_was_seen_of_an_answer_that_failed_stays(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        view = LiveView()
        async with bridge.channel.reply(ReplyContext("r", PLACE, view)) as stream:
            view.append("Half of an")
            await terminal.shows("Half of an")
            await stream.stop()
        await bridge.channel.deliver(Outgoing(PLACE, "Something went wrong."))
        lines = await terminal.shows("Something went wrong.")
        await terminal.rests()
    assert count(lines, "Half of an") == 1


async def test_a_log_line_goes_above_the_line_one_types_on(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.written)
    handler = logging.StreamHandler(terminal.written)
    logging.getLogger().addHandler(handler)
    try:
        async with talking(terminal, tmp_path):
            terminal.type("half")
            await terminal.shows("you › half")
            logging.getLogger("some.library").warning("the log says this")
            terminal.type(" a line")
            lines = await terminal.shows("the log says this", "you › half a line")
            assert "the log says this" in lines
        assert handler.stream is terminal.written
    finally:
        logging.getLogger().removeHandler(handler)


async def test_a_reminder_comes_while_one_types(terminal: Terminal, tmp_path: Path) -> None:
    async with talking(terminal, tmp_path) as (bridge, _):
        terminal.type("half")
        await terminal.shows("you › half")
        await bridge.channel.deliver(Outgoing(PLACE, "**Reminder**: tea"))
        await terminal.shows("Reminder: tea", "you › half")


async def test_a_file_is_saved_and_never_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(columns=400)
    async with talking(terminal, tmp_path) as (bridge, _):
        bridge.files = (OutFile("../history.md", "text/markdown", b"one"),)
        terminal.type("/history\r")
        await terminal.shows("saved:", "history.md")
        bridge.files = (OutFile("history.md", "text/markdown", b"two"),)
        terminal.type("/history\r")
        await terminal.shows("history-2.md")
    terminal.close()
    assert (tmp_path / "files" / "history.md").read_bytes() == b"one"
    assert (tmp_path / "files" / "history-2.md").read_bytes() == b"two"


async def test_without_colour_there_is_none(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with talking(terminal, tmp_path):
        terminal.type("`code`\r")
        await terminal.shows("You said code")
    assert "\x1b[36" not in terminal.raw
    assert "\x1b[0;36" not in terminal.raw


async def test_a_long_open_block_never_grows_over_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(40, 12)
    script = Script("```text\n" + "\n".join(f"line {n}" for n in range(50)), "\nline 50\n```")
    async with talking(terminal, tmp_path, script):
        terminal.type("x\r")
        lines = await terminal.shows("line 49")
        assert count(lines, "line 4") < 12
        script.steps.release()
        script.steps.release()
        lines = await terminal.shows("line 0", "line 50")
    assert [count(lines, f"line {n}") for n in (12, 25, 49)] == [1, 1, 1]
    terminal.close()
