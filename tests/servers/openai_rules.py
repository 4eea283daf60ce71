"""What Chat Completions refuses, written from its published rules and error texts; no code of ours in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

Raw = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ASSISTANT_KEYS = {"role", "content", "tool_calls", "refusal", "name", "reasoning_content", "reasoning"}
_KEYS = {"assistant": _ASSISTANT_KEYS, "tool": {"role", "content", "tool_call_id"}}


def request_violations(body: Raw) -> list[str]:
    """Everything that is wrong with a request to /v1/chat/completions, in the API's own words; empty: legal."""
    found = [f"Missing required parameter: '{name}'." for name in ("model", "messages") if name not in body]
    if found:
        return found
    if "max_tokens" in body and "max_completion_tokens" in body:
        found.append("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
    if body.get("stream_options") and not body.get("stream"):
        found.append("The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    for index, tool in enumerate(body.get("tools", [])):
        if tool.get("type") != "function" or not _NAME.fullmatch(str(tool.get("function", {}).get("name", ""))):
            found.append(f"Invalid 'tools[{index}].function.name': string does not match pattern.")
    if body.get("tools") == []:
        found.append("Invalid 'tools': empty array. Expected an array with minimum length 1.")
    if "tool_choice" in body and not body.get("tools"):
        found.append("Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.")
    return found + violations(body["messages"])


def violations(messages: Sequence[Any]) -> list[str]:
    """Everything that is wrong with a history."""
    if not messages:
        return ["Invalid 'messages': empty array. Expected an array with minimum length 1."]
    found = [fault for index, message in enumerate(messages) for fault in _message_faults(index, message)]
    return found or list(_pairing_faults(messages))


def alternation_violations(messages: Sequence[Raw]) -> list[str]:
    """What chat templates refuse that want the roles to alternate (tool messages belong to the calls)."""
    found = [
        f"two {before['role']} messages in a row"
        for before, after in pairwise(messages)
        if before["role"] == after["role"] != "tool"
    ]
    if any(message["role"] == "system" for message in messages[1:]):
        found.append("System message must be at the beginning.")
    return found


def _message_faults(index: int, message: Any) -> Iterator[str]:
    where = f"messages[{index}]"
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        yield f"Invalid value: {role!r}. Supported values are: {', '.join(_ROLES)}."
        return
    if unknown := message.keys() - _KEYS.get(role, {"role", "content", "name"}):
        yield f"Additional properties are not allowed ({min(unknown)!r} was unexpected) - '{where}'"
    if role == "assistant":
        yield from _call_faults(where, message)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"Missing required parameter: '{where}.tool_call_id'."
    yield from _content_faults(f"{where}.content", message)


def _content_faults(where: str, message: Raw) -> Iterator[str]:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant" or not message.get("tool_calls"):
            yield f"Invalid value for 'content': expected a string, got null. ({where})"
        return
    if not isinstance(content, str | list):
        yield f"Invalid type for '{where}': expected one of a string or array of objects."
        return
    if not content and not message.get("tool_calls"):
        yield f"Invalid '{where}': empty content."
    for number, part in enumerate(content if isinstance(content, list) else []):
        yield from _part_faults(f"{where}[{number}]", part, message["role"])


def _part_faults(where: str, part: Any, role: str) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        if not isinstance(part.get("text"), str) or not part["text"]:
            yield f"Invalid '{where}.text': empty string. Expected a string with minimum length 1."
    elif kind == "image_url" and role == "user":
        url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else None
        if not isinstance(url, str) or not url.startswith(("data:image/", "https://", "http://")):
            yield f"Invalid '{where}.image_url.url': Expected a valid URL."
    else:
        yield f"Invalid value: {kind!r} in a {role} message. ({where}.type)"


def _call_faults(where: str, message: Raw) -> Iterator[str]:
    if "tool_calls" not in message:
        return
    calls = message["tool_calls"]
    if not isinstance(calls, list) or not calls:
        yield f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
        return
    for number, call in enumerate(calls):
        place = f"{where}.tool_calls[{number}]"
        function = call.get("function", {})
        if call.get("type") != "function":
            yield f"Invalid value: '{place}.type'."
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield f"Missing required parameter: '{place}.id'."
        elif len(call["id"]) > 40:
            yield f"Invalid '{place}.id': string too long. Expected a string with maximum length 40."
        if not _NAME.fullmatch(str(function.get("name", ""))):
            yield f"Invalid '{place}.function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        yield from _argument_faults(place, function.get("arguments"))
    if len({call.get("id") for call in calls}) != len(calls):
        yield f"Invalid '{where}.tool_calls': duplicate ids."


def _argument_faults(place: str, arguments: Any) -> Iterator[str]:
    if not isinstance(arguments, str):
        yield f"Invalid type for '{place}.function.arguments': expected a string."
        return
    try:
        valid = isinstance(json.loads(arguments), dict)
    except ValueError:
        valid = False
    if not valid:
        yield f"Invalid '{place}.function.arguments': not a JSON object."


def _pairing_faults(messages: Sequence[Raw]) -> Iterator[str]:
    open_ids: list[str] = []
    for index, message in enumerate([*messages, {"role": "end"}]):
        if message["role"] == "tool":
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            else:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    f"'tool_calls'. (messages[{index}].role)"
                )
            continue
        if open_ids:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: "
                f"{', '.join(open_ids)}"
            )
        open_ids = [call["id"] for call in message.get("tool_calls") or []]
