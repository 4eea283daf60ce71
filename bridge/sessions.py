"""Session lines: each conversation's requests in their order, one run at a time, many conversations at once.

What a line does next is derived from what waits in it, never from a remembered state, so an abort can't leave
a conversation deaf.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog

from agent.cancel import CancelToken, CancelTokenRegistry
from bridge.ports import Request
from channels.base import Place

log = structlog.get_logger()

Busy = Literal["queue", "interrupt", "steer"]


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that are answered together in one run, oldest first. `steer` gives texts of requests that came
    in during the run, and hands those requests over to it."""

    requests: Sequence[Request]
    token: CancelToken
    steer: Callable[[], Sequence[Request]]


Runner = Callable[[Work], Awaitable[None]]


@dataclass(slots=True)
class _Line:
    place: Place
    waiting: deque[Request] = field(default_factory=deque)
    running: tuple[Request, ...] = ()
    steering: bool = False
    task: asyncio.Task[None] | None = None


class SessionLines:
    """Owns one task for each busy session; at most `queue_limit` messages wait in one session."""

    def __init__(self, run: Runner, registry: CancelTokenRegistry, *, queue_limit: int) -> None:
        self._run = run
        self._registry = registry
        self._queue_limit = queue_limit
        self._lines: dict[str, _Line] = {}
        self._closing = False

    def is_full(self, place: Place) -> bool:
        line = self._lines.get(place.session_id)
        return line is not None and len(line.waiting) >= self._queue_limit

    def counts(self, place: Place) -> tuple[int, int]:
        """Requests of this session that run, and that wait."""
        line = self._lines.get(place.session_id)
        return (len(line.running), len(line.waiting)) if line else (0, 0)

    def totals(self) -> tuple[int, int]:
        lines = self._lines.values()
        return sum(bool(line.running) for line in lines), sum(len(line.waiting) for line in lines)

    def requests(self) -> list[Request]:
        """All requests that run or wait, in any session."""
        return [request for line in self._lines.values() for request in (*line.running, *line.waiting)]

    def submit(self, request: Request, busy: Busy = "queue") -> None:
        """Puts a request, which is stored already, into its line; its cancel token exists from now on."""
        self._registry.register(request.request_id, request.place.session_id)
        key = request.place.session_id
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(request.place)
        line.waiting.append(request)
        if line.running and busy == "interrupt":
            for running in line.running:
                self._registry.cancel(running.request_id)
        line.steering = busy == "steer"
        if line.task is None and not self._closing:
            line.task = asyncio.create_task(self._work(line), name=f"session {key}")

    async def drain(self, grace: float) -> None:
        """Starts nothing new, waits `grace` seconds for what runs, then parks the rest: it stays unfinished in
        the store and is taken up at the next start."""
        self._closing = True
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        if not tasks:
            return
        _, unfinished = await asyncio.wait(tasks, timeout=grace)
        for task in unfinished:
            task.cancel()
        if unfinished:
            log.info("session.parked", sessions=len(unfinished))
            await asyncio.wait(unfinished)

    async def _work(self, line: _Line) -> None:
        try:
            while line.waiting and not self._closing:
                await self._take(line)
        finally:
            line.task = None
            for request in line.waiting:
                self._registry.release(request.request_id)
            self._lines.pop(line.place.session_id, None)

    async def _take(self, line: _Line) -> None:
        """Runs everything that waits, together; what was cancelled while it waited is settled first."""
        waiting = list(line.waiting)
        line.waiting.clear()
        tokens = {request.request_id: self._token(request) for request in waiting}
        cancelled = [request for request in waiting if tokens[request.request_id].cancelled]
        live = [request for request in waiting if not tokens[request.request_id].cancelled]
        for group in (cancelled, live):
            if group:
                await self._run_group(line, group, tokens[group[-1].request_id])

    async def _run_group(self, line: _Line, group: list[Request], token: CancelToken) -> None:
        line.running = tuple(group)

        def steer() -> Sequence[Request]:
            if not line.steering:
                return ()
            taken = list(line.waiting)
            line.waiting.clear()
            line.running = (*line.running, *taken)
            return taken

        try:
            await self._run(Work(group, token, steer))
        finally:
            for request in line.running:
                self._registry.release(request.request_id)
            line.running = ()

    def _token(self, request: Request) -> CancelToken:
        token = self._registry.token(request.request_id)
        if token is None:
            raise AssertionError("a waiting request has a token")
        return token
