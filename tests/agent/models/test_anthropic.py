"""What is Anthropic's own: thinking, cache breakpoints, its stop reasons, its two counts of usage, pings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import anthropic
import pytest
from hypothesis import given

from agent.errors import ErrorKind, StreamBroken, classify
from agent.events import TextDelta, ThinkingDelta, Usage
from agent.messages import (
    Message,
    assistant_message,
    injected_text,
    text_block,
    tool_result,
    user_message,
)
from agent.models.anthropic import AnthropicModel, with_cache_marks
from agent.ports import ModelRequest
from tests.agent.models.driving import WEATHER, asking, hear, model_for
from tests.agent.strategies import legal_histories
from tests.servers import anthropic_rules
from tests.servers.model_replies import HttpError, Raw, Reply, ToolCall, anthropic_events
from tests.servers.model_server import ModelServer


@pytest.fixture
def wire() -> str:
    return "anthropic"


async def test_thinking_keeps_its_place_and_its_signature(model: AnthropicModel, server: ModelServer) -> None:
    server.say(
        Reply(
            thinking=["Let me", " see."],
            signature="c2ln==",
            redacted="b3BhcXVl",
            text=["I look."],
            calls=[ToolCall("weather", {"city": "Oslo"}, id="t1")],
        )
    )
    heard = await hear(model, asking("weather?", tools=True))
    assert heard.answer.content == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln=="},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    assert heard.joined() == [ThinkingDelta("Let me see."), TextDelta("I look.")]


async def test_thinking_goes_back_unchanged_within_a_tool_loop(model: AnthropicModel, server: ModelServer) -> None:
    server.say(Reply(thinking=["hm"], redacted="x", calls=[ToolCall("weather", {}, id="t1")]))
    question = user_message(text_block("weather?"))
    called = (await hear(model, ModelRequest("", [question], [WEATHER]))).answer
    history = [question, assistant_message(*called.content), user_message(tool_result("t1", "sunny"))]
    await hear(model, ModelRequest("", history, [WEATHER]))
    assert server.requests[1].body["messages"][1]["content"] == called.content


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("end_turn", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("model_context_window_exceeded", "overflow"),
        ("a_reason_of_the_future", "end_turn"),
    ],
)
async def test_stop_reasons(model: AnthropicModel, server: ModelServer, said: str, meant: str) -> None:
    server.say(Reply(text="ok", stop=said))
    assert (await hear(model)).answer.stop_reason == meant


async def test_input_counts_what_was_read_from_and_written_to_the_cache(
    model: AnthropicModel, server: ModelServer
) -> None:
    server.say(Reply(text="ok", input_tokens=10, cache_read=1000, cache_write=200, output_tokens=50))
    assert (await hear(model)).answer.usage == Usage(1210, 50, cache_read_tokens=1000, cache_write_tokens=200)


async def test_usage_that_comes_only_at_the_end_counts(model: AnthropicModel, server: ModelServer) -> None:
    events = anthropic_events(Reply(text="ok", input_tokens=0))
    end: Any = events[-2]
    end["usage"] = {"input_tokens": 77, "output_tokens": 8}
    server.say(Reply(events=events))
    assert (await hear(model)).answer.usage == Usage(77, 8)


async def test_a_second_end_adds_usage_and_takes_nothing_back(model: AnthropicModel, server: ModelServer) -> None:
    events = anthropic_events(Reply(text="ok", stop="max_tokens"))
    again: Raw = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 9}}
    server.say(Reply(events=[*events[:-1], again, events[-1]]))
    answer = (await hear(model)).answer
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 9)


async def test_pings_are_signs_of_life(server: ModelServer) -> None:
    model = model_for("anthropic", server, timeout=0.5)
    events = anthropic_events(Reply(text="ok"))
    pings: list[Raw | str] = [{"type": "ping"}] * 40
    server.say(Reply(events=[*events[:3], *pings, *events[3:]], interval=0.02))
    assert (await hear(model)).text == "ok"
    await model.aclose()


async def test_events_and_blocks_of_the_future_are_passed_over(model: AnthropicModel, server: ModelServer) -> None:
    events = anthropic_events(Reply(text="ok"))
    news: list[Raw | str] = [
        {"type": "weather_report", "wind": 3},
        {"type": "content_block_start", "index": 9, "content_block": {"type": "hologram", "light": 1}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "photon_delta", "photon": "γ"}},
        {"type": "content_block_stop", "index": 9},
    ]
    server.say(Reply(events=[*events[:-2], *news, *events[-2:]]))
    assert (await hear(model)).answer.content == [{"type": "text", "text": "ok"}]


async def test_what_comes_with_the_start_of_a_block_is_part_of_it(
    model: AnthropicModel, server: ModelServer
) -> None:
    blocks: list[Raw] = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "Looking"},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    starts: list[Raw | str] = [
        {"type": "content_block_start", "index": i, "content_block": block} for i, block in enumerate(blocks)
    ]
    events = anthropic_events(Reply(stop="tool_use"))
    server.say(Reply(events=[events[0], *starts, *events[1:]]))
    heard = await hear(model)
    assert heard.answer.content == blocks
    assert (heard.thinking, heard.text) == ("hm", "Looking")


async def test_an_empty_text_block_is_left_out(model: AnthropicModel, server: ModelServer) -> None:
    server.say(Reply(text=[""], calls=[ToolCall("weather", {}, id="t1")]))
    assert [block["type"] for block in (await hear(model)).answer.content] == ["tool_use"]


async def test_calls_under_an_ordinary_stop_reason_are_calls(model: AnthropicModel, server: ModelServer) -> None:
    server.say(Reply(calls=[ToolCall("weather", {})], stop="end_turn"))
    assert (await hear(model)).answer.stop_reason == "tool_use"


async def test_a_delta_for_a_block_that_never_started_is_a_broken_stream(
    model: AnthropicModel, server: ModelServer
) -> None:
    delta: Raw = {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "?"}}
    server.say(Reply(events=[anthropic_events(Reply())[0], delta]))
    with pytest.raises(StreamBroken):
        await hear(model)


async def test_overloaded_before_the_stream_is_the_sdks_error(model: AnthropicModel, server: ModelServer) -> None:
    server.say(Reply(fault=HttpError(529, "Overloaded")))
    with pytest.raises(anthropic.APIStatusError) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.TRANSIENT


async def test_a_history_that_the_api_refuses_is_a_format_error(
    model: AnthropicModel, server: ModelServer
) -> None:
    history = [user_message(text_block("hi")), user_message(tool_result("gone", "x"))]
    with pytest.raises(anthropic.BadRequestError) as caught:
        await hear(model, ModelRequest("", history, [WEATHER]))
    assert classify(caught.value) is ErrorKind.FORMAT


# The prompt cache.


def _marks(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Where breakpoints are: message and block."""
    return [
        (index, number)
        for index, message in enumerate(messages)
        for number, block in enumerate(message["content"])
        if isinstance(block, dict) and "cache_control" in block
    ]


