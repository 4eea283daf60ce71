"""What a run does about a provider's errors (four-defences §5.4)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ErrorKind, StreamBroken
from agent.events import DefenceActed, Event, Outcome, RunFinished, TextDelta, TextReplaced, Waiting
from agent.messages import Message, text_block
from agent.models.scripted import Call, Say, ScriptedModel
from agent.recovery import Fail, NextModel, Recovery, RetryPolicy, Wait
from agent.shown import ShownText
from agent.texts import ENGLISH
from tests.agent.harness import FunctionTool, ask, bench, echo
from tests.agent.legality import anthropic_violations


class Fault(Exception):
    """Stands for an SDK's status error: what is read of one is its status, type and text."""

    def __init__(self, status: int, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.status_code = status
        self.type = code


OVERFLOW = "prompt is too long: 213462 tokens > 4000 maximum"
UNPAIRED = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_01."


def overflow() -> Fault:
    return Fault(400, OVERFLOW, "invalid_request_error")


def unpaired() -> Fault:
    return Fault(400, UNPAIRED, "invalid_request_error")


def overloaded() -> Fault:
    return Fault(529, "Overloaded", "overloaded_error")


def shown_in_the_end(events: Sequence[Event]) -> str:
    """What a person reads who follows deltas and replacements."""
    text = ""
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, TextReplaced):
            text = event.text
    return text


def long_history(turns: int) -> list[Message]:
    history: list[Message] = []
    for n in range(turns):
        history += [
            ask(f"question {n} " + "q" * 2000),
            {"role": "assistant", "content": [text_block(f"answer {n}")]},
        ]
    return history


async def test_an_overflow_is_compacted_against_the_named_limit_and_sent_again_smaller() -> None:
    model = ScriptedModel([overflow(), Say("fits now")])
    b = bench(model, messages=long_history(18))
    events = await b.run("the last")
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].outcome, events[-1].text) == (Outcome.COMPLETED, "fits now")
    assert len(model.requests[1]) < len(model.requests[0])
    assert [reason for reason, _ in b.memory.flushed] == ["overflow"]
    assert b.facts.limit("scripted-1") == 4000
    assert b.executor.last_run_new_messages[0] == ask("the last")


async def test_each_retry_after_an_overflow_is_smaller_until_nothing_can_be_taken_away() -> None:
    model = ScriptedModel(lambda request: Fault(400, "prompt is too long", "invalid_request_error"))
    b = bench(model, messages=long_history(18))
    finished = await b.finish("the last " + "z" * 5000)
    sizes = [len(request) for request in model.requests]
    assert finished.outcome is Outcome.RESET
    assert len(sizes) > 2
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))


async def test_a_reset_keeps_the_users_message_and_says_what_to_do() -> None:
    b = bench(ScriptedModel([unpaired(), unpaired()]), messages=long_history(3))
    finished = await b.finish("the last")
    assert finished.outcome is Outcome.RESET
    assert ENGLISH.reset_format in finished.text
    assert b.executor.messages == [ask("the last")]
    assert b.executor.last_run_new_messages == [ask("the last")]
    assert [reason for reason, _ in b.memory.flushed] == ["reset"]


async def test_what_a_run_did_before_its_reset_is_still_stored() -> None:
    b = bench(ScriptedModel([Say("first", [Call("echo", {"text": "x"})]), unpaired(), unpaired()]), tools=[echo()])
    await b.finish("the last")
    assert b.executor.messages == [ask("the last")]
    new = b.executor.last_run_new_messages
    assert len(new) == 3
    assert anthropic_violations(new) == []


async def test_a_format_error_is_sanitized_once_and_sent_again() -> None:
    b = bench(ScriptedModel([unpaired(), Say("fine")]))
    events = await b.run()
    assert "recovery.sanitize" in [event.event for event in events if isinstance(event, DefenceActed)]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].text == "fine"


async def test_a_refused_thinking_signature_is_dropped() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "bad"}
    refused = Fault(400, "messages.1.content.0: Invalid `signature` in `thinking` block", "invalid_request_error")
    model = ScriptedModel([Say(calls=[Call("echo", {})], blocks_before=[thinking]), refused, Say("ok")])  # type: ignore[list-item]  # literal
    b = bench(model, tools=[echo()])
    assert (await b.finish()).text == "ok"
    assert "thinking" in model.requests[1]
    assert "thinking" not in model.requests[2]


