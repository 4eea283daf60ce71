"""Memory files: readable, complete, in their own scope, and never in a reply's way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from agent.memory import FileMemory, MemoryFlusher, scope_folder
from agent.messages import Message, assistant_message, injected_text, text_block, tool_result, user_message
from agent.ports import FlushReason, Memory
from agent.turns import Turn

NOON = datetime(2026, 12, 1, 12, 0, 5, tzinfo=UTC)


def turn(asked: str, answered: str) -> Turn:
    return Turn([user_message(text_block(asked)), assistant_message(text_block(answered))])


def written(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in root.rglob("*.md")}


async def test_turns_are_appended_as_plain_markdown(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path, lambda: NOON)
    messages: list[Message] = [
        user_message(injected_text("[Earlier conversation, 3 turns]\nasked: x"), text_block("Where is it?")),
        assistant_message(
            text_block("I look."),
            {"type": "tool_use", "id": "a", "name": "search", "input": {"q": "它"}},
            {"type": "tool_use", "id": "b", "name": "search", "input": {"q": "x" * 900}},
        ),
        user_message(tool_result("a", "a long result"), tool_result("b", "no", is_error=True)),
        assistant_message(text_block("In the kitchen.")),
    ]
    await memory.flush("telegram/42", [Turn(messages)], "trim")
    await memory.flush("telegram/42", [turn("ok", "fine")], "overflow")
    ((name, text),) = written(tmp_path).items()
    assert name == "telegram%2f42/2026-12-01.md"
    long_call = next(line for line in text.splitlines() if "xxx" in line)
    assert len(long_call) < 250
    assert long_call.endswith("…, failed")
    assert text.replace(long_call, "LONG") == (
        "# telegram/42, 2026-12-01\n"
        "\n## 12:00:05 +0000 (trim)\n\n"
        "**User:** Where is it?\n\n"
        "**Assistant:** I look.\n\n"
        '- tool `search` {"q": "它"}\n\n'
        "LONG\n\n"
        "**Assistant:** In the kitchen.\n\n"
        "\n## 12:00:05 +0000 (overflow)\n\n"
        "**User:** ok\n\n"
        "**Assistant:** fine\n\n"
    )


async def test_short_equal_turns_are_all_kept(tmp_path: Path) -> None:
    """Each turn counts by itself; what reads alike is not one and the same."""
    memory = FileMemory(tmp_path, lambda: NOON)
    await memory.flush("s", [turn("go on", "ok"), turn("go on", "ok")], "trim")
    await memory.flush("s", [turn("go on", "ok")], "trim")
    (text,) = written(tmp_path).values()
    assert text.count("**User:** go on") == 3


async def test_flushes_at_the_same_time_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr("agent.memory.os.write", lambda file, data: real(file, data[:100]))
    memory = FileMemory(tmp_path, lambda: NOON)
    await asyncio.gather(*(memory.flush("s", [turn(f"q{n}", "a" * 5000)], "trim") for n in range(30)))
    (text,) = written(tmp_path).values()
    assert text.count("# s, 2026-12-01") == 1
    for number in range(30):
        assert f"(trim)\n\n**User:** q{number}\n\n**Assistant:** {'a' * 5000}\n\n" in text


async def test_a_day_and_a_scope_have_their_own_file(tmp_path: Path) -> None:
    days = iter([NOON, NOON.replace(day=2), NOON])
    memory = FileMemory(tmp_path, lambda: next(days))
    for scope in ("a", "a", "A"):
        await memory.flush(scope, [turn("q", "r")], "trim")
    assert sorted(written(tmp_path)) == ["%41/2026-12-01.md", "a/2026-12-01.md", "a/2026-12-02.md"]


async def test_nothing_to_say_writes_no_file(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path, lambda: NOON)
    await memory.flush("s", [], "trim")
    await memory.flush("s", [Turn([user_message(tool_result("a", "left over"))])], "trim")
    assert written(tmp_path) == {}


async def test_broken_text_is_written_all_the_same(tmp_path: Path) -> None:
    await FileMemory(tmp_path, lambda: NOON).flush("s\ud800\n# x", [turn("half \ud83d", "ok")], "trim")
    (text,) = written(tmp_path).values()
    assert "half ?" in text
    assert text.splitlines()[0] == "# s? # x, 2026-12-01"


async def test_what_can_not_be_written_raises_and_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = FileMemory(tmp_path, lambda: NOON)
    await memory.flush("s", [turn("first", "a")], "trim")
    before = written(tmp_path)
    real = os.write

    def full_disk(file: int, data: bytes) -> int:
        if len(data) > 10:
            return real(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.memory.os.write", full_disk)
    with pytest.raises(OSError, match="No space"):
        await memory.flush("s", [turn("second", "b")], "trim")
    monkeypatch.undo()
    assert written(tmp_path) == before


scopes = st.text(max_size=40) | st.sampled_from(
    ["../../etc", "..", ".", "", "/", "a/b", "A", "con", "com1", "x" * 400]
)


@example("x" * 400, "x" * 401)
@example("con", "%63on")
@given(scopes, scopes)
def test_scopes_never_share_a_folder_and_never_leave_the_root(first: str, second: str) -> None:
    root = Path("/data/memory")
    for scope in (first, second):
        name = scope_folder(scope)
        assert name
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%")
        assert len(name) <= 150
        assert name not in ("con", "nul", "com1")
        assert (root / name).resolve().parent == root
        if len(name) < 130 and scope:
            assert unquote_to_bytes(name) == scope.encode("utf-8", "surrogatepass")
    assert (scope_folder(first) == scope_folder(second)) == (first == second)


# --- the flusher ------------------------------------------------------------------------------------------


class Disk:
    """A Memory whose far side can be made to fail or to hang."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.tries = 0
        self.tried = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception = OSError(28, "No space left on device")

    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        self.tries += 1
        self.tried.set()
        await self.open.wait()
        if scope in self.failing:
            raise self.error
        self.kept += [(scope, asked(each)) for each in turns]


