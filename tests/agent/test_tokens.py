"""What text and messages weigh (four-defences §2, Estimate)."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import Block, Message, text_block
from agent.ports import ToolSpec
from agent.tokens import (
    estimate_message_tokens,
    estimate_text_tokens,
    estimate_tokens,
    estimate_tools_tokens,
)
from tests.agent.strategies import legal_histories, nonsense_histories

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


def message(*blocks: dict[str, Any]) -> Message:
    return {"role": "user", "content": cast("list[Block]", list(blocks))}


@given(st.text(st.characters(), max_size=60))
def test_every_text_weighs_what_its_characters_weigh_one_by_one(text: str) -> None:
    assert estimate_text_tokens(text) == int(sum(1.5 if ord(char) > 0x7F else 0.25 for char in text)) + 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 1),
        ("abc", 1),
        ("abcd", 2),
        ("\x7f" * 4, 2),
        ("\x80", 2),
        ("中文", 4),
        ("中a", 2),
        ("😀", 2),
        ("\ud800", 2),
    ],
)
def test_texts_at_the_borders(text: str, tokens: int) -> None:
    assert estimate_text_tokens(text) == tokens


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        ([], 0),
        ([text_block("abcd"), text_block("中")], 4),
        ([IMAGE], 1200),
        ([{"type": "tool_use", "id": "a", "name": "f", "input": {}}], 51),
        ([{"type": "tool_use", "id": "a", "name": "f", "input": {"q": "中文"}}], 50 + 6),
        ([{"type": "tool_use", "id": "a", "name": "f", "input": {"q": "😀"}}], 50 + 4),
        ([{"type": "tool_result", "tool_use_id": "a", "content": "abcd"}], 32),
        ([{"type": "tool_result", "tool_use_id": "a", "content": [text_block("abcd"), IMAGE]}], 30 + 2 + 1200),
        ([{"type": "tool_result", "tool_use_id": "a", "content": []}], 30),
        ([{"type": "tool_result", "tool_use_id": "a"}], 30),
        ([{"type": "thinking", "thinking": "abcd", "signature": "s" * 400}], 2),
        ([{"type": "redacted_thinking", "data": "abcdefgh"}], 3),
    ],
)
def test_blocks_weigh_as_in_the_table(blocks: list[dict[str, Any]], tokens: int) -> None:
    assert estimate_message_tokens(message(*blocks)) == tokens


def test_a_plain_string_weighs_as_one_text_block() -> None:
    assert estimate_message_tokens({"role": "user", "content": "héllo"}) == estimate_text_tokens("héllo")


@given(legal_histories())
def test_a_history_weighs_what_its_messages_weigh(messages: list[Message]) -> None:
    assert estimate_tokens(messages) == sum(estimate_message_tokens(message) for message in messages)


@given(nonsense_histories)
def test_no_block_is_too_odd_to_be_weighed(messages: list[Message]) -> None:
    for odd in cast("list[object]", messages):
        if isinstance(odd, dict) and "content" in odd:
            assert estimate_message_tokens(cast("Message", odd)) >= 0


def test_tools_weigh_as_their_declarations() -> None:
    spec = ToolSpec("search", "Finds pages 查找", {"type": "object", "properties": {"q": {"type": "string"}}})
    sent = {"name": spec.name, "description": spec.description, "input_schema": spec.input_schema}
    one = estimate_text_tokens(json.dumps(sent, ensure_ascii=False))
    assert estimate_tools_tokens([spec]) == one
    assert estimate_tools_tokens([spec, spec]) == 2 * one
    assert estimate_tools_tokens([]) == 0
