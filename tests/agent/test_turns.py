"""Turns and what begins one (four-defences §0)."""

from __future__ import annotations

import copy
from typing import cast

import pytest
from hypothesis import given

from agent.messages import Block, Message, injected_text, injected_tool_result, text_block, tool_result
from agent.turns import identify_complete_turns, is_real_user_query
from tests.agent.strategies import damaged_histories, legal_histories

IMAGE = cast("Block", {"type": "image", "source": {"type": "url", "url": "http://x"}})


def user(*blocks: Block) -> Message:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    ("message", "real"),
    [
        ({"role": "user", "content": "hi"}, True),
        (user(text_block("hi")), True),
        (user(IMAGE), True),
        (user(injected_text("[Earlier conversation, 2 turns]"), text_block("hi")), True),
        (user(injected_tool_result("a", "lost"), text_block("hi")), True),
        ({"role": "user", "content": ""}, False),
        ({"role": "user", "content": []}, False),
        (user(text_block("  \n")), False),
        (user(injected_text("sum up")), False),
        (user(injected_tool_result("a", "lost")), False),
        (user(injected_tool_result("a", "lost"), injected_text("nudge")), False),
        (user(tool_result("a", "found")), False),
        (user(tool_result("a", "found"), text_block("steer")), False),
        (user(tool_result("a", "found"), IMAGE), False),
        ({"role": "assistant", "content": "hi"}, False),
    ],
)
def test_a_real_query_is_a_persons_own_text_or_image_without_results(message: Message, real: bool) -> None:
    assert is_real_user_query(message) is real


@given(damaged_histories())
def test_the_turns_joined_are_the_messages(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    joined = [message for turn in identify_complete_turns(messages) for message in turn.messages]
    assert messages == before
    assert len(joined) == len(messages)
    assert all(a is b for a, b in zip(joined, messages, strict=True))


@given(legal_histories())
def test_every_turn_begins_with_its_only_real_query(messages: list[Message]) -> None:
    for turn in identify_complete_turns(messages):
        assert [is_real_user_query(message) for message in turn.messages].count(True) == 1
        assert is_real_user_query(turn.messages[0])


@given(damaged_histories())
def test_only_the_first_turn_may_lack_a_query(messages: list[Message]) -> None:
    turns = identify_complete_turns(messages)
    assert all(is_real_user_query(turn.messages[0]) for turn in turns[1:])
    assert all(turn.messages for turn in turns)
