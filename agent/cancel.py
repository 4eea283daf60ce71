"""Defence 4, the stop: cancel tokens, and the scope that makes an awaited operation end at once (§5.1, §5.2).

A flag alone is noticed when the next chunk comes; a scope cancels the very await that the run is in. It works
as asyncio.timeout does: the task is cancelled, and the scope turns that CancelledError, and only that one,
into AgentCancelledError. A scope never spans a `yield`, so a cancel can't hit the consumer of a generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class AgentCancelledError(Exception):
    """The user cancelled this run."""


class CancelToken:
    """One run's token. `cancel` may be called from any thread, any number of times."""

    def __init__(self, request_id: str, session_id: str) -> None:
        self.request_id = request_id
        self.session_id = session_id
        self._lock = threading.Lock()
        self._cancelled = False
        self._waiting: tuple[asyncio.AbstractEventLoop, CancelScope] | None = None

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> bool:
        """Whether this call did it; one that comes second, from whatever thread, does nothing."""
        with self._lock:
            if self._cancelled:
                return False
            self._cancelled = True
            if self._waiting is not None:
                loop, scope = self._waiting
                # Under the lock, so that the scope can't be left, and its loop closed, in between. A loop that
                # was closed around an open scope has nothing left to stop.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(scope.fire)
            return True

    def raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise AgentCancelledError

    def scope(self) -> CancelScope:
        """A context manager around one awaited operation; raises AgentCancelledError when the token is set.

        That holds before the operation starts, and while it waits: then also where it turns the cancellation
        into an error of its own. One that has finished all the same, or swallows the cancellation and returns,
        keeps its result; the next scope or check raises. Raises RuntimeError within another scope of the token.
        """
        return CancelScope(self)

    def enter(self, scope: CancelScope) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._cancelled:
                raise AgentCancelledError
            if self._waiting is not None:
                raise RuntimeError("a cancel token guards one operation at a time")
            self._waiting = (loop, scope)

    def leave(self) -> None:
        with self._lock:
            self._waiting = None


class CancelScope:
    """See `CancelToken.scope`. Used once, by one task."""

    __slots__ = ("_cancels_before", "_fired", "_task", "_token")

    def __init__(self, token: CancelToken) -> None:
        self._token = token
        self._task: asyncio.Task[object] | None = None
        self._fired = False
        self._cancels_before = 0

    def __enter__(self) -> None:
        self._token.enter(self)
        self._task = asyncio.current_task()
        self._cancels_before = self._task.cancelling() if self._task else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._token.leave()
        task, self._task = self._task, None
        if not self._fired or task is None:
            return
        others = task.uncancel() - self._cancels_before
        if kind is None:
            return
        if issubclass(kind, asyncio.CancelledError):
            # Shutdown may cancel the same task at the same moment: its CancelledError then goes on.
            if others <= 0:
                raise AgentCancelledError from None
        elif issubclass(kind, Exception):
            # A library may report the cancelled await as a broken connection, which must not be retried.
            raise AgentCancelledError from error

    def fire(self) -> None:
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()


class CancelTokenRegistry:
    """All tokens of this process: one for each request, found by request id or by session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_request: dict[str, CancelToken] = {}
        self._by_session: dict[str, dict[str, CancelToken]] = {}

    def register(self, request_id: str, session_id: str) -> CancelToken:
        """A new token. Raises ValueError when the request has one already: two runs never share a token."""
        token = CancelToken(request_id, session_id)
        with self._lock:
            if request_id in self._by_request:
                raise ValueError(f"request {request_id} is registered already")
            self._by_request[request_id] = token
            self._by_session.setdefault(session_id, {})[request_id] = token
        return token

    def token(self, request_id: str) -> CancelToken | None:
        with self._lock:
            return self._by_request.get(request_id)

    def release(self, request_id: str) -> None:
        with self._lock:
            token = self._by_request.pop(request_id, None)
            if token is None:
                return
            siblings = self._by_session[token.session_id]
            del siblings[request_id]
            if not siblings:
                del self._by_session[token.session_id]

    def cancel(self, request_id: str) -> bool:
        """Whether there was such a request, running or queued, that was not cancelled before."""
        with self._lock:
            token = self._by_request.get(request_id)
        return self._cancel_all([token] if token else []) > 0

    def cancel_session(self, session_id: str) -> int:
        """How many requests of this session were stopped by this call."""
        with self._lock:
            tokens = list(self._by_session.get(session_id, {}).values())
        return self._cancel_all(tokens)

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_request)

    @staticmethod
    def _cancel_all(tokens: list[CancelToken]) -> int:
        return sum([token.cancel() for token in tokens])
