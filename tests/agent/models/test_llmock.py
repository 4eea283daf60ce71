"""The adapters against a provider that was written by others, with its faults and its verdict on our client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from llmock.pytest_plugin import LLMock

from agent.errors import ErrorKind, StreamBroken, classify, retry_after
from agent.messages import assistant_message, text_block, tool_result, user_message
from agent.models.anthropic import AnthropicModel
from agent.models.openai import OpenAIModel
from agent.ports import ModelRequest
from tests.agent.models.driving import WEATHER, Heard, asking, hear
from tests.servers.model_replies import Wire


@pytest.fixture
async def model(wire: Wire, llmock: LLMock) -> AsyncIterator[AnthropicModel | OpenAIModel]:
    kind: type[AnthropicModel | OpenAIModel] = AnthropicModel if wire == "anthropic" else OpenAIModel
    made = kind(name="p", model="m-1", api_key="k", base_url=llmock.base_url(wire), timeout=2)
    yield made
    await made.aclose()


async def test_an_answer(model: AnthropicModel | OpenAIModel, llmock: LLMock) -> None:
    llmock.reply("All is well here.")
    heard = await hear(model)
    assert heard.text == "All is well here."
    assert heard.answer.content == [text_block("All is well here.")]
    assert heard.answer.stop_reason == "end_turn"
    assert heard.answer.usage.input_tokens > 0
    llmock.assert_resilient(strict=True)


async def test_a_tool_loop(model: AnthropicModel | OpenAIModel, llmock: LLMock) -> None:
    llmock.call_tool("weather", {"city": "Paris"})
    question = user_message(text_block("weather?"))
    called = (await hear(model, ModelRequest("", [question], [WEATHER]))).answer
    (call,) = (block for block in called.content if block["type"] == "tool_use")
    assert (call["name"], call["input"], called.stop_reason) == ("weather", {"city": "Paris"}, "tool_use")
    results = user_message(tool_result(call["id"], "sunny"))
    history = [question, assistant_message(*called.content), results]
    assert (await hear(model, ModelRequest("", history, [WEATHER]))).answer.stop_reason == "end_turn"
    llmock.assert_resilient(strict=True)


async def test_arguments_that_are_not_json_are_reported(
    model: AnthropicModel | OpenAIModel, llmock: LLMock
) -> None:
    llmock.call_tool("weather", {"city": "Paris"}).break_tool_call("malformed_arguments")
    answer = (await hear(model, asking("weather?", tools=True))).answer
    (broken,) = answer.broken_inputs.values()
    assert broken.why == "invalid_json"


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("fault", ["truncate", "corrupt", "disconnect"])
async def test_a_damaged_stream_is_never_taken_for_an_answer(
    model: AnthropicModel | OpenAIModel, llmock: LLMock, fault: str, after: int
) -> None:
    llmock.reply("one two three four five six seven eight nine ten")
    {"truncate": llmock.truncate, "corrupt": llmock.corrupt, "disconnect": llmock.disconnect}[fault](
        after_chunks=after
    )
    heard = Heard()
    with pytest.raises((StreamBroken, openai.APIConnectionError)) as caught:
        await hear(model, heard=heard)
    assert classify(caught.value) is ErrorKind.TRANSIENT
    assert heard.answers == []
    # Sending again is the executor's; here the client is asked once more, as it would be.
    assert (await hear(model)).answers
    llmock.assert_resilient()


async def test_a_stalled_stream_is_given_up(wire: Wire, llmock: LLMock) -> None:
    kind: type[AnthropicModel | OpenAIModel] = AnthropicModel if wire == "anthropic" else OpenAIModel
    model = kind(name="p", model="m-1", api_key="k", base_url=llmock.base_url(wire), timeout=0.3)
    llmock.stall(after_chunks=2, seconds=4)
    with pytest.raises(StreamBroken, match="nothing arrived"):
        await hear(model)
    await model.aclose()
    assert "no_read_timeout" not in str(llmock.verdict())


async def test_a_rate_limit_is_not_retried_and_its_wait_is_known(
    model: AnthropicModel | OpenAIModel, llmock: LLMock
) -> None:
    llmock.rate_limit(retry_after=7)
    with pytest.raises((anthropic.RateLimitError, openai.RateLimitError)) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.RATE_LIMIT
    assert retry_after(caught.value) == 7
    assert len(llmock.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ErrorKind.AUTH), (500, ErrorKind.TRANSIENT), (529, ErrorKind.TRANSIENT)]
)
async def test_errors_are_told_apart(
    model: AnthropicModel | OpenAIModel, llmock: LLMock, status: int, kind: ErrorKind
) -> None:
    llmock.fail(status)
    with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as caught:
        await hear(model)
    assert classify(caught.value) is kind


async def test_an_overflow_is_seen(model: AnthropicModel | OpenAIModel, llmock: LLMock, wire: Wire) -> None:
    llmock.fail(
        400,
        message="prompt is too long: 210000 tokens > 200000 maximum" if wire == "anthropic" else None,
        code="context_length_exceeded" if wire == "openai" else None,
    )
    with pytest.raises((anthropic.BadRequestError, openai.BadRequestError)) as caught:
        await hear(model)
    assert classify(caught.value) is ErrorKind.OVERFLOW


async def test_check(model: AnthropicModel | OpenAIModel, llmock: LLMock) -> None:
    await model.check()
    llmock.outage(status=401)
    with pytest.raises((anthropic.AuthenticationError, openai.AuthenticationError)):
        await model.check()
