"""What text, messages and tools weigh, estimated without a tokenizer (four-defences §2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from agent.messages import Message

if TYPE_CHECKING:
    from agent.ports import ToolSpec

IMAGE_TOKENS = 1200
TOOL_USE_TOKENS = 50
TOOL_RESULT_TOKENS = 30


def estimate_text_tokens(text: str) -> int:
    """Tokens of a text: 1.5 for each character above U+007F, 0.25 for each other, cut to int, plus 1."""
    length = len(text)
    # Counted by the codec, in C; 6 and 1 are the weights in quarters, so that no float rounds.
    narrow = length if text.isascii() else len(text.encode("ascii", "ignore"))
    return (narrow + 6 * (length - narrow)) // 4 + 1


def estimate_message_tokens(message: Message) -> int:
    """Tokens of a message, block by block; a block of an unknown kind weighs as its JSON."""
    return _content_tokens(message["content"])


def estimate_tokens(messages: Iterable[Message]) -> int:
    return sum(map(estimate_message_tokens, messages))


def estimate_tools_tokens(specs: Iterable[ToolSpec]) -> int:
    """Tokens of tool declarations: each weighs as the JSON in which it is sent."""
    return sum(
        _json_tokens({"name": spec.name, "description": spec.description, "input_schema": spec.input_schema})
        for spec in specs
    )


def _content_tokens(content: object) -> int:
    if isinstance(content, str):
        return estimate_text_tokens(content)
    return sum(map(_block_tokens, content)) if isinstance(content, list) else 0


def _block_tokens(block: object) -> int:
    # Trimming weighs a list before it is repaired, so nothing about a block is taken for granted here.
    if not isinstance(block, Mapping):
        return _json_tokens(block)
    match block.get("type"):
        case "text":
            return _text_tokens(block.get("text"))
        case "image":
            return IMAGE_TOKENS
        case "tool_use":
            return TOOL_USE_TOKENS + _json_tokens(block.get("input"))
        case "tool_result":
            return TOOL_RESULT_TOKENS + _content_tokens(block.get("content"))
        case "thinking":
            return _text_tokens(block.get("thinking"))
        case "redacted_thinking":
            return _text_tokens(block.get("data"))
        case _:
            return _json_tokens(block)


def _text_tokens(text: object) -> int:
    return estimate_text_tokens(text) if isinstance(text, str) else 0


def _json_tokens(value: object) -> int:
    return estimate_text_tokens(json.dumps(value, ensure_ascii=False, default=str))
