"""From the Anthropic shape to Chat Completions: whatever is legal there is legal here."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given

from agent.messages import (
    Block,
    ImageBlock,
    Message,
    assistant_message,
    blocks_of,
    injected_text,
    text_block,
    tool_result,
    user_message,
)
from agent.models.openai import to_openai_messages
from tests.agent.strategies import damaged_histories, legal_histories
from tests.servers import openai_rules

PIXEL: ImageBlock = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PIXEL_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def call(call_id: str, **arguments: str) -> Block:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {**arguments}}


def thought(text: str, signature: str = "") -> Block:
    return {"type": "thinking", "thinking": text, "signature": signature}


def made_call(call_id: str, arguments: str = "{}") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


@given(legal_histories())
def test_a_legal_history_is_legal_for_openai_too(history: list[Message]) -> None:
    before = json.dumps(history)
    converted = to_openai_messages("Be brief.", history)
    assert openai_rules.violations(converted) == []
    assert openai_rules.alternation_violations(converted) == []
    assert json.dumps(history) == before


@given(damaged_histories())
def test_pairing_is_right_whatever_happened_to_the_history(history: list[Message]) -> None:
    faults = openai_rules.violations(to_openai_messages("Be brief.", history))
    assert [fault for fault in faults if "tool_call_id" in fault or "role 'tool'" in fault] == []


@given(legal_histories())
def test_all_that_was_said_shown_and_found_is_still_there_and_nothing_signed(history: list[Message]) -> None:
    """Texts, results and images are sent, images in user messages only; thinking, signed here, is not."""
    converted = to_openai_messages("", history)
    sent = json.dumps(converted, ensure_ascii=False)
    images = 0
    for block in (block for message in history for block in blocks_of(message)):
        if block["type"] == "text":
            assert json.dumps(block["text"], ensure_ascii=False)[1:-1] in sent
        elif block["type"] == "tool_result":
            content = block["content"]
            texts = [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
            assert all(json.dumps(text, ensure_ascii=False)[1:-1] in sent for text in texts)
            images += 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)
        images += block["type"] == "image"
    asked: list[Any] = [message["content"] for message in converted if message["role"] == "user"]
    parts = [part for content in asked if isinstance(content, list) for part in content]
    assert sum(part["type"] == "image_url" for part in parts) == images
    assert not any("reasoning" in key for message in converted for key in message)


@given(legal_histories())
def test_each_request_starts_with_the_one_before_it(history: list[Message]) -> None:
    """So that a provider that caches prefixes finds it again."""
    roles = [*(message["role"] for message in history), "assistant"]
    ends = [end for end in range(1, len(roles)) if roles[end - 1 : end + 1] == ["user", "assistant"]]
    requests = [to_openai_messages("Be brief.", history[:end]) for end in ends]
    for shorter, longer in pairwise(requests):
        assert longer[: len(shorter)] == shorter


def test_results_become_tool_messages_behind_their_calls() -> None:
    history = [
        user_message(text_block("a?")),
        assistant_message(text_block("Looking."), call("c1", x="ü"), call("c2")),
        user_message(tool_result("c1", "one"), tool_result("c2", "no", is_error=True), text_block("and now")),
    ]
    assert to_openai_messages("", history) == [
        {"role": "user", "content": "a?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [made_call("c1", '{"x": "ü"}'), made_call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
        {"role": "user", "content": "and now"},
    ]


def test_images_of_results_move_to_a_user_message_behind_them() -> None:
    history = [
        user_message(text_block("draw")),
        assistant_message(call("c1"), call("c2")),
        user_message(tool_result("c1", [text_block("done"), PIXEL]), tool_result("c2", [])),
    ]
    first, second, images = to_openai_messages("", history)[-3:]
    assert first == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "done\n\n(image: see the next user message)",
    }
    assert second == {"role": "tool", "tool_call_id": "c2", "content": "(no output)"}
    assert images["role"] == "user"
    assert PIXEL_PART in images["content"]  # type: ignore[operator]  # a list of parts


def test_images_go_as_data_urls_and_as_urls() -> None:
    linked: Block = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    (message,) = to_openai_messages("", [user_message(text_block("see"), PIXEL, linked)])
    assert message["content"] == [
        {"type": "text", "text": "see"},
        PIXEL_PART,
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_neighbours_of_one_role_become_one_message() -> None:
    history: list[Message] = [
        {"role": "user", "content": "one"},
        user_message(text_block("two")),
        {"role": "assistant", "content": "first"},
        assistant_message(text_block("then"), call("c1")),
        user_message(tool_result("c1", "r")),
        user_message(text_block("three")),
    ]
    assert to_openai_messages("", history) == [
        {"role": "user", "content": "one\n\ntwo"},
        {"role": "assistant", "content": "first\n\nthen", "tool_calls": [made_call("c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "user", "content": "three"},
    ]


def test_reasoning_goes_back_within_the_current_tool_loop_only() -> None:
    def loop(number: int) -> list[Message]:
        return [
            user_message(text_block(f"question {number}")),
            assistant_message(thought(f"thought {number}"), call(f"c{number}")),
            user_message(tool_result(f"c{number}", "r"), injected_text("nudge")),
        ]

    history = [*loop(1), assistant_message(thought("end of 1"), text_block("answer")), *loop(2)]
    sent = to_openai_messages("", history)
    assert [m.get("reasoning_content") for m in sent if m["role"] == "assistant"] == [None, None, "thought 2"]
    sent = to_openai_messages("", history, reasoning_field="reasoning")
    assert [m.get("reasoning") for m in sent if m["role"] == "assistant"] == [None, None, "thought 2"]


def test_an_assistant_message_that_only_thought_is_left_out() -> None:
    history = [user_message(text_block("a")), assistant_message(thought("hm")), user_message(text_block("b"))]
    assert to_openai_messages("", history) == [{"role": "user", "content": "a\n\nb"}]


def test_signed_and_redacted_thinking_never_goes() -> None:
    history = [
        user_message(text_block("a")),
        assistant_message(thought("x", "signed"), {"type": "redacted_thinking", "data": "d"}, call("c1")),
        user_message(tool_result("c1", "r")),
    ]
    assert to_openai_messages("", history)[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [made_call("c1")],
    }


def test_ids_that_are_too_long_for_openai_are_shortened_alike_in_call_and_answer() -> None:
    long_ids = [f"functions_{'x' * 50}_{number}" for number in range(2)]
    history = [
        user_message(text_block("a")),
        assistant_message(*map(call, long_ids)),
        user_message(*(tool_result(each, each) for each in long_ids)),
    ]
    sent = to_openai_messages("", history)
    assert openai_rules.violations(sent) == []
    calls: Any = sent[1]["tool_calls"]
    assert [(m["tool_call_id"], m["content"]) for m in sent[2:]] == [
        (made["id"], each) for made, each in zip(calls, long_ids, strict=True)
    ]
