"""What the providers accept, written down once more, independently of agent.repair."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

Raw = dict[str, Any]
_ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}\Z")
_ALLOWED = {
    "user": {"text", "image", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}


def anthropic_violations(messages: Sequence[Any]) -> list[str]:
    """Every rule that is broken, in either reading: message by message, and with neighbours of one role joined."""
    shape = _shape(messages)
    if shape:
        return shape
    joined: list[Raw] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] = joined[-1]["content"] + _blocks(message)
        else:
            joined.append({"role": message["role"], "content": list(_blocks(message))})
    return [*_pairing(messages, "to the letter"), *_pairing(joined, "joined")]


def openai_violations(messages: Sequence[Any]) -> list[str]:
    found: list[str] = []
    open_ids: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") in open_ids:
                open_ids.remove(message["tool_call_id"])
            else:
                found.append(f"{index}: answers no open call")
            continue
        if open_ids:
            found.append(f"{index}: calls before it are open: {sorted(open_ids)}")
        open_ids = set()
        if message["role"] == "assistant" and "tool_calls" in message:
            ids = [call["id"] for call in message["tool_calls"]]
            if not ids or len(set(ids)) != len(ids):
                found.append(f"{index}: no calls, or an id twice")
            open_ids = set(ids)
        if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
            found.append(f"{index}: says nothing")
    if open_ids:
        found.append("calls are open at the end")
    return found


def _blocks(message: Raw) -> list[Raw]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _shape(messages: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            found.append(f"{index}: no message")
            continue
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            found.append(f"{index}: empty content")
            continue
        found += [
            f"{index}: {fault}" for block in _blocks(message) for fault in _block_faults(block, message["role"])
        ]
        last = content[-1]
        if isinstance(last, dict) and last.get("type") in ("thinking", "redacted_thinking"):
            found.append(f"{index}: ends in thinking")
    if messages and isinstance(messages[0], dict) and messages[0].get("role") != "user":
        found.append("starts with the assistant")
    return found


def _block_faults(block: Any, role: str) -> list[str]:
    if not isinstance(block, dict) or block.get("type") not in [*_ALLOWED[role]]:
        return [f"not allowed for {role}: {block!r}"]
    kind = block["type"]
    if kind == "text" and not (isinstance(block.get("text"), str) and block["text"].strip()):
        return ["blank text"]
    if kind == "image" and not isinstance(block.get("source"), dict):
        return ["image without source"]
    if kind == "tool_use":
        right = _is_id(block.get("id")) and _is_id(block.get("name"), 128) and isinstance(block.get("input"), dict)
        return [] if right else [f"bad tool_use {block!r}"]
    if kind == "tool_result":
        return _result_faults(block)
    if kind == "thinking" and not (
        isinstance(block.get("thinking"), str) and isinstance(block.get("signature"), str)
    ):
        return ["thinking without text or signature"]
    if kind == "redacted_thinking" and not isinstance(block.get("data"), str):
        return ["redacted thinking without data"]
    return []


def _is_id(value: object, longest: int = 64) -> bool:
    if not isinstance(value, str):
        return False
    return bool(_ID.match(value[:64])) and len(value) <= longest and bool(re.fullmatch(r"[a-zA-Z0-9_-]+", value))


def _result_faults(block: Raw) -> list[str]:
    content = block.get("content")
    if not _is_id(block.get("tool_use_id")) or not isinstance(content, str | list):
        return [f"bad tool_result {block!r}"]
    if "is_error" in block and not isinstance(block["is_error"], bool):
        return ["is_error is no bool"]
    if block.get("is_error") and not content:
        return ["an error without content"]
    faults: list[str] = []
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
            faults.append(f"not allowed in a result: {part!r}")
        elif block.get("is_error") and part["type"] != "text":
            faults.append("an error with more than text")
        else:
            faults += _block_faults(part, "user")
    return faults


def _pairing(messages: Sequence[Raw], reading: str) -> list[str]:
    found: list[str] = []
    everything: Counter[str] = Counter()
    asked: list[str] = []
    for index, message in enumerate(messages):
        blocks = _blocks(message)
        kinds = [block["type"] for block in blocks]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if Counter(results) != Counter(asked):
            found.append(f"{index} ({reading}): {results} answer {asked}")
        if kinds[: len(results)] != ["tool_result"] * len(results):
            found.append(f"{index} ({reading}): results are not first")
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        everything.update(asked)
    if asked:
        found.append(f"end ({reading}): {asked} have no answer")
    found += [f"({reading}) {call_id} is used {count} times" for call_id, count in everything.items() if count > 1]
    return found
