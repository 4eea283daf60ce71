"""The model server itself: it is as strict as it says, and runs as a program."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given

from agent.messages import Message, blocks_of
from tests.agent.models.driving import WIRES, asking, hear, model_for
from tests.agent.strategies import legal_histories
from tests.servers import anthropic_rules, openai_rules
from tests.servers.model_replies import Wire
from tests.servers.model_server import ModelServer

USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
TEXT = {"type": "text", "text": "x"}


def user(*blocks: object) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: object) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


@given(legal_histories())
def test_legal_histories_have_no_violations(history: list[Message]) -> None:
    assert not history or anthropic_rules.violations(history) == []


@given(legal_histories())
def test_a_history_without_one_of_its_results_is_refused(history: list[Message]) -> None:
    for message in history:
        for block in blocks_of(message):
            if block["type"] == "tool_result":
                rest = [b for b in blocks_of(message) if b is not block]
                cut = [{**m, "content": rest} if m is message else m for m in history]
                assert any(
                    "without `tool_result`" in v or "non-empty" in v for v in anthropic_rules.violations(cut)
                )


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ([assistant(TEXT)], "first message must use"),
        ([USER, assistant(CALL)], "without `tool_result` blocks immediately after: t1"),
        ([USER, assistant(CALL), user(TEXT), user(RESULT)], "without `tool_result` blocks immediately after"),
        ([USER, assistant(CALL), user(TEXT, RESULT)], "without `tool_result` blocks immediately after"),
        ([USER, assistant(CALL), assistant(TEXT), user(RESULT)], "without `tool_result` blocks immediately after"),
        ([USER, assistant(CALL), user(RESULT, TEXT), user(RESULT)], "unexpected `tool_use_id`"),
        ([USER, assistant(CALL), user(RESULT, RESULT)], "multiple `tool_result` blocks"),
        ([USER, assistant(TEXT), user(RESULT)], "unexpected `tool_use_id`"),
        ([USER, assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)], "ids must be unique"),
        ([USER, assistant({**CALL, "id": "a:0"}), user({**RESULT, "tool_use_id": "a:0"})], "should match pattern"),
        ([USER, assistant({**CALL, "input": "{}"}), user(RESULT)], "valid dictionary"),
        ([USER, user()], "non-empty content"),
        ([{"role": "user", "content": ""}], "non-empty content"),
        ([user({"type": "text", "text": ""})], "must be non-empty"),
        ([user({"type": "text", "text": " "})], "non-whitespace"),
        ([user(CALL)], "does not match any of the expected tags"),
        ([USER, assistant({"type": "thinking", "thinking": "x"}, TEXT)], "signature: Field required"),
        ([USER, assistant({"type": "thinking", "thinking": "x", "signature": ""})], "cannot be `thinking`"),
        ([user({"type": "image", "source": {"type": "base64"}})], "image.source"),
        ([{"role": "system", "content": "x"}], "role: Input should be"),
        ([USER, assistant(CALL), user({**RESULT, "is_error": True, "content": ""})], "cannot be empty"),
    ],
)
def test_what_anthropic_refuses(messages: list[Any], words: str) -> None:
    assert words in " ".join(anthropic_rules.violations(messages))


def test_results_are_wanted_next_in_either_reading() -> None:
    """Split over two user messages: right when they are joined, wrong to the letter."""
    split = [USER, assistant(CALL, {**CALL, "id": "t2"}), user(RESULT), user({**RESULT, "tool_use_id": "t2"})]
    assert anthropic_rules.violations(split)
    joined_only = [USER, assistant(CALL), user(RESULT), assistant(TEXT), assistant(TEXT), user(TEXT), user(TEXT)]
    assert anthropic_rules.violations(joined_only) == []


def test_more_than_four_breakpoints_are_refused() -> None:
    marked = {**TEXT, "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "max_tokens": 1, "system": [marked], "messages": [user(*[marked] * 4)]}
    assert "maximum of 4 blocks" in " ".join(anthropic_rules.request_violations(body))


def call(call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calling(*calls: object) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


TOOL = {"role": "tool", "tool_call_id": "c1", "content": "r"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty array"),
        ([USER, TOOL], "must be a response to a preceeding message"),
        ([USER, calling(call())], "did not have response messages: c1"),
        ([USER, calling(call()), USER, TOOL], "did not have response messages: c1"),
        ([USER, calling(call()), TOOL, TOOL], "must be a response to a preceeding message"),
        ([USER, calling()], "empty array"),
        ([USER, calling(call(), call()), TOOL], "duplicate ids"),
        ([USER, calling(call(arguments="[]")), TOOL], "not a JSON object"),
        ([USER, calling(call("x" * 41)), TOOL], "string too long"),
        ([USER, {"role": "assistant", "content": None}], "got null"),
        ([{"role": "user", "content": None}], "got null"),
        ([{"role": "user", "content": ""}], "empty content"),
        ([{"role": "user", "content": "x", "cache_control": {}}], "Additional properties"),
        (
            [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
            "image_url",
        ),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "aGk="}}]}], "valid URL"),
    ],
)
def test_what_openai_refuses(messages: list[Any], words: str) -> None:
    assert words in " ".join(openai_rules.violations(messages))


def test_what_a_template_with_alternating_roles_refuses() -> None:
    assert openai_rules.alternation_violations([USER, USER])
    assert openai_rules.alternation_violations([USER, {"role": "system", "content": "x"}])
    assert not openai_rules.alternation_violations([USER, calling(call(), call("c2")), TOOL, TOOL, USER])


@pytest.mark.parametrize("wire", WIRES)
async def test_as_a_program_it_says_back_what_it_is_told_and_calls_tools(wire: Wire) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.servers.model_server", "--chunks", "7", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        assert url.startswith("http://127.0.0.1:")
        model = model_for(wire, ModelServer(port=int(url.rpartition(":")[2])))
        heard = await hear(model, asking("good day"))
        assert heard.text.split() == ["good", "day"] * 3 + ["good"]
        called = (await hear(model, asking('use the tool weather {"city": "Rome"}', tools=True))).answer
        assert [b["input"] for b in called.content if b["type"] == "tool_use"] == [{"city": "Rome"}]
        await model.aclose()
    finally:
        process.terminate()
        await process.wait()
