"""What holds for either wire: answers, faults, cancellation, keys. The SDKs are real, the provider is ours."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import TypeAlias

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cancel import AgentCancelledError, CancelToken
from agent.errors import ErrorKind, StreamBroken, classify, retry_after
from agent.events import TextDelta, Usage
from agent.messages import assistant_message, text_block, tool_result, user_message
from agent.models._wire import TextJoiner, json_object, tool_input
from agent.models.anthropic import AnthropicModel
from agent.models.openai import OpenAIModel
from agent.ports import BrokenInput, ModelRequest
from tests.agent.models.driving import WEATHER, Heard, asking, hear, model_for, without_tools
from tests.servers.model_replies import (
    Drop,
    HttpError,
    Malformed,
    Reply,
    Stall,
    StreamError,
    ToolCall,
    Truncate,
    Wire,
)
from tests.servers.model_server import ModelServer

AnyModel: TypeAlias = AnthropicModel | OpenAIModel
LIMIT = {"anthropic": "max_tokens", "openai": "length"}
ONE_WORD = {"anthropic": 3, "openai": 2}
"""Events that have come when the first word has."""


async def test_text_is_streamed_as_it_comes_and_is_whole_in_the_answer(
    model: AnyModel, server: ModelServer
) -> None:
    server.say(Reply(text=["One", " two", " three."], input_tokens=7, output_tokens=3))
    heard = await hear(model)
    assert heard.joined() == [TextDelta("One two three.")]
    assert heard.answer.content == [{"type": "text", "text": "One two three."}]
    assert (heard.answer.stop_reason, heard.answer.usage) == ("end_turn", Usage(7, 3))


async def test_a_delta_is_given_before_the_next_one_exists(
    model: AnyModel, server: ModelServer, wire: Wire
) -> None:
    go_on = asyncio.Event()
    server.say(Reply(text=["first", " second"], gates={ONE_WORD[wire]: go_on}))
    stream = model.stream(asking("hi"))
    assert await anext(stream) == TextDelta("first")
    go_on.set()
    assert await anext(stream) == TextDelta(" second")
    await stream.aclose()


async def test_tool_calls_keep_order_ids_and_arguments(model: AnyModel, server: ModelServer) -> None:
    paris = ToolCall("weather", ['{"ci', 'ty": "Par', 'is ☀"}'], id="call_a")
    server.say(Reply(text="Looking.", calls=[paris, ToolCall("weather", {"city": "Oslo"}, id="call_b")]))
    heard = await hear(model, asking("weather?", tools=True))
    assert heard.answer.stop_reason == "tool_use"
    assert heard.answer.content == [
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Paris ☀"}},
        {"type": "tool_use", "id": "call_b", "name": "weather", "input": {"city": "Oslo"}},
    ]
    assert heard.answer.broken_inputs == {}


async def test_a_call_without_arguments_has_an_empty_input(model: AnyModel, server: ModelServer) -> None:
    server.say(Reply(calls=[ToolCall("now", [])]))
    (call,) = (await hear(model)).answer.content
    assert call["type"] == "tool_use"
    assert call["input"] == {}


@pytest.mark.parametrize(
    "raw", ['{"city": ', "[1]", '"text"', "null", '{"a": NaN}', '{"a": 1e999}', "{'a': 1}", "{} {}"]
)
async def test_arguments_that_are_no_json_object_are_reported_raw(
    model: AnyModel, server: ModelServer, raw: str
) -> None:
    server.say(Reply(calls=[ToolCall("weather", [raw], id="bad"), ToolCall("weather", {"city": "Oslo"}, id="ok")]))
    answer = (await hear(model)).answer
    assert answer.broken_inputs == {"bad": BrokenInput(raw, "invalid_json")}
    assert [block["input"] for block in answer.content if block["type"] == "tool_use"] == [{}, {"city": "Oslo"}]


@pytest.mark.parametrize("raw", ['{"city": "Par', ""])
async def test_a_call_that_the_output_limit_cut_is_told_from_one_that_is_wrong(
    model: AnyModel, server: ModelServer, wire: Wire, raw: str
) -> None:
    calls = [ToolCall("weather", ["{oops"], id="wrong"), ToolCall("weather", [raw], id="cut")]
    server.say(Reply(calls=calls, stop=LIMIT[wire]))
    answer = (await hear(model)).answer
    assert answer.stop_reason == "max_tokens"
    assert answer.broken_inputs == {
        "wrong": BrokenInput("{oops", "invalid_json"),
        "cut": BrokenInput(raw, "cut_off"),
    }


async def test_a_whole_call_at_the_output_limit_is_run(model: AnyModel, server: ModelServer, wire: Wire) -> None:
    server.say(Reply(calls=[ToolCall("weather", {"city": "Oslo"})], stop=LIMIT[wire]))
    answer = (await hear(model)).answer
    assert answer.broken_inputs == {}
    assert [block["input"] for block in answer.content if block["type"] == "tool_use"] == [{"city": "Oslo"}]


async def test_each_call_of_an_answer_has_its_own_id(model: AnyModel, server: ModelServer) -> None:
    calls = [ToolCall("weather", ["{"], id="call_0"), ToolCall("weather", {"city": "Oslo"}, id="call_0")]
    server.say(Reply(calls=[*calls, ToolCall("weather", {"city": "Rome"}, id="")]))
    answer = (await hear(model)).answer
    ids = [block["id"] for block in answer.content if block["type"] == "tool_use"]
    assert len({*ids}) == 3
    assert ids[0] == "call_0"
    assert all(ids)
    assert [*answer.broken_inputs] == ["call_0"]


async def test_tools_can_be_declared_and_forbidden(model: AnyModel, server: ModelServer, wire: Wire) -> None:
    await hear(model, without_tools(asking("hi", tools=True)))
    await hear(model, asking("hi", tools=True))
    await hear(model, without_tools(asking("hi")))
    forbidden, allowed, bare = (recorded.body for recorded in server.requests)
    assert forbidden["tools"]
    assert forbidden["tool_choice"] == ({"type": "none"} if wire == "anthropic" else "none")
    assert allowed["tools"] == forbidden["tools"]
    assert "tool_choice" not in allowed
    assert not {"tool_choice", "tools"} & bare.keys()


async def test_a_tool_loop_goes_over_the_wire_as_the_provider_wants_it(
    model: AnyModel, server: ModelServer
) -> None:
    question = user_message(text_block("use the tool weather {}"))
    called = (await hear(model, ModelRequest("", [question], [WEATHER]))).answer
    call_id = next(block["id"] for block in called.content if block["type"] == "tool_use")
    results = user_message(tool_result(call_id, "sunny"))
    heard = await hear(model, ModelRequest("", [question, assistant_message(*called.content), results], [WEATHER]))
    assert heard.text == "The tool said: sunny"


async def test_a_request_never_changes_the_messages(model: AnyModel, server: ModelServer) -> None:
    request = asking("hi", before=({"role": "user", "content": "plain"}, assistant_message(text_block("yes"))))
    before = json.dumps(request.messages)
    await hear(model, request)
    assert json.dumps(request.messages) == before


async def test_the_key_and_the_model_go_with_the_request(model: AnyModel, server: ModelServer, wire: Wire) -> None:
    await hear(model)
    (recorded,) = server.requests
    assert recorded.headers["Authorization"] == "Bearer secret-key"
    assert recorded.headers.get("x-api-key") == ("secret-key" if wire == "anthropic" else None)
    assert recorded.body["model"] == "m-1"
    assert recorded.body["max_tokens"] == 512


async def test_nothing_is_taken_from_the_environment(
    wire: Wire, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, "foreign")
    for name in ("OPENAI_PROJECT_ID", "ANTHROPIC_PROFILE"):
        monkeypatch.setenv(name, "foreign")
    model = model_for(wire, server)
    await hear(model)
    assert "foreign" not in " ".join(server.requests[0].headers.values())
    await model.aclose()


async def test_without_a_base_url_the_key_goes_to_the_provider_itself(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    kind: type[AnyModel] = AnthropicModel if wire == "anthropic" else OpenAIModel
    model = kind(name="p", model="m", api_key="k")
    assert model._client.base_url.host == f"api.{wire}.com"
    await model.aclose()


# Faults: the SDKs' own errors as they are, StreamBroken for what they pass over.


@pytest.mark.parametrize(
    ("fault", "kind", "name"),
    [
        (HttpError(401), ErrorKind.AUTH, "AuthenticationError"),
        (HttpError(429, headers={"retry-after": "7"}), ErrorKind.RATE_LIMIT, "RateLimitError"),
        (HttpError(500), ErrorKind.TRANSIENT, "InternalServerError"),
        (HttpError(502, body="<html>busy</html>"), ErrorKind.TRANSIENT, "InternalServerError"),
        (HttpError(400, "prompt is too long: 9 tokens > 8 maximum"), ErrorKind.OVERFLOW, "BadRequestError"),
    ],
)
async def test_an_http_error_goes_out_as_the_sdk_made_it_and_is_not_retried(
    model: AnyModel, server: ModelServer, fault: HttpError, kind: ErrorKind, name: str
) -> None:
    server.say(Reply(fault=fault))
    with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as caught:
        await hear(model)
    assert type(caught.value).__name__ == name
    assert classify(caught.value) is kind
    assert retry_after(caught.value) == (7 if fault.headers else None)
    assert len(server.requests) == 1


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("fault", [Truncate, Malformed])
async def test_what_the_sdk_passes_over_is_a_broken_stream(
    model: AnyModel, server: ModelServer, fault: type[Truncate | Malformed], after: int
) -> None:
    server.say(Reply(text="one two three", fault=fault(after)))
    with pytest.raises(StreamBroken) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.TRANSIENT


@pytest.mark.parametrize("data", ["42", "[1]", "{}", '{"type": "content_block_delta", "choices": [3]}', '"x"'])
async def test_json_of_another_shape_is_passed_over_or_a_broken_stream(
    model: AnyModel, server: ModelServer, data: str
) -> None:
    server.say(Reply(text="one two", fault=Malformed(3, data)))
    try:
        heard = await hear(model)
    except StreamBroken:
        return
    assert heard.text == "one two"


async def test_a_body_that_is_no_stream_at_all_is_a_broken_stream(model: AnyModel, server: ModelServer) -> None:
    server.say(Reply(events=["<html>welcome to the hotel's wifi</html>\n"]))
    with pytest.raises(StreamBroken):
        await hear(model)


async def test_bytes_that_are_not_utf8_are_a_broken_stream(model: AnyModel, server: ModelServer) -> None:
    server.say(Reply(text="one two", fault=Malformed(2, "\udcff")))
    with pytest.raises(StreamBroken):
        await hear(model)


@pytest.mark.parametrize("hard", [False, True])
async def test_a_lost_connection_is_transient_and_what_came_before_was_shown(
    model: AnyModel, server: ModelServer, wire: Wire, hard: bool
) -> None:
    gate = asyncio.Event()
    server.say(Reply(text="one two three", gates={ONE_WORD[wire]: gate}, fault=Drop(ONE_WORD[wire], hard=hard)))
    heard = Heard()
    reading = asyncio.create_task(hear(model, heard=heard))
    await (await server.arrived()).streaming.wait()
    gate.set()
    with pytest.raises(StreamBroken) as caught:
        await reading
    assert classify(caught.value) is ErrorKind.TRANSIENT
    assert heard.text in ("", "one")


async def test_silence_within_a_stream_ends_it(wire: Wire, server: ModelServer) -> None:
    model = model_for(wire, server, timeout=0.2)
    server.say(Reply(text="one two three", fault=Stall(ONE_WORD[wire])))
    heard = Heard()
    with pytest.raises(StreamBroken, match=r"nothing arrived for 0\.2 s"):
        await hear(model, heard=heard)
    assert heard.text == "one"
    await asyncio.wait_for(server.requests[0].closed.wait(), 5)
    await model.aclose()


async def test_silence_before_the_first_byte_is_the_sdks_timeout(wire: Wire, server: ModelServer) -> None:
    model = model_for(wire, server, timeout=0.2)
    server.say(Reply(text="one", gates={0: asyncio.Event()}))
    with pytest.raises((StreamBroken, anthropic.APITimeoutError, openai.APITimeoutError)) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.TRANSIENT
    await model.aclose()


async def test_an_error_inside_the_stream_goes_out_as_the_sdk_made_it(
    model: AnyModel, server: ModelServer, wire: Wire
) -> None:
    server.say(Reply(text="one two", fault=StreamError(ONE_WORD[wire])))
    heard = Heard()
    with pytest.raises((anthropic.APIStatusError, openai.APIError)) as caught:
        await hear(model, heard=heard)
    assert heard.text == "one"
    assert classify(caught.value) is ErrorKind.TRANSIENT
    if wire == "anthropic":
        assert getattr(caught.value, "status_code", None) == 200


@pytest.mark.parametrize("fault", [Drop, Malformed, Truncate, StreamError])
async def test_a_fault_after_the_model_has_stopped_does_no_harm(
    model: AnyModel, server: ModelServer, wire: Wire, fault: type[Drop | Malformed | Truncate | StreamError]
) -> None:
    last = 6 if wire == "anthropic" else 4  # message_stop; usage
    server.say(Reply(text="one two", fault=fault(last)))
    heard = await hear(model)
    assert heard.answer.content == [{"type": "text", "text": "one two"}]


async def test_a_server_that_holds_the_line_after_the_end_is_not_waited_for(
    model: AnyModel, server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.models._wire.TAIL_TIMEOUT", 0.05)
    server.say(Reply(text="one two", fault=Stall(6 if wire == "anthropic" else 4)))
    async with asyncio.timeout(10):  # the model's own timeout is longer
        heard = await hear(model)
    assert heard.answer.content == [{"type": "text", "text": "one two"}]
    await asyncio.wait_for(server.requests[0].closed.wait(), 5)


# Cancelling.


async def test_closing_the_generator_closes_the_connection(
    model: AnyModel, server: ModelServer, wire: Wire
) -> None:
    server.say(Reply(text="one two", fault=Stall(ONE_WORD[wire])))
    stream = model.stream(asking("hi"))
    assert await anext(stream) == TextDelta("one")
    assert not server.requests[0].closed.is_set()
    await stream.aclose()
    await asyncio.wait_for(server.requests[0].closed.wait(), 5)


async def test_cancelling_while_the_provider_is_silent_closes_the_connection(
    model: AnyModel, server: ModelServer, wire: Wire
) -> None:
    server.say(Reply(text="one two", fault=Stall(ONE_WORD[wire])))
    token = CancelToken("r", "s")
    stream = model.stream(asking("hi"))
    assert await anext(stream) == TextDelta("one")
    asyncio.get_running_loop().call_soon(token.cancel)
    with pytest.raises(AgentCancelledError), token.scope():
        await anext(stream)
    await asyncio.wait_for(server.requests[0].closed.wait(), 5)


async def test_cancelling_before_the_first_byte_closes_the_connection(
    model: AnyModel, server: ModelServer
) -> None:
    held = asyncio.Event()
    server.say(Reply(text="one", gates={0: held}))
    reading = asyncio.create_task(hear(model))
    recorded = await server.arrived()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.wait_for(recorded.closed.wait(), 5)


async def test_after_a_cancelled_stream_the_next_one_works(
    model: AnyModel, server: ModelServer, wire: Wire
) -> None:
    server.say(Reply(text="one two", fault=Stall(ONE_WORD[wire])), Reply(text="all well"))
    stream = model.stream(asking("hi"))
    await anext(stream)
    await stream.aclose()
    assert (await hear(model)).text == "all well"


async def test_one_connection_serves_one_answer_after_another(model: AnyModel, server: ModelServer) -> None:
    """A body that is not read to its end would cost a new TLS handshake for each step of a run."""
    peers: set[object] = set()
    for _ in range(3):
        await hear(model)
    peers.update(recorded.peer for recorded in server.requests)
    assert len(peers) == 1


# Keys and models.


async def test_check_passes_with_the_right_key_and_model(wire: Wire) -> None:
    async with ModelServer(key="right", models=["org/m-1"]) as server:
        model = model_for(wire, server, key="right", model="org/m-1")
        await model.check()
        assert server.requests == []
        await model.aclose()


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize(
    ("key", "name", "kind"), [("wrong", "m-1", ErrorKind.AUTH), ("right", "other", ErrorKind.MODEL)]
)
async def test_check_tells_a_wrong_key_from_a_wrong_model(
    wire: Wire, endpoint: bool, key: str, name: str, kind: ErrorKind
) -> None:
    async with ModelServer(key="right", models=["m-1"], models_endpoint=endpoint) as server:
        model = model_for(wire, server, key=key, model=name)
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as caught:
            await model.check()
        assert classify(caught.value) is kind
        await model.aclose()


async def test_check_asks_for_one_token_where_models_are_not_listed(wire: Wire) -> None:
    async with ModelServer(key="right", models_endpoint=False) as server:
        model = model_for(wire, server, key="right")
        await model.check()
        assert [recorded.body["max_tokens"] for recorded in server.requests] == [1]
        await model.aclose()


async def test_check_of_a_server_that_is_not_there_is_a_connection_error(wire: Wire) -> None:
    async with ModelServer() as server:
        pass
    model = model_for(wire, server)
    with pytest.raises((anthropic.APIConnectionError, openai.APIConnectionError)):
        await model.check()
    await model.aclose()


# Text in pieces.


async def test_a_surrogate_pair_split_over_two_deltas_is_one_character(
    model: AnyModel, server: ModelServer
) -> None:
    server.say(
        Reply(text=["hi \ud83d", "\ude00 there", " \ud83d"], calls=[ToolCall("f", ['{"a": "\\ud83d', '"}'])])
    )
    heard = await hear(model)
    assert heard.text == "hi 😀 there "
    text, call = heard.answer.content
    assert text == {"type": "text", "text": "hi 😀 there �"}
    assert call["type"] == "tool_use"
    assert call["input"] == {"a": "�"}


@given(st.text(), st.data())
def test_text_cut_anywhere_in_utf16_comes_out_whole(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-16-le", "surrogatepass")
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw) // 2))))
    edges = [0, *(2 * cut for cut in cuts), len(raw)]
    pieces = [raw[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(edges)]
    joiner = TextJoiner()
    joined = "".join(joiner.feed(piece) for piece in pieces) + joiner.end()
    joined.encode()
    assert joined == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(st.dictionaries(st.text(max_size=3), st.none() | st.floats() | st.lists(st.text(max_size=3), max_size=2)))
def test_an_input_that_is_taken_can_be_sent_again(value: dict[str, object]) -> None:
    found = json_object(json.dumps(value))
    if found is not None:
        sent = json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        assert json.loads(sent) == found


@pytest.mark.parametrize("raw", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_arguments_made_to_break_a_parser_are_no_json(raw: str) -> None:
    assert tool_input(raw, cut_off=False) == BrokenInput(raw, "invalid_json")