def asked(each: Turn) -> str:
    content = each.messages[0]["content"]
    assert isinstance(content, list)
    assert content[0]["type"] == "text"
    return content[0]["text"]


@asynccontextmanager
async def flushing(memory: Memory, **options: float) -> AsyncIterator[MemoryFlusher]:
    capacity = int(options.pop("capacity", 256))
    flusher = MemoryFlusher(memory, capacity=capacity, wait=options.get("wait", 5.0), retry=0.001)
    try:
        yield flusher
    finally:
        async with asyncio.timeout(10):
            await flusher.aclose(options.get("close", 60.0))


async def test_a_flush_returns_when_it_is_written() -> None:
    disk = Disk()
    async with flushing(disk) as flusher:
        await flusher.flush("s", [turn("one", "")], "trim")
        assert disk.kept == [("s", "one")]
        assert flusher.pending == 0


async def test_a_failed_flush_is_tried_again_and_nothing_is_lost() -> None:
    disk = Disk()
    disk.failing = {"s"}
    async with flushing(disk, wait=0.0) as flusher:
        await flusher.flush("s", [turn("one", "")], "trim")
        await flusher.flush("s", [turn("two", "")], "overflow")
        await asyncio.wait_for(disk.tried.wait(), 5)
        assert disk.kept == []
        assert flusher.pending == 2
        disk.failing = set()
        async with asyncio.timeout(10):
            await flusher.aclose(60.0)
    assert disk.kept == [("s", "one"), ("s", "two")]


async def test_a_scope_that_fails_delays_no_other() -> None:
    disk = Disk()
    disk.failing = {"bad"}
    async with flushing(disk, close=0.0) as flusher:
        async with asyncio.timeout(5):
            waiting = asyncio.create_task(flusher.flush("bad", [turn("one", "")], "trim"))
            await disk.tried.wait()
            await flusher.flush("good", [turn("two", "")], "trim")
        assert disk.kept == [("good", "two")]
        waiting.cancel()
    assert flusher.pending == 1


async def test_a_hanging_disk_holds_a_reply_no_longer_than_the_wait() -> None:
    disk = Disk()
    disk.open.clear()
    async with flushing(disk, wait=0.01) as flusher:
        with structlog.testing.capture_logs() as logs:
            await flusher.flush("s", [turn("one", "")], "trim")
        assert [entry["event"] for entry in logs] == ["memory.flush_behind"]
        assert disk.kept == []
        disk.open.set()
    assert disk.kept == [("s", "one")]


async def test_a_cancelled_run_loses_no_flush() -> None:
    disk = Disk()
    disk.open.clear()
    async with flushing(disk) as flusher:
        run = asyncio.create_task(flusher.flush("s", [turn("one", "")], "reset"))
        await asyncio.wait_for(disk.tried.wait(), 5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        disk.open.set()
    assert disk.kept == [("s", "one")]


async def test_the_queue_is_bounded_and_says_what_it_gave_up() -> None:
    disk = Disk()
    disk.failing = {"s"}
    async with flushing(disk, wait=0.0, capacity=3, close=0.0) as flusher:
        with structlog.testing.capture_logs() as logs:
            for number in range(5):
                await flusher.flush("s", [turn(str(number), "")], "trim")
        assert flusher.pending == 3
        assert sum(entry["event"] == "memory.flush_dropped" for entry in logs) == 2
        disk.failing = set()
        async with asyncio.timeout(10):
            await flusher.aclose(60.0)
    assert disk.kept == [("s", "2"), ("s", "3"), ("s", "4")]


async def test_a_bug_in_one_flush_does_not_end_the_writing() -> None:
    disk = Disk()
    disk.failing, disk.error = {"bad"}, ValueError("a bug")
    async with flushing(disk) as flusher:
        with structlog.testing.capture_logs() as logs:
            await flusher.flush("bad", [turn("one", "")], "trim")
        assert [entry["event"] for entry in logs] == ["memory.flush_broken"]
        await flusher.flush("good", [turn("two", "")], "trim")
    assert disk.kept == [("good", "two")]


async def test_closing_gives_up_in_time_and_says_what_is_left() -> None:
    disk = Disk()
    disk.open.clear()
    flusher = MemoryFlusher(disk, wait=0.0)
    await flusher.flush("s", [turn("one", "")], "trim")
    with structlog.testing.capture_logs() as logs:
        await flusher.aclose(0.01)
    assert logs[-1]["event"] == "memory.flush_lost"
    assert logs[-1]["pending"] == 1


async def test_closing_an_unused_flusher_does_nothing() -> None:
    with structlog.testing.capture_logs() as logs:
        await MemoryFlusher(Disk()).aclose()
    assert logs == []


async def test_it_writes_real_files(tmp_path: Path) -> None:
    async with flushing(FileMemory(tmp_path, lambda: NOON)) as flusher:
        await flusher.flush("s", [turn("one", "two")], "trim")
        assert list(written(tmp_path)) == ["s/2026-12-01.md"]