def _without_marks(messages: Any) -> Any:
    if isinstance(messages, list):
        return [_without_marks(item) for item in messages]
    if isinstance(messages, dict):
        return {key: _without_marks(value) for key, value in messages.items() if key != "cache_control"}
    return messages


async def test_system_and_tools_are_cached_and_four_breakpoints_are_the_most(
    model: AnthropicModel, server: ModelServer
) -> None:
    before = (user_message(text_block("a")), assistant_message(text_block("b"))) * 3
    await hear(model, asking("c", before=before, tools=True))
    body = server.requests[0].body
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert [tool["cache_control"] for tool in body["tools"]] == [{"type": "ephemeral"}]
    assert _marks(body["messages"]) == [(4, 0), (6, 0)]
    assert server.requests[0].refused == []


def test_a_breakpoint_stands_on_the_last_block_that_may_have_one() -> None:
    message = user_message(tool_result("t1", "x"), injected_text("nudge"), text_block("  "))
    assert _marks(with_cache_marks([message])) == [(0, 1)]


@given(legal_histories())
def test_breakpoints_change_nothing_else_and_nothing_that_was_given(history: list[Message]) -> None:
    before = json.dumps(history)
    marked = with_cache_marks(history)
    assert json.dumps(history) == before
    assert len(_marks(marked)) == min(2, sum(message["role"] == "user" for message in history))
    plain: Any = [
        {**m, "content": [text_block(m["content"])]} if isinstance(m["content"], str) else m for m in history
    ]
    assert _without_marks(marked) == plain
    assert not history or anthropic_rules.violations(marked) == []


@given(legal_histories())
def test_the_prefix_of_a_growing_history_stays_the_same_byte_for_byte(history: list[Message]) -> None:
    """Breakpoints move, what they stand on does not change; the last one is found again by the next request."""
    requests = [with_cache_marks(history[:end]) for end in range(1, len(history) + 1)]
    for shorter, longer in pairwise(requests):
        assert json.dumps(_without_marks(longer[:-1])) == json.dumps(_without_marks(shorter))
        if longer[-1]["role"] == "user" and (written := _marks(shorter)):
            assert written[-1] in _marks(longer)
