"""Histories in the Anthropic shape as Chat Completions messages. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal, TypeAlias

from agent.messages import Block, ImageBlock, Message, Role, ToolResultBlock, blocks_of
from agent.repair import drop_orphaned_tool_results_openai
from agent.turns import is_real_user_query

OpenAIMessage: TypeAlias = dict[str, object]
ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning"]

LONGEST_ID = 40
"""Characters that OpenAI takes in the id of a tool call; other providers make longer ones."""

_OPAQUE = "chat-completions:"
"""Starts the data of a redacted_thinking block that stands for the `extra_content` of the call behind it."""

_GAP = "\n\n"
_ERROR_MARK = "Error: "
_NO_OUTPUT = "(no output)"
_IMAGE_NOTE = "(image: see the next user message)"
_IMAGE_LABEL = "Images from the tool results above:"


def to_openai_messages(
    system: str, messages: Sequence[Message], *, reasoning_field: ReasoningField = "reasoning_content"
) -> list[OpenAIMessage]:
    """The history as Chat Completions takes it; the input is not changed.

    Neighbours of one role become one message, since some providers want the roles to alternate. Tool results
    become `tool` messages right behind the calls, their images a user message behind those. A provider's
    unsigned reasoning goes back to it, as `reasoning_field`, and its calls' `extra_content` with them, within the
    current tool loop only; signed thinking is another provider's and never goes.
    """
    converted: list[OpenAIMessage] = [{"role": "system", "content": system}] if system else []
    for role, blocks in _joined(messages):
        converted += _from_user(blocks) if role == "user" else [_from_assistant(blocks, reasoning_field)]
    return drop_orphaned_tool_results_openai(converted)


def _joined(messages: Sequence[Message]) -> list[tuple[Role, list[Block]]]:
    loop_start = max((i for i, message in enumerate(messages) if is_real_user_query(message)), default=-1)
    joined: list[tuple[Role, list[Block]]] = []
    for index, message in enumerate(messages):
        blocks = [block for block in blocks_of(message) if _is_sent(block, in_loop=index > loop_start)]
        if all(block["type"] in ("thinking", "redacted_thinking") for block in blocks):
            continue  # an assistant message needs text or calls
        if joined and joined[-1][0] == message["role"]:
            joined[-1][1].extend(blocks)
        else:
            joined.append((message["role"], blocks))
    return joined


def _is_sent(block: Block, *, in_loop: bool) -> bool:
    match block["type"]:
        case "text":
            return bool(block["text"].strip())
        case "thinking":
            return in_loop and not block["signature"] and bool(block["thinking"])
        case "redacted_thinking":
            return in_loop and block["data"].startswith(_OPAQUE)
    return True


def _from_user(blocks: Sequence[Block]) -> list[OpenAIMessage]:
    results = [block for block in blocks if block["type"] == "tool_result"]
    converted: list[OpenAIMessage] = [
        {"role": "tool", "tool_call_id": wire_id(result["tool_use_id"]), "content": _result_text(result)}
        for result in results
    ]
    images = [image for result in results for image in _result_images(result)]
    parts = [_text_part(_IMAGE_LABEL), *map(_image_part, images)] if images else []
    for block in blocks:
        if block["type"] == "text":
            parts.append(_text_part(block["text"]))
        elif block["type"] == "image":
            parts.append(_image_part(block))
    if parts:
        converted.append({"role": "user", "content": _flat(parts)})
    return converted


def _flat(parts: list[dict[str, object]]) -> object:
    """Text alone goes as a plain string: many compatible servers take nothing else."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return _GAP.join(str(part["text"]) for part in parts)


def _text_part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _image_part(image: ImageBlock) -> dict[str, object]:
    source = image["source"]
    url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}


def _result_text(result: ToolResultBlock) -> str:
    content = result["content"]
    if isinstance(content, str):
        text = content
    else:
        text = _GAP.join(part["text"] if part["type"] == "text" else _IMAGE_NOTE for part in content)
    text = text or _NO_OUTPUT
    return f"{_ERROR_MARK}{text}" if result.get("is_error") else text


def _result_images(result: ToolResultBlock) -> list[ImageBlock]:
    content = result["content"]
    return [] if isinstance(content, str) else [part for part in content if part["type"] == "image"]


def _from_assistant(blocks: Sequence[Block], reasoning_field: ReasoningField) -> OpenAIMessage:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[OpenAIMessage] = []
    extra: dict[str, object] = {}
    for block in blocks:
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "thinking":
            reasoning.append(block["thinking"])
        elif block["type"] == "redacted_thinking":
            extra = {"extra_content": json.loads(block["data"].removeprefix(_OPAQUE))}
        elif block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
            calls.append({"id": wire_id(block["id"]), "type": "function", "function": function, **extra})
            extra = {}
    message: OpenAIMessage = {"role": "assistant", "content": _GAP.join(texts) or None}
    if reasoning:
        message[reasoning_field] = _GAP.join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def opaque_block(extra_content: object) -> Block:
    """What a provider adds to a tool call and wants back with it, as a block to stand before the call.

    Gemini puts its thought signature there and refuses a call in the current tool loop that comes without.
    """
    return {"type": "redacted_thinking", "data": _OPAQUE + json.dumps(extra_content)}


def wire_id(call_id: str) -> str:
    """The id as OpenAI takes it: one that is too long is replaced by its hash, in call and answer alike."""
    if len(call_id) <= LONGEST_ID:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[: LONGEST_ID - 5]}"