@pytest.mark.parametrize(
    ("fault", "waits"),
    [
        (Fault(429, "Rate limit reached", "rate_limit_error"), [30, 45, 60]),
        (overloaded(), [2, 4, 6]),
        (StreamBroken("the stream ended early"), [2, 4, 6]),
    ],
)
async def test_retries_wait_as_long_as_the_policy_says_and_then_end(fault: Exception, waits: list[float]) -> None:
    model = ScriptedModel(lambda request: fault)
    b = bench(model)
    events = await b.run()
    assert [pytest.approx(wait, rel=0.26) for wait in waits] == b.clock.waits
    assert len([event for event in events if isinstance(event, Waiting)]) == 3
    assert isinstance(events[-1], RunFinished)
    assert events[-1].outcome is Outcome.FAILED
    assert b.executor.last_run_new_messages == [ask("question")]


async def test_a_broken_stream_that_is_sent_again_shows_nothing_twice() -> None:
    model = ScriptedModel([Say("one two", fails_with=StreamBroken("cut")), Say("one two three")])
    b = bench(model)
    events = await b.run()
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one", " two", " three"]
    assert not [event for event in events if isinstance(event, TextReplaced)]


async def test_a_broken_stream_that_goes_another_way_replaces_what_was_shown() -> None:
    model = ScriptedModel([Say("one two", fails_with=StreamBroken("cut")), Say("one more thing")])
    b = bench(model)
    events = await b.run()
    assert shown_in_the_end(events) == "one more thing"
    assert isinstance(events[-1], RunFinished)
    assert events[-1].text == "one more thing"


async def test_text_of_a_stream_that_stays_broken_is_kept() -> None:
    model = ScriptedModel(lambda request: Say("one two", fails_with=StreamBroken("cut")))
    b = bench(model)
    finished = await b.finish()
    assert finished.text == f"one two\n\n{ENGLISH.failed_transient}"
    assert b.executor.last_run_new_messages[1:] == [{"role": "assistant", "content": [text_block("one two")]}]


async def test_an_empty_answer_is_asked_for_once_more() -> None:
    model = ScriptedModel([Say(""), Say("here")])
    b = bench(model)
    assert (await b.finish()).text == "here"
    model = ScriptedModel([Say(""), Say("")])
    b = bench(model)
    finished = await b.finish()
    assert (finished.outcome, finished.text) == (Outcome.FAILED, ENGLISH.empty_answer)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (Fault(401, "invalid x-api-key", "authentication_error"), ENGLISH.failed_auth),
        (Fault(402, "Insufficient Balance"), ENGLISH.failed_quota),
        (Fault(404, "model: claude-foo", "not_found_error"), ENGLISH.failed_model),
        (Fault(400, "something else", "invalid_request_error"), ENGLISH.failed_other),
    ],
)
async def test_an_error_that_no_retry_can_mend_ends_with_a_clear_line(fault: Fault, line: str) -> None:
    model = ScriptedModel([fault])
    b = bench(model)
    finished = await b.finish()
    assert (finished.outcome, finished.text) == (Outcome.FAILED, line)
    assert b.clock.waits == []


async def test_the_fallback_answers_where_retrying_is_useless_or_used_up() -> None:
    for fault in (Fault(401, "invalid x-api-key", "authentication_error"), overloaded()):
        first = ScriptedModel(lambda request, fault=fault: fault, name="first")  # type: ignore[misc]  # bound value
        second = ScriptedModel([Say("from the second")], name="second")
        b = bench(first, second)
        finished = await b.finish()
        assert (finished.model, finished.text) == ("second", "from the second")


async def test_a_refusal_has_its_own_end() -> None:
    b = bench(ScriptedModel([Say("", stop_reason="refusal")]))
    assert (await b.finish()).text == ENGLISH.refusal
    b = bench(ScriptedModel([Say("", stop_reason="content_filter")]))
    assert (await b.finish()).text == ENGLISH.content_filter


