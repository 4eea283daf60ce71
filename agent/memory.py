"""Memory files: what leaves the context is kept as readable Markdown, one file a day and scope (§5.4).

`FileMemory` writes; `MemoryFlusher` stands before it, so that a full or slow disk never delays a reply: what could
not be written is tried again in the background. The turns are in the store all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from agent.cut import head_text
from agent.messages import Block, Message, blocks_of, is_injected
from agent.ports import FlushReason, Memory
from agent.turns import Turn

log = structlog.get_logger()

FLUSH_WAIT = 1.0
"""Seconds that a reply waits for its flush at most; then the flush goes on behind it."""

RETRY_FIRST, RETRY_MOST = 1.0, 60.0
"""Seconds before a failed flush is tried again: the first time, and at most."""

_RETRY_CLOSING = 0.2
_CALL_LENGTH = 200
_RESERVED = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})


def scope_folder(scope: str) -> str:
    """A scope (a session's id) as one folder name: readable, unique, safe on any file system.

    Lower-case letters, digits, `-` and `_` stand for themselves, every other byte of the UTF-8 form is `%xx`,
    so that two scopes never share a folder, also where file names ignore case. A long one ends in a hash.
    """
    data = scope.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if _plain(byte) else f"%{byte:02x}" for byte in data) or "%"
    if name in _RESERVED:
        name = f"%{ord(name[0]):02x}{name[1:]}"
    if len(name) > 150:
        name = f"{name[:100]}%%{hashlib.sha256(data).hexdigest()[:32]}"
    return name


class FileMemory:
    """Appends turns to `<root>/<scope>/YYYY-MM-DD.md`; implements agent.ports.Memory."""

    def __init__(self, root: Path, now: Callable[[], datetime] = lambda: datetime.now().astimezone()) -> None:
        """`root` is the folder of all memory files; `now` gives the time with a zone, and its date names the
        file."""
        self._root = root
        self._now = now
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def file(self, scope: str, day: datetime) -> Path:
        return self._root / scope_folder(scope) / f"{day:%Y-%m-%d}.md"

    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        """Keeps the turns, each as often as it is given: two that read alike are two. Raises OSError, and then
        nothing of them was written."""
        now = self._now()
        text = "".join(_turn_text(turn) for turn in turns)
        if not text:
            return
        entry = f"\n## {now:%H:%M:%S %z} ({reason})\n\n{text}"
        heading = f"# {' '.join(scope.split())}, {now:%Y-%m-%d}\n"
        await asyncio.to_thread(self._append, scope, self.file(scope, now), entry, heading)

    def _append(self, scope: str, path: Path, entry: str, heading: str) -> None:
        # The thread holds the lock itself: a cancelled run leaves its thread writing.
        with self._locks.setdefault(scope, threading.Lock()):
            _append(path, entry, heading)


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    scope: str
    turns: tuple[Turn, ...]
    reason: FlushReason
    done: asyncio.Event


class MemoryFlusher:
    """A Memory that never raises for a fault of the one behind it, and never blocks for long.

    It owns one background task, started by the first flush and ended by `aclose`. Flushes of one scope keep
    their order; a scope that fails delays no other. At most `capacity` wait; beyond that the oldest is given up,
    with a log line.
    """

    def __init__(
        self, memory: Memory, *, capacity: int = 256, wait: float = FLUSH_WAIT, retry: float = RETRY_FIRST
    ) -> None:
        """`wait`: seconds that a flush waits for the writing at most; `retry`: seconds before the first retry,
        doubled up to a minute."""
        self._memory = memory
        self._capacity = capacity
        self._wait = wait
        self._retry = retry
        self._waiting: list[_Pending] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Flushes that are not written yet."""
        return len(self._waiting)

    async def flush(self, scope: str, turns: Sequence[Turn], reason: FlushReason) -> None:
        """Hands the turns over, and waits for up to `wait` seconds until they are written."""
        if not turns:
            return
        if len(self._waiting) >= self._capacity:
            lost = self._waiting.pop(0)
            log.error("memory.flush_dropped", session=lost.scope, turns=len(lost.turns), reason=lost.reason)
        pending = _Pending(scope, tuple(turns), reason, asyncio.Event())
        self._waiting.append(pending)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="memory-flush")
        try:
            async with asyncio.timeout(self._wait):
                await pending.done.wait()
        except TimeoutError:
            log.warning("memory.flush_behind", session=scope, pending=self.pending)

    async def aclose(self, timeout: float = 5.0) -> None:
        """Writes what waits, for up to `timeout` seconds, then ends the task; what is left is logged."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._waiting:
            log.error(
                "memory.flush_lost", pending=self.pending, scopes=len({item.scope for item in self._waiting})
            )

    async def _run(self) -> None:
        delay = self._retry
        while self._waiting or not self._closing:
            self._wake.clear()
            failed = await self._round()
            if self._closing:
                await asyncio.sleep(min(self._retry, _RETRY_CLOSING) if failed else 0)
            elif failed or not self._waiting:
                await self._sleep(delay if failed else None)
            delay = min(delay * 2, RETRY_MOST) if failed else self._retry

    async def _sleep(self, delay: float | None) -> None:
        """Until something new comes, or a retry is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._wake.wait()

    async def _round(self) -> bool:
        """Tries each once, in order; whether any failed. A scope that failed is left for the next round."""
        failed: set[str] = set()
        for item in tuple(self._waiting):
            if item.scope in failed or item not in self._waiting:
                continue
            if not await self._write(item):
                failed.add(item.scope)
            elif item in self._waiting:
                self._waiting.remove(item)
                item.done.set()
        return bool(failed)

    async def _write(self, item: _Pending) -> bool:
        """False where it has to be tried again."""
        try:
            await self._memory.flush(item.scope, item.turns, item.reason)
        except OSError as error:
            log.warning("memory.flush_failed", session=item.scope, turns=len(item.turns), error=str(error))
            return False
        # The border to any Memory: a bug in one flush must not end the writing of all others.
        except Exception:
            log.exception("memory.flush_broken", session=item.scope, turns=len(item.turns))
        return True


def _plain(byte: int) -> bool:
    return byte in b"abcdefghijklmnopqrstuvwxyz0123456789-_"


def _turn_text(turn: Turn) -> str:
    failed = {
        block["tool_use_id"]
        for message in turn.messages
        for block in blocks_of(message)
        if block["type"] == "tool_result" and block.get("is_error")
    }
    lines = (_block_line(block, message, failed) for message in turn.messages for block in blocks_of(message))
    return "".join(line + "\n\n" for line in lines if line)


def _block_line(block: Block, message: Message, failed: set[str]) -> str:
    """What a person wants to read of a block; tool results, thinking and the core's own texts are left out."""
    if is_injected(block):
        return ""
    who = "User" if message["role"] == "user" else "Assistant"
    match block["type"]:
        case "text":
            return f"**{who}:** {block['text'].strip()}" if block["text"].strip() else ""
        case "image":
            return f"**{who}:** [image]"
        case "tool_use":
            args = head_text(json.dumps(block["input"], ensure_ascii=False, default=str), _CALL_LENGTH)
            outcome = ", failed" if block["id"] in failed else ""
            return f"- tool `{block['name']}` {args}{outcome}"
    return ""


def _append(path: Path, entry: str, heading: str) -> None:
    """Appends all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(file).st_size
        data = (heading + entry if size == 0 else entry).encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
