"""What the Messages API refuses, written from its published rules and its error texts; no code of ours in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

Raw = dict[str, Any]

MAX_CACHE_MARKS = 4
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_KINDS = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}
_STRINGS = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def request_violations(body: Raw) -> list[str]:
    """Everything that is wrong with a request to /v1/messages, in the API's own words; empty: legal."""
    found = [f"{name}: Field required" for name in ("model", "max_tokens", "messages") if name not in body]
    if found:
        return found
    tools = body.get("tools", [])
    found += [f"tools.{i}.name: String should match pattern" for i, tool in enumerate(tools) if not _names(tool)]
    blocks = [block for message in body["messages"] for block in _blocks(message)]
    if not tools and any(isinstance(b, dict) and b.get("type") in ("tool_use", "tool_result") for b in blocks):
        found.append("Requests which include `tool_use` or `tool_result` blocks must define tools")
    if (marks := sum(_marks(body))) > MAX_CACHE_MARKS:
        found.append(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    return found + violations(body["messages"])


def violations(messages: Sequence[Any]) -> list[str]:
    """Everything that is wrong with a history, read to the letter and with neighbours of one role joined."""
    if not messages:
        return ["messages: at least one message is required"]
    found = [fault for index, message in enumerate(messages) for fault in _message_faults(index, message)]
    if found:
        return found
    if messages[0]["role"] != "user":
        found.append('messages: first message must use the "user" role')
    found += _id_faults(messages)
    found += _pairing_faults([(message["role"], _blocks(message)) for message in messages])
    return found or _pairing_faults(_joined(messages))


def _names(tool: Any) -> bool:
    return isinstance(tool, dict) and bool(_TOOL_NAME.fullmatch(str(tool.get("name", ""))))


def _marks(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        yield int("cache_control" in value)
        for key in value.keys() & {"system", "tools", "messages", "content"}:
            yield from _marks(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from _marks(item)


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def _message_faults(index: int, message: Any) -> Iterator[str]:
    where = f"messages.{index}"
    if not isinstance(message, dict) or message.get("role") not in _KINDS:
        yield f"{where}.role: Input should be 'user' or 'assistant'"
        return
    if unknown := message.keys() - {"role", "content"}:
        yield f"{where}.{min(unknown)}: Extra inputs are not permitted"
    blocks = _blocks(message)
    if not blocks:
        yield f"{where}: all messages must have non-empty content except for the optional final assistant message"
        return
    for number, block in enumerate(blocks):
        yield from _block_faults(f"{where}.content.{number}", block, _KINDS[message["role"]])
    if isinstance(blocks[-1], dict) and blocks[-1].get("type") in _STRINGS:
        yield f"{where}: The final block in an assistant message cannot be `thinking`."


def _block_faults(where: str, block: Any, kinds: Sequence[str]) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in kinds:
        yield f"{where}: Input tag {kind!r} does not match any of the expected tags: {', '.join(kinds)}"
        return
    if "cache_control" in block and (kind in _STRINGS or (kind == "text" and not str(block.get("text")).strip())):
        yield f"{where}.cache_control: cannot be set for {kind} blocks of this kind"
    match kind:
        case "text":
            yield from _text_faults(where, block)
        case "image":
            yield from _image_faults(where, block)
        case "tool_use":
            yield from _tool_use_faults(where, block)
        case "tool_result":
            yield from _result_faults(where, block)
        case _:
            yield from (
                f"{where}.{kind}.{name}: Field required"
                for name in _STRINGS[str(kind)]
                if not isinstance(block.get(name), str)
            )


def _text_faults(where: str, block: Raw) -> Iterator[str]:
    if not isinstance(block.get("text"), str):
        yield f"{where}.text.text: Field required"
    elif not block["text"]:
        yield "messages: text content blocks must be non-empty"
    elif not block["text"].strip():
        yield "messages: text content blocks must contain non-whitespace text"


def _image_faults(where: str, block: Raw) -> Iterator[str]:
    source = block.get("source")
    wanted = {"base64": ("media_type", "data"), "url": ("url",)}
    fields = wanted.get(source.get("type", "")) if isinstance(source, dict) else None
    if not isinstance(source, dict) or fields is None or not all(isinstance(source.get(f), str) for f in fields):
        yield f"{where}.image.source: Field required"


def _tool_use_faults(where: str, block: Raw) -> Iterator[str]:
    if not isinstance(block.get("id"), str) or not _ID.fullmatch(block["id"]):
        yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if not _names(block):
        yield f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
    if not isinstance(block.get("input"), dict):
        yield f"{where}.tool_use.input: Input should be a valid dictionary"


def _result_faults(where: str, block: Raw) -> Iterator[str]:
    if not isinstance(block.get("tool_use_id"), str) or not _ID.fullmatch(block["tool_use_id"]):
        yield f"{where}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    content = block.get("content", "")
    if not isinstance(content, str | list):
        yield f"{where}.tool_result.content: Input should be a valid list"
        return
    is_error = block.get("is_error", False)
    if not isinstance(is_error, bool):
        yield f"{where}.tool_result.is_error: Input should be a valid boolean"
    for number, part in enumerate(content if isinstance(content, list) else []):
        kinds = ("text",) if is_error else ("text", "image")
        yield from _block_faults(f"{where}.tool_result.content.{number}", part, kinds)
    if is_error and not content:
        yield f"{where}.tool_result: content cannot be empty if `is_error` is true"


def _id_faults(messages: Sequence[Any]) -> Iterator[str]:
    used: set[str] = set()
    for index, message in enumerate(messages):
        for number, block in enumerate(_blocks(message)):
            if block["type"] == "tool_use" and block["id"] in used:
                yield f"messages.{index}.content.{number}: `tool_use` ids must be unique"
            elif block["type"] == "tool_use":
                used.add(block["id"])


def _joined(messages: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    joined: list[tuple[str, list[Any]]] = []
    for message in messages:
        if joined and joined[-1][0] == message["role"]:
            joined[-1] = (message["role"], joined[-1][1] + _blocks(message))
        else:
            joined.append((message["role"], _blocks(message)))
    return joined


def _pairing_faults(messages: Sequence[tuple[str, list[Any]]]) -> list[str]:
    found: list[str] = []
    asked: list[str] = []
    for index, (_, blocks) in enumerate([*messages, ("end", [])]):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block.get("tool_use_id") for block in blocks[: len(results)]]
        unanswered = [call for call in asked if call not in leading]
        if unanswered:
            found.append(
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(unanswered)}. Each `tool_use` block must have a corresponding `tool_result` block in "
                "the next message."
            )
        elif leading != results:
            found.append(f"messages.{index}: `tool_result` blocks must come first in the content")
        found += _result_pairing_faults(index, blocks, asked)
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return found


def _result_pairing_faults(index: int, blocks: list[Any], asked: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for number, block in enumerate(blocks):
        if block["type"] != "tool_result":
            continue
        call = block["tool_use_id"]
        if call not in asked:
            yield (
                f"messages.{index}.content.{number}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{call}. Each `tool_result` block must have a corresponding `tool_use` block in the previous "
                "message."
            )
        elif call in seen:
            yield (
                f"messages.{index}.content.{number}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {call}"
            )
        seen.add(call)
