"""Turns: from one real user query up to, not including, the next (four-defences §0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.messages import Message, blocks_of, is_injected


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages that belong together: a user query, the answers, the tool calls and their results."""

    messages: list[Message]


def is_real_user_query(message: Message) -> bool:
    """Whether a person asked this: a user message with text or an image of their own and no tool_result.

    A placeholder result that the repair put before the text doesn't count: it is no part of what was asked.
    """
    if message["role"] != "user":
        return False
    blocks = blocks_of(message)
    if any(block["type"] == "tool_result" and not is_injected(block) for block in blocks):
        return False
    return any(
        not is_injected(block)
        and (block["type"] == "image" or (block["type"] == "text" and block["text"].strip() != ""))
        for block in blocks
    )


def identify_complete_turns(messages: Sequence[Message]) -> list[Turn]:
    """Splits the messages into turns; joined, the turns give the messages back.

    What stands before the first real user query (left there by a cut or a reset) is a turn of its own, so
    that it is the first thing to go.
    """
    turns: list[Turn] = []
    for message in messages:
        if not turns or is_real_user_query(message):
            turns.append(Turn([]))
        turns[-1].messages.append(message)
    return turns
