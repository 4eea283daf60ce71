"""Defence 4, the stop: registry, tokens and scopes (four-defences §5.1, §5.2)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from agent.cancel import AgentCancelledError, CancelToken, CancelTokenRegistry

LIMIT = 10.0
"""Seconds after which a test that hangs fails."""


def token() -> CancelToken:
    return CancelToken("r", "s")


class Operation:
    """Something awaited inside a scope, by a task of its own; tells when it waits and how it ended."""

    def __init__(self, cancel_token: CancelToken, body: Callable[[], Awaitable[object]] | None = None) -> None:
        self.started = asyncio.Event()
        self.released = asyncio.Event()
        self.closed = False
        self._token = cancel_token
        self._body = body or self.released.wait
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> object:
        with self._token.scope():
            self.started.set()
            try:
                return await self._body()
            finally:
                self.closed = True

    async def waiting(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self.started.wait()


async def ended(task: asyncio.Task[object]) -> None:
    await asyncio.wait({task}, timeout=LIMIT)
    assert task.done()


async def settle() -> None:
    """Lets every callback that is ready now run, and those that they make ready."""
    for _ in range(5):
        await asyncio.sleep(0)


class TestScope:
    async def test_ends_an_operation_that_waits_silently(self) -> None:
        cancel_token = token()
        operation = Operation(cancel_token)
        await operation.waiting()
        assert cancel_token.cancel()
        with pytest.raises(AgentCancelledError):
            await operation.task
        assert operation.closed
        assert operation.task.cancelling() == 0

    async def test_ends_it_when_the_cancel_comes_from_another_thread(self) -> None:
        cancel_token = token()
        operation = Operation(cancel_token)
        await operation.waiting()
        thread = threading.Thread(target=cancel_token.cancel)
        thread.start()
        with pytest.raises(AgentCancelledError):
            await asyncio.wait_for(operation.task, LIMIT)
        thread.join(LIMIT)

    async def test_does_not_start_an_operation_of_a_cancelled_token(self) -> None:
        cancel_token = token()
        cancel_token.cancel()
        reached = False
        with pytest.raises(AgentCancelledError), cancel_token.scope():
            reached = True
        assert not reached
        with pytest.raises(AgentCancelledError):
            cancel_token.raise_if_cancelled()

    async def test_leaves_a_result_that_was_there_before_the_cancel_was_noticed(self) -> None:
        cancel_token = token()

        async def finish() -> str:
            cancel_token.cancel()
            return "done"

        operation = Operation(cancel_token, finish)
        assert await operation.task == "done"
        await settle()  # the cancellation that was on its way finds nobody
        assert operation.task.cancelling() == 0
        assert cancel_token.cancelled

    async def test_does_not_hit_what_the_task_does_after_it(self) -> None:
        cancel_token = token()
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: troubles.append(context))

        async def run() -> str:
            with cancel_token.scope():
                cancel_token.cancel()
            await settle()
            return "went on"

        assert await asyncio.create_task(run()) == "went on"
        assert troubles == []

    async def test_ends_an_operation_whose_awaited_future_is_ready_in_the_same_turn_of_the_loop(self) -> None:
        cancel_token = token()
        operation = Operation(cancel_token)
        await operation.waiting()
        cancel_token.cancel()
        operation.released.set()
        await ended(operation.task)
        assert isinstance(operation.task.exception(), AgentCancelledError)
        assert operation.task.cancelling() == 0

    async def test_lets_a_cancelled_task_be_cancelled(self) -> None:
        operation = Operation(token())
        await operation.waiting()
        operation.task.cancel()
        await ended(operation.task)
        assert operation.task.cancelled()

    @pytest.mark.parametrize("token_first", [True, False])
    async def test_lets_the_shutdown_win_that_comes_at_the_same_moment(self, token_first: bool) -> None:
        cancel_token = token()
        operation = Operation(cancel_token)
        await operation.waiting()
        if token_first:
            cancel_token.cancel()
            operation.task.get_loop().call_soon(operation.task.cancel)
        else:
            operation.task.cancel()
            cancel_token.cancel()
        await ended(operation.task)
        assert operation.task.cancelled()

    async def test_tells_its_own_cancel_from_one_before_it(self) -> None:
        cancel_token = token()
        started = asyncio.Event()
        seen: list[str] = []

        async def run() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                try:
                    with cancel_token.scope():
                        started.set()
                        await asyncio.Event().wait()
                except AgentCancelledError:
                    seen.append("stopped while cleaning up")
                raise

        task: asyncio.Task[object] = asyncio.create_task(run())
        await settle()
        task.cancel()
        async with asyncio.timeout(LIMIT):
            await started.wait()
        cancel_token.cancel()
        await ended(task)
        assert seen == ["stopped while cleaning up"]
        assert task.cancelled()

    async def test_goes_through_a_time_limit_inside_it(self) -> None:
        cancel_token = token()

        async def limited() -> None:
            async with asyncio.timeout(LIMIT):
                await asyncio.Event().wait()

        operation = Operation(cancel_token, limited)
        await operation.waiting()
        cancel_token.cancel()
        with pytest.raises(AgentCancelledError):
            await operation.task

    async def test_leaves_a_time_limit_inside_it_its_own_error(self) -> None:
        async def limited() -> None:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        operation = Operation(token(), limited)
        with pytest.raises(TimeoutError):
            await operation.task

    async def test_wins_over_a_time_limit_inside_it_that_expires_at_the_same_moment(self) -> None:
        cancel_token = token()
        limits: list[asyncio.Timeout] = []

        async def limited() -> None:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await asyncio.Event().wait()

        operation = Operation(cancel_token, limited)
        await operation.waiting()
        await settle()
        cancel_token.cancel()
        limits[0].reschedule(0)
        await ended(operation.task)
        assert isinstance(operation.task.exception(), AgentCancelledError)

    async def test_leaves_a_time_limit_around_it_working(self) -> None:
        cancel_token = token()

        async def run() -> None:
            async with asyncio.timeout(0):
                with cancel_token.scope():
                    await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await asyncio.create_task(run())
        with cancel_token.scope():
            pass

    async def test_of_an_operation_that_swallows_the_cancel_keeps_the_result_and_the_next_one_raises(self) -> None:
        cancel_token = token()

        async def swallow() -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "kept"

        operation = Operation(cancel_token, swallow)
        await operation.waiting()
        cancel_token.cancel()
        assert await operation.task == "kept"
        assert operation.task.cancelling() == 0
        with pytest.raises(AgentCancelledError), cancel_token.scope():
            pass

    async def test_knows_its_cancel_again_in_a_librarys_own_error(self) -> None:
        cancel_token = token()

        async def wrap() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("closed") from None

        operation = Operation(cancel_token, wrap)
        await operation.waiting()
        cancel_token.cancel()
        with pytest.raises(AgentCancelledError) as caught:
            await operation.task
        assert isinstance(caught.value.__cause__, ConnectionError)

    async def test_passes_on_an_error_that_is_not_its_own(self) -> None:
        async def fail() -> None:
            raise ConnectionError("closed")

        with pytest.raises(ConnectionError):
            await Operation(token(), fail).task

    async def test_ends_a_task_group_with_all_its_tasks(self) -> None:
        cancel_token = token()
        closed: list[int] = []

        async def child(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                closed.append(number)

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(3):
                    tasks.create_task(child(number))

        operation = Operation(cancel_token, group)
        await operation.waiting()
        await settle()
        cancel_token.cancel()
        with pytest.raises(AgentCancelledError):
            await operation.task
        assert sorted(closed) == [0, 1, 2]

    async def test_can_follow_another_of_the_same_token_but_not_stand_in_it(self) -> None:
        cancel_token = token()
        with cancel_token.scope():
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError), cancel_token.scope():
                pass
        with cancel_token.scope():
            await asyncio.sleep(0)

    async def test_of_one_token_is_not_touched_by_the_cancel_of_another(self) -> None:
        mine, other = token(), token()
        operation = Operation(mine)
        await operation.waiting()
        other.cancel()
        await settle()
        operation.released.set()
        assert await operation.task is True


class TestToken:
    async def test_is_cancelled_by_exactly_one_of_many_threads(self) -> None:
        cancel_token = token()
        operation = Operation(cancel_token)
        await operation.waiting()
        gate = threading.Barrier(8)

        def race() -> bool:
            gate.wait(LIMIT)
            return cancel_token.cancel()

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(race) for _ in range(8)]
            with pytest.raises(AgentCancelledError):
                await asyncio.wait_for(operation.task, LIMIT)
            assert sum(future.result(LIMIT) for future in futures) == 1

    def test_can_be_cancelled_when_its_loop_is_gone(self) -> None:
        cancel_token = token()
        loop = asyncio.new_event_loop()

        async def enter() -> None:
            cancel_token.scope().__enter__()

        loop.run_until_complete(enter())
        loop.close()
        assert cancel_token.cancel()
        assert cancel_token.cancelled

    def test_raises_nothing_before_it_is_cancelled(self) -> None:
        token().raise_if_cancelled()


class TestRegistry:
    def test_gives_every_request_a_token_of_its_own(self) -> None:
        registry = CancelTokenRegistry()
        one, two = registry.register("1", "s"), registry.register("2", "s")
        assert one is not two
        with pytest.raises(ValueError, match="1"):
            registry.register("1", "other")
        assert registry.cancel("1")
        assert (one.cancelled, two.cancelled) == (True, False)

    async def test_cancels_a_request_that_was_queued_and_never_started(self) -> None:
        registry = CancelTokenRegistry()
        queued = registry.register("queued", "s")
        assert registry.cancel("queued")
        with pytest.raises(AgentCancelledError), queued.scope():
            pass

    def test_is_not_harmed_by_cancelling_twice_or_what_it_does_not_know(self) -> None:
        registry = CancelTokenRegistry()
        registry.register("1", "s")
        assert registry.cancel("1")
        assert not registry.cancel("1")
        assert not registry.cancel("unknown")
        assert registry.cancel_session("s") == 0
        assert registry.cancel_session("unknown") == 0
        registry.release("unknown")

    def test_cancels_a_whole_session_and_tells_how_many(self) -> None:
        registry = CancelTokenRegistry()
        mine = [registry.register(str(number), "s") for number in range(3)]
        other = registry.register("x", "t")
        registry.cancel("0")
        assert registry.cancel_session("s") == 2
        assert all(cancel_token.cancelled for cancel_token in mine)
        assert not other.cancelled

    def test_keeps_no_token_after_its_run(self) -> None:
        registry = CancelTokenRegistry()
        cancel_token = registry.register("1", "s")
        registry.release("1")
        registry.release("1")
        assert len(registry) == 0
        assert all(not held for held in vars(registry).values() if isinstance(held, dict))
        assert not registry.cancel("1")
        assert registry.cancel_session("s") == 0
        assert not cancel_token.cancelled
        assert not registry.register("1", "s").cancelled

    def test_bears_many_threads_at_once(self) -> None:
        registry = CancelTokenRegistry()

        def work(worker: int) -> int:
            stopped = 0
            for number in range(200):
                registry.register(f"{worker}-{number}", f"s{number % 3}")
                stopped += registry.cancel_session(f"s{number % 3}")
                registry.release(f"{worker}-{number}")
            return stopped

        with ThreadPoolExecutor(4) as pool:
            stopped = sum(pool.map(work, range(4)))
        assert stopped == 800  # each token was stopped once, by whichever thread came first
        assert len(registry) == 0


class RegistryModel(RuleBasedStateMachine):
    """The registry against two plain dicts, under any order of calls."""

    requests: Bundle[str] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.registry = CancelTokenRegistry()
        self.tokens: dict[str, CancelToken] = {}
        self.cancelled: dict[str, bool] = {}
        self.count = 0

    @rule(target=requests, session=st.sampled_from("ab"))
    def register(self, session: str) -> str:
        self.count += 1
        request = f"{session}{self.count}"
        self.tokens[request] = self.registry.register(request, session)
        self.cancelled[request] = False
        return request

    @rule(request=requests)
    def cancel(self, request: str) -> None:
        assert self.registry.cancel(request) is not self.cancelled[request]
        self.cancelled[request] = True

    @rule(session=st.sampled_from("abc"))
    def cancel_session(self, session: str) -> None:
        mine = [request for request in self.cancelled if request[0] == session and not self.cancelled[request]]
        assert self.registry.cancel_session(session) == len(mine)
        self.cancelled.update(dict.fromkeys(mine, True))

    @rule(request=consumes(requests))
    def release(self, request: str) -> None:
        self.registry.release(request)
        del self.tokens[request], self.cancelled[request]

    @invariant()
    def agrees(self) -> None:
        assert len(self.registry) == len(self.tokens)
        assert {request: held.cancelled for request, held in self.tokens.items()} == self.cancelled


TestRegistryModel = RegistryModel.TestCase
