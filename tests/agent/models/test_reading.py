"""From the bytes of a stream to deltas: joined by the read, paused where many talk, broken in known ways only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cancel import AgentCancelledError, CancelToken
from agent.errors import StreamBroken
from agent.events import TextDelta
from agent.models._openai_answer import OpenAIAnswer
from agent.models._wire import Crowd, Delta, read_stream
from agent.models.anthropic import AnthropicAnswer, AnthropicModel
from agent.models.openai import OpenAIModel
from tests.agent.models.driving import asking
from tests.servers.model_replies import Raw, Reply, Wire, anthropic_events, openai_chunk
from tests.servers.model_server import ModelServer

ONE_WORD = {"anthropic": 3, "openai": 2}
FAULTS = (anthropic.APIError, openai.APIError)
KEYS = (
    "type index delta content_block message usage text thinking stop_reason choices content finish_reason tool_calls "
    "function arguments name id error object input signature refusal reasoning extra_content input_tokens"
)
KINDS = (
    "text_delta thinking_delta input_json_delta signature_delta message_start message_delta content_block_delta "
    "content_block_start tool_use text thinking redacted_thinking error stop"
)
keys, kinds = st.sampled_from(KEYS.split()), st.sampled_from(KINDS.split())
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | kinds | st.floats(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)


def sse(*events: Raw | str) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


async def reads(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def deltas_of(answer: AnthropicAnswer | OpenAIAnswer, *chunks: bytes, into: list[Delta]) -> None:
    async for delta in read_stream(reads(*chunks), answer, timeout=1, faults=FAULTS):
        into.append(delta)  # noqa: PERF401  # what came before a fault is looked at


async def test_deltas_of_one_read_are_one() -> None:
    found: list[Delta] = []
    words = (openai_chunk({"content": word}) for word in ("a", "b", "c"))
    await deltas_of(OpenAIAnswer(), sse(*words), sse(openai_chunk({"content": "d"}, "stop")), into=found)
    assert found == [TextDelta("abc"), TextDelta("d")]


@pytest.mark.parametrize(
    "fault", [b"data: {oops\n\n", b"data: [3]\n\n", b'data: {"error": {"message": "no"}}\n\n']
)
async def test_text_that_came_in_one_read_with_a_fault_is_shown_before_it(fault: bytes) -> None:
    found: list[Delta] = []
    with pytest.raises((StreamBroken, openai.APIError)):
        await deltas_of(OpenAIAnswer(), sse(openai_chunk({"content": "a"})) + fault, into=found)
    assert found == [TextDelta("a")]


async def test_a_fault_in_one_read_with_the_end_does_no_harm() -> None:
    found: list[Delta] = []
    last = sse(*anthropic_events(Reply(text="all")))
    await deltas_of(AnthropicAnswer(), last + b"event: error\ndata: {}\n\n", b"\xff\n", into=found)
    assert found == [TextDelta("all")]


async def test_an_error_event_that_is_no_json_is_an_error_with_its_text() -> None:
    with pytest.raises(anthropic.APIStatusError, match="overloaded") as caught:
        await deltas_of(AnthropicAnswer(), b"event: error\ndata: overloaded\n\n", into=[])
    assert caught.value.status_code == 200


@pytest.mark.parametrize("answer", [AnthropicAnswer, OpenAIAnswer])
@given(st.lists(values, max_size=6))
async def test_whatever_json_comes_it_is_an_answer_or_a_known_fault(
    answer: type[AnthropicAnswer | OpenAIAnswer], events: list[object]
) -> None:
    made = answer()
    body = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    found: list[Delta] = []
    try:
        await deltas_of(made, body, into=found)
    except (StreamBroken, *FAULTS):
        return
    "".join(delta.text for delta in found)
    json.dumps(made.result().content)


# Many streams at once.


def test_few_streams_never_pause_and_many_pause_longer() -> None:
    crowd = Crowd()
    pauses = []
    for crowd.open in range(3000):
        pauses.append(crowd.pause())
    assert set(pauses[: Crowd.FROM + 1]) == {0.0}
    assert pauses == sorted(pauses)
    assert pauses[Crowd.FULL] == pauses[-1] == Crowd.LONGEST


async def test_a_stream_counts_while_it_is_open() -> None:
    crowd = Crowd()
    body = reads(sse(openai_chunk({"content": "a"})), sse(openai_chunk({"content": "b"}, "stop")))
    stream = read_stream(body, OpenAIAnswer(), timeout=1, faults=FAULTS, crowd=crowd)
    assert await anext(stream) == TextDelta("a")
    assert crowd.open == 1
    await stream.aclose()
    assert crowd.open == 0


async def test_what_comes_before_the_first_text_does_not_delay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowd, "pause", lambda self: 3600.0)
    body = reads(b": life\n\n", sse(openai_chunk({"role": "assistant"})), sse(openai_chunk({"content": "a"})))
    stream = read_stream(body, OpenAIAnswer(), timeout=1, faults=FAULTS)
    async with asyncio.timeout(10):
        assert await anext(stream) == TextDelta("a")
    await stream.aclose()


async def test_the_first_text_is_not_delayed_and_a_cancel_ends_the_pause(
    model: AnthropicModel | OpenAIModel, server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = CancelToken("r", "s")

    def pause(_: Crowd) -> float:
        asyncio.get_running_loop().call_soon(token.cancel)
        return 3600.0

    monkeypatch.setattr(Crowd, "pause", pause)
    server.say(Reply(text=["one", " two"], gates={ONE_WORD[wire]: asyncio.Event()}))
    stream = model.stream(asking("hi"))
    async with asyncio.timeout(20):
        assert await anext(stream) == TextDelta("one")
        with pytest.raises(AgentCancelledError), token.scope():
            await anext(stream)
        await server.requests[0].closed.wait()


async def test_what_came_during_a_pause_comes_in_one_delta(
    model: AnthropicModel | OpenAIModel, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crowd, "pause", lambda self: 0.3)
    server.say(Reply(text=[f" {n}" for n in range(50)], interval=0.001))
    found = [event async for event in model.stream(asking("hi"))]
    assert "".join(e.text for e in found if isinstance(e, TextDelta)) == "".join(f" {n}" for n in range(50))
    assert len(found) < 25
