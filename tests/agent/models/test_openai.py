"""What is Chat Completions' own, and what the many servers that speak it make of it."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from agent.errors import ErrorKind, StreamBroken, classify
from agent.events import TextDelta, ThinkingDelta, Usage
from agent.messages import assistant_message, text_block, tool_result, user_message
from agent.models.openai import OpenAIModel, takes_completion_tokens
from agent.ports import ModelRequest
from agent.repair import sanitize_claude_messages
from tests.agent.models.driving import WEATHER, Heard, asking, hear
from tests.servers.model_replies import Drop, HttpError, Raw, Reply, ToolCall, openai_chunk
from tests.servers.model_server import ModelServer


@pytest.fixture
def wire() -> str:
    return "openai"


def streamed(*deltas: Raw, stop: str | None = "stop") -> Reply:
    """A reply of these deltas as a compatible server sends them: no usage, no more fields than needed."""
    chunks: list[Raw | str] = [{"choices": [{"delta": delta}]} for delta in deltas]
    return Reply(events=[*chunks, {"choices": [{"delta": {}, "finish_reason": stop}]}, "data: [DONE]\n\n"])


def call_deltas(*calls: Raw) -> Reply:
    return streamed(*({"tool_calls": [call]} for call in calls), stop="tool_calls")


async def calls_of(model: OpenAIModel) -> list[tuple[str, str, object]]:
    answer = (await hear(model)).answer
    assert answer.broken_inputs == {}
    return [
        (block["id"], block["name"], block["input"]) for block in answer.content if block["type"] == "tool_use"
    ]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("sensitive", "content_filter"),
        ("model_length", "overflow"),
        ("a_reason_of_the_future", "end_turn"),
    ],
)
async def test_finish_reasons(model: OpenAIModel, server: ModelServer, said: str, meant: str) -> None:
    server.say(Reply(text="ok", stop=said))
    assert (await hear(model)).answer.stop_reason == meant


@pytest.mark.parametrize("said", ["stop", "tool_calls", "function_call", "eos"])
async def test_calls_are_calls_under_any_ordinary_finish_reason(
    model: OpenAIModel, server: ModelServer, said: str
) -> None:
    server.say(Reply(calls=[ToolCall("weather", {})], stop=said))
    assert (await hear(model)).answer.stop_reason == "tool_use"


@pytest.mark.parametrize("said", ["error", "abort", "network_error", "insufficient_system_resource"])
async def test_a_provider_that_could_not_go_on_is_a_broken_stream(
    model: OpenAIModel, server: ModelServer, said: str
) -> None:
    server.say(Reply(text="half an", stop=said))
    with pytest.raises(StreamBroken) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.TRANSIENT


async def test_usage_comes_in_a_last_chunk_with_no_choices(model: OpenAIModel, server: ModelServer) -> None:
    server.say(Reply(text="ok", input_tokens=10, cache_read=90, output_tokens=4))
    assert (await hear(model)).answer.usage == Usage(100, 4, cache_read_tokens=90)
    assert server.requests[0].body["stream_options"] == {"include_usage": True}


async def test_an_answer_without_usage_is_an_answer(model: OpenAIModel, server: ModelServer) -> None:
    server.say(streamed({"content": "ok"}))
    heard = await hear(model)
    assert (heard.text, heard.answer.usage) == ("ok", Usage())


async def test_chunks_with_no_choices_no_delta_or_null_fields_are_tolerated(
    model: OpenAIModel, server: ModelServer
) -> None:
    odd: list[Raw | str] = [
        ": OPENROUTER PROCESSING\n\n",
        {"choices": [], "prompt_filter_results": [{}]},
        {"choices": None},
        {"choices": [{"delta": None, "finish_reason": ""}]},
        {"choices": [{"index": 0}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None, "role": None}}]},
    ]
    server.say(Reply(events=[*odd, openai_chunk({"content": "ok"}, "stop")]))
    assert (await hear(model)).answer.content == [{"type": "text", "text": "ok"}]


async def test_a_refusal_is_told_from_an_answer(model: OpenAIModel, server: ModelServer) -> None:
    server.say(streamed({"refusal": "I can't"}, {"refusal": " do that."}))
    assert (await hear(model)).answer.stop_reason == "refusal"


async def test_content_in_parts_is_text(model: OpenAIModel, server: ModelServer) -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "ok"}]
    server.say(streamed({"content": parts}))
    assert (await hear(model)).text == "ok"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_in_the_tool_loop_under_the_name_it_came_with(
    model: OpenAIModel, server: ModelServer, field: str
) -> None:
    call = {"id": "c1", "index": 0, "function": {"name": "weather", "arguments": "{}"}}
    server.say(streamed({field: "Let me"}, {field: " see.", "content": "Looking."}, {"tool_calls": [call]}))
    question = user_message(text_block("weather?"))
    heard = await hear(model, ModelRequest("", [question], [WEATHER]))
    assert heard.joined() == [ThinkingDelta("Let me see."), TextDelta("Looking.")]
    thought, *_ = heard.answer.content
    assert thought == {"type": "thinking", "thinking": "Let me see.", "signature": ""}
    history = [question, assistant_message(*heard.answer.content), user_message(tool_result("c1", "sunny"))]
    await hear(model, ModelRequest("", history, [WEATHER]))
    back = server.requests[1].body["messages"][1]
    assert {key: value for key, value in back.items() if "reasoning" in key} == {field: "Let me see."}


async def test_reasoning_that_comes_under_both_names_comes_once(model: OpenAIModel, server: ModelServer) -> None:
    server.say(streamed({"reasoning": "hm", "reasoning_content": "hm"}, {"content": "ok"}))
    assert (await hear(model)).thinking == "hm"


async def test_what_gemini_adds_to_a_call_goes_back_with_it_in_the_tool_loop(
    model: OpenAIModel, server: ModelServer
) -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    first: Raw = {"id": "c1", "index": 0, "function": {"name": "f", "arguments": "{}"}, "extra_content": signed}
    second: Raw = {"id": "c2", "index": 0, "function": {"name": "f", "arguments": '{"x": 1}'}}
    server.say(call_deltas(first, second))
    question = user_message(text_block("weather?"))
    called = assistant_message(*(await hear(model)).answer.content)
    history = [question, called, user_message(tool_result("c1", "r"), tool_result("c2", "r"))]
    assert sanitize_claude_messages(history) == 0
    await hear(model, ModelRequest("", history, [WEATHER]))
    history += [assistant_message(text_block("sunny")), user_message(text_block("thanks"))]
    await hear(model, ModelRequest("", history, [WEATHER]))
    in_loop, later = (recorded.body["messages"][1]["tool_calls"] for recorded in server.requests[1:])
    assert [call.get("extra_content") for call in in_loop] == [signed, None]
    assert [call.get("extra_content") for call in later] == [None, None]


# Tool-call deltas, as servers send them.


async def test_interleaved_calls_are_joined_by_index(model: OpenAIModel, server: ModelServer) -> None:
    server.say(
        call_deltas(
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}},
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y"'}},
            {"index": 0, "function": {"arguments": '{"x": 1}'}},
            {"index": 1, "function": {"arguments": ": 2}"}},
        )
    )
    assert await calls_of(model) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


async def test_a_server_that_repeats_id_and_name_means_one_call(model: OpenAIModel, server: ModelServer) -> None:
    pieces = ['{"x"', ": ", "1}", ""]
    server.say(call_deltas(*({"index": 0, "id": "a", "function": {"name": "f", "arguments": p}} for p in pieces)))
    assert await calls_of(model) == [("a", "f", {"x": 1})]


async def test_a_server_that_makes_a_new_id_for_each_delta_means_one_call(
    model: OpenAIModel, server: ModelServer
) -> None:
    pieces = ['{"x"', ": ", "1}", " "]
    server.say(
        call_deltas(
            *({"index": 0, "id": f"r{i}", "function": {"name": "f", "arguments": p}} for i, p in enumerate(pieces))
        )
    )
    assert await calls_of(model) == [("r0", "f", {"x": 1})]


async def test_whole_calls_that_all_have_index_0_are_several(model: OpenAIModel, server: ModelServer) -> None:
    server.say(
        call_deltas(
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"index": 0, "id": "b", "function": {"name": "f", "arguments": '{"x": 2}'}},
            {"index": 0, "id": "c", "function": {"name": "g", "arguments": "{}"}},
        )
    )
    assert await calls_of(model) == [("a", "f", {"x": 1}), ("b", "f", {"x": 2}), ("c", "g", {})]


async def test_another_name_is_another_call_even_where_nothing_else_tells(
    model: OpenAIModel, server: ModelServer
) -> None:
    server.say(
        call_deltas(
            {"index": 0, "id": "a", "function": {"name": "now", "arguments": ""}},
            {"index": 0, "id": "b", "function": {"name": "f", "arguments": '{"x": 1}'}},
        )
    )
    assert await calls_of(model) == [("a", "now", {}), ("b", "f", {"x": 1})]


async def test_calls_without_index_are_joined_by_id_and_by_order(model: OpenAIModel, server: ModelServer) -> None:
    server.say(
        call_deltas(
            {"id": "a", "function": {"name": "f", "arguments": '{"x"'}},
            {"function": {"arguments": ": 1}"}},
            {"id": "b", "function": {"name": "f", "arguments": ""}},
            {"id": "b", "function": {"arguments": '{"x": 2}'}},
        )
    )
    assert await calls_of(model) == [("a", "f", {"x": 1}), ("b", "f", {"x": 2})]


async def test_calls_with_neither_index_nor_id_get_ids(model: OpenAIModel, server: ModelServer) -> None:
    server.say(
        call_deltas(
            {"function": {"name": "f", "arguments": '{"x": 1}'}},
            {"function": {"name": "f", "arguments": '{"x": 2}'}},
            {"function": {"name": "g", "arguments": {"y": 3}}},
        )
    )
    calls = await calls_of(model)
    assert [call[1:] for call in calls] == [("f", {"x": 1}), ("f", {"x": 2}), ("g", {"y": 3})]
    assert len({call[0] for call in calls}) == 3


# The request.


async def test_the_output_limit_has_the_name_that_the_server_knows() -> None:
    assert takes_completion_tokens("https://api.openai.com/v1")
    assert takes_completion_tokens("https://me.openai.azure.com/openai/v1/")
    assert not takes_completion_tokens("https://api.deepseek.com")
    assert not takes_completion_tokens("http://127.0.0.1:11434/v1")


async def test_the_system_prompt_comes_first_and_tools_are_functions(
    model: OpenAIModel, server: ModelServer
) -> None:
    await hear(model, asking("hi", tools=True))
    body = server.requests[0].body
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    schema = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.input_schema}
    assert body["tools"] == [{"type": "function", "function": schema}]


async def test_a_history_with_open_calls_is_sent_closed(model: OpenAIModel, server: ModelServer) -> None:
    call: Any = {"type": "tool_use", "id": "lost", "name": "weather", "input": {}}
    await hear(model, asking("well?", before=(user_message(text_block("a")), assistant_message(call)), tools=True))
    assert [message["role"] for message in server.requests[0].body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


# Faults.


async def test_a_connection_lost_in_the_stream_is_a_broken_stream(model: OpenAIModel, server: ModelServer) -> None:
    gate = asyncio.Event()
    server.say(Reply(text="one two", gates={2: gate}, fault=Drop(2)))
    heard = Heard()
    reading = asyncio.create_task(hear(model, heard=heard))
    await (await server.arrived()).streaming.wait()
    gate.set()
    with pytest.raises(StreamBroken, match="the connection broke"):
        await reading


async def test_an_overflow_keeps_its_code(model: OpenAIModel, server: ModelServer) -> None:
    words = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    server.say(Reply(fault=HttpError(400, words, kind="context_length_exceeded")))
    with pytest.raises(openai.BadRequestError) as caught:
        await hear(model)
    assert caught.value.code == "context_length_exceeded"
    assert classify(caught.value) is ErrorKind.OVERFLOW


async def test_an_error_that_is_a_chunk_by_itself_is_seen(model: OpenAIModel, server: ModelServer) -> None:
    words = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
    server.say(Reply(events=[{"object": "error", "message": words, "type": "BadRequestError", "code": 400}]))
    with pytest.raises(openai.APIError) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.OVERFLOW
