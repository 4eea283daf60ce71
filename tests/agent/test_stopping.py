"""Stopping a run at each place where it can wait; each leaves a legal history (four-defences §5.2, §5.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agent.events import DefenceActed, Event, Outcome, RunFinished, TextDelta, ToolStarted, Waiting
from agent.messages import Message, blocks_of, text_block
from agent.models.scripted import Call, Say, ScriptedModel, forever
from agent.texts import ENGLISH
from tests.agent.harness import Bench, FunctionTool, HangingTool, ask, bench, echo
from tests.agent.legality import anthropic_violations
from tests.agent.test_executor import results
from tests.waiting import until


class Overloaded(Exception):
    status_code = 529
    type = "overloaded_error"


async def run_and_cancel_at(b: Bench, when: Callable[[Event], bool]) -> list[Event]:
    """Runs, and cancels from another task once an event is `when`."""
    events: list[Event] = []
    async for event in b.executor.run_stream(ask("question"), b.token):
        events.append(event)
        if when(event):
            asyncio.get_running_loop().call_soon(b.token.cancel)
    return events


def ended(b: Bench, events: list[Event]) -> list[Message]:
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.outcome is Outcome.CANCELLED
    assert finished.text.endswith(ENGLISH.cancelled)
    new = b.executor.last_run_new_messages
    assert anthropic_violations(new) == []
    assert anthropic_violations(b.executor.messages) == []
    last = blocks_of(new[-1])[-1]
    assert last["type"] == "text"
    assert last["text"] == ENGLISH.cancelled
    return new


async def test_a_silent_stream_is_left_at_once_and_its_finished_text_is_kept() -> None:
    model = ScriptedModel([Say("as far as I", [Call("echo", {})], waits_for=forever)])
    b = bench(model, tools=[echo()])
    events = await run_and_cancel_at(b, lambda event: isinstance(event, TextDelta) and event.text == " I")
    new = ended(b, events)
    assert blocks_of(new[-1]) == [text_block("as far as I"), text_block(ENGLISH.cancelled)]
    assert model.open_streams == 0


async def test_a_running_tool_is_cancelled_and_the_later_ones_are_answered() -> None:
    hang = HangingTool()
    model = ScriptedModel([Say(calls=[Call("echo", {"text": "1"}), Call("hang"), Call("echo", {"text": "2"})])])
    b = bench(model, tools=[echo(), hang])
    events = await run_and_cancel_at(b, lambda event: isinstance(event, ToolStarted) and event.name == "hang")
    new = ended(b, events)
    assert hang.cancelled
    cancelled = (ENGLISH.cancelled_result, True)
    assert results(new) == [("echo 1", False), cancelled, cancelled]
    assert b.runner.abandoned == 0


async def test_what_was_said_before_a_cancelled_tool_is_kept_once() -> None:
    b = bench(ScriptedModel([Say("I look it up.", [Call("hang")])]), tools=[HangingTool()])
    new = ended(b, await run_and_cancel_at(b, lambda event: isinstance(event, ToolStarted)))
    said = [block for message in new[1:] for block in blocks_of(message) if block["type"] == "text"]
    assert said == [text_block("I look it up."), text_block(ENGLISH.cancelled)]


async def test_a_tool_that_swallows_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.toolrun.STOP_GRACE", 0.01)
    hang = HangingTool(stubborn=True)
    b = bench(ScriptedModel([Say(calls=[Call("hang")])]), tools=[hang])
    ended(b, await run_and_cancel_at(b, lambda event: isinstance(event, ToolStarted)))
    assert b.runner.abandoned == 1
    hang.release.set()
    await b.runner.aclose()
    assert b.runner.abandoned == 0


async def test_a_shutdown_while_a_tool_is_being_stopped_leaves_it_with_an_owner() -> None:
    hang = HangingTool(stubborn=True)
    b = bench(ScriptedModel([Say(calls=[Call("hang")])]), tools=[hang])
    task = asyncio.create_task(b.run())
    await hang.started.wait()
    b.token.cancel()
    await until(lambda: hang.cancelled)
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await task
        assert b.runner.abandoned == 1
    finally:
        hang.release.set()
    await b.runner.aclose()
    assert b.runner.abandoned == 0


async def test_a_tool_past_its_time_is_stopped_and_the_model_is_told() -> None:
    hang = HangingTool()
    b = bench(ScriptedModel([Say(calls=[Call("hang")]), Say("it hangs")]), tools=[hang], tool_timeout=0.01)
    assert (await b.finish()).outcome is Outcome.COMPLETED
    assert hang.cancelled
    assert results(b.executor.messages) == [(ENGLISH.tool_timeout.format(seconds=0.01), True)]


async def test_a_retry_wait_is_left_at_once() -> None:
    b = bench(ScriptedModel([Overloaded()]))
    b.clock.hold = asyncio.Event()
    ended(b, await run_and_cancel_at(b, lambda event: isinstance(event, Waiting)))
    assert len(b.clock.waits) == 1


async def test_a_cancel_before_the_run_starts_is_not_forgotten() -> None:
    model = ScriptedModel([Say("never")])
    b = bench(model)
    b.token.cancel()
    new = ended(b, await b.run())
    assert model.requests == []
    assert new == [ask("question"), {"role": "assistant", "content": [text_block(ENGLISH.cancelled)]}]


async def test_a_cancel_between_two_tools_leaves_none_unanswered() -> None:
    b = bench(
        ScriptedModel([Say(calls=[Call("stop", {"n": n}) for n in range(3)])]),
        tools=[FunctionTool("stop", lambda args: (b.token.cancel(), "done")[1])],
    )
    new = ended(b, await b.run())
    assert results(new)[0] == ("done", False)
    assert [text for text, _ in results(new)[1:]] == [ENGLISH.cancelled_result] * 2


async def test_the_next_run_after_a_cancel_works() -> None:
    b = bench(ScriptedModel([Say("half", waits_for=forever)]))
    await run_and_cancel_at(b, lambda event: isinstance(event, TextDelta))
    after = bench(ScriptedModel([Say("whole")]), messages=b.executor.messages)
    assert (await after.finish("again")).text == "whole"


async def test_a_shutdown_is_no_cancel_by_the_user() -> None:
    model = ScriptedModel([Say("text", waits_for=forever)])
    b = bench(model)
    task = asyncio.create_task(b.run())
    await until(lambda: model.open_streams)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not b.token.cancelled
    assert model.open_streams == 0


async def test_an_abandoned_run_closes_its_stream() -> None:
    model = ScriptedModel([Say("one two three")])
    b = bench(model)
    run = b.executor.run_stream(ask("question"), b.token)
    assert isinstance(await anext(run), TextDelta)
    assert model.open_streams == 1
    await run.aclose()
    assert model.open_streams == 0


async def test_a_crashing_tool_is_an_error_result_without_its_secrets() -> None:
    def crash(args: object) -> object:
        raise RuntimeError("password=hunter2")

    b = bench(ScriptedModel([Say(calls=[Call("crash")]), Say("ok")]), tools=[FunctionTool("crash", crash)])
    await b.run()
    assert results(b.executor.messages) == [(ENGLISH.tool_crashed.format(detail="RuntimeError"), True)]


async def test_abandoned_tools_are_reported_as_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.toolrun.STOP_GRACE", 0.01)
    hang = HangingTool(stubborn=True)
    b = bench(ScriptedModel([Say(calls=[Call("hang")]), Say("ok")]), tools=[hang], tool_timeout=0.01)
    events = await b.run()
    assert DefenceActed("tool.abandoned", {"tool": "hang"}) in events
    hang.release.set()
    await b.runner.aclose()