async def test_an_answer_that_fills_the_window_is_compacted_and_asked_for_again() -> None:
    big = FunctionTool("big", lambda args: "x" * 30_000)
    model = ScriptedModel(
        [Say(calls=[Call("big")]), Say("so far", stop_reason="overflow"), Say("so far and further")]
    )
    b = bench(model, tools=[big])
    events = await b.run()
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["so", " far", " and", " further"]
    assert len(model.requests[2]) < len(model.requests[1])


async def test_compaction_inside_a_run_leaves_the_history_legal_and_the_query_new() -> None:
    big = FunctionTool("big", lambda args: "x" * 30_000 + str(args["n"]))
    calls = [Say(calls=[Call("big", {"n": n})]) for n in range(5)]
    model = ScriptedModel([*calls, overflow(), Say("done")])
    b = bench(model, tools=[big], messages=long_history(6))
    finished = await b.finish("the last")
    assert finished.text == "done"
    assert anthropic_violations(json.loads(model.requests[-1])["messages"]) == []
    assert b.executor.last_run_new_messages[0] == ask("the last")
    assert len(b.executor.last_run_new_messages) == 12


def test_waits_start_anew_after_a_success_but_a_sanitize_stays_counted() -> None:
    recovery = Recovery(RetryPolicy(), jitter=lambda: 0.0)
    assert isinstance(recovery.decide(overloaded()), Wait)
    recovery.decide(unpaired())
    recovery.succeeded()
    action = recovery.decide(overloaded())
    assert action == Wait(ErrorKind.TRANSIENT, 2, 1, 3)
    assert type(recovery.decide(unpaired())).__name__ == "Reset"


def test_a_named_wait_wins_and_is_capped() -> None:
    recovery = Recovery(RetryPolicy(max_wait=50), jitter=lambda: 0.0)
    named = Fault(429, "Rate limit reached. Please try again in 6s.", "rate_limit_exceeded")
    assert recovery.decide(named) == Wait(ErrorKind.RATE_LIMIT, 6, 1, 3)
    long = Fault(429, "Rate limit reached. Please try again in 600s.", "rate_limit_exceeded")
    assert recovery.decide(long) == Wait(ErrorKind.RATE_LIMIT, 50, 2, 3)


@given(st.lists(st.sampled_from(["overflow", "format", "rate", "transient", "auth", "other"]), max_size=80))
def test_no_sequence_of_errors_goes_on_for_ever(kinds: list[str]) -> None:
    errors = {
        "overflow": overflow(),
        "format": unpaired(),
        "rate": Fault(429, "Rate limit reached", "rate_limit_error"),
        "transient": overloaded(),
        "auth": Fault(401, "invalid x-api-key", "authentication_error"),
        "other": Fault(400, "something else", "invalid_request_error"),
    }
    recovery = Recovery(RetryPolicy(), fallbacks=1, jitter=lambda: 1.0)
    actions = []
    for kind in kinds:
        actions.append(recovery.decide(errors[kind]))
        if type(actions[-1]).__name__ in ("Fail", "Reset"):
            break
    else:
        assert len(kinds) <= 10 + 1 + 2 * 6 + 1
    assert sum(isinstance(action, NextModel) for action in actions) <= 1
    assert all(isinstance(action, Fail) is False for action in actions[:-1])


@given(st.lists(st.text(max_size=5), max_size=6), st.lists(st.lists(st.text(max_size=5), max_size=6), max_size=3))
def test_whatever_restarts_the_shown_text_is_the_last_streams_text(
    earlier: list[str], streams: list[list[str]]
) -> None:
    shown = ShownText()
    seen: list[Event] = [event for delta in earlier if (event := shown.feed(delta))]
    shown.next_step()
    for number, deltas in enumerate(streams):
        if number:
            shown.restart()
        seen += [event for delta in deltas if (event := shown.feed(delta))]
    if streams and (event := shown.end_stream()):
        seen.append(event)
    assert shown_in_the_end(seen) == shown.text
    before = "".join(earlier)
    last = "".join(streams[-1]) if streams else ""
    assert shown.text == (f"{before}\n\n{last}" if before and last else before or last)
