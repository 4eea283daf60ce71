"""A conversation's whole history as a file: Markdown to read, JSON to keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from agent.messages import Block, blocks_of
from bridge.ports import StoredMessage

Format = Literal["md", "json"]
MEDIA_TYPES = {"md": "text/markdown", "json": "application/json"}

LONGEST_CALL = 200
"""Characters of a tool call's input that Markdown shows; JSON has it whole."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def export(session_id: str, history: Sequence[StoredMessage], form: Format) -> str:
    """The history as text that UTF-8 can write. Markdown leaves out what tools gave; JSON has all of it."""
    return _as_json(session_id, history) if form == "json" else _as_markdown(session_id, history)


def file_name(session_id: str, form: Format) -> str:
    """A file name for it, of plain characters."""
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in session_id)
    return f"steadybot-{plain}.{form}"


def _as_json(session_id: str, history: Sequence[StoredMessage]) -> str:
    rows = [
        {
            "id": row.id,
            "at": row.created_at.isoformat(),
            "origin": row.origin,
            "request_id": row.request_id,
            **row.message,
        }
        for row in history
    ]
    whole = {"session": session_id, "messages": rows}
    text = json.dumps(whole, ensure_ascii=False, indent=2)
    # A model can write half a character (a lone surrogate); only an escape keeps it.
    return text if text == _writable(text) else json.dumps(whole, indent=2)


def _as_markdown(session_id: str, history: Sequence[StoredMessage]) -> str:
    parts = [f"# {session_id}"]
    for row in history:
        lines = list(_lines(blocks_of(row.message)))
        if lines:
            who = "Person" if row.origin == "user" else "steadybot"
            parts.append(f"## {who}, {row.created_at:%Y-%m-%d %H:%M} UTC")
            parts += lines
    return _writable("\n\n".join(parts) + "\n")


def _lines(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text":
            yield _closed(block["text"])
        elif block["type"] == "image":
            yield "*(an image)*"
        elif block["type"] == "tool_use":
            args = json.dumps(block["input"], ensure_ascii=False)
            yield f"- tool `{block['name']}` {args if len(args) <= LONGEST_CALL else args[:LONGEST_CALL] + '…'}"


def _closed(text: str) -> str:
    """With a code block closed that a cancelled answer left open, so that what follows is not read as code."""
    fence = ""
    for line in text.splitlines():
        mark, rest = match.groups() if (match := _FENCE.fullmatch(line)) else ("", "")
        if fence:
            ends = mark.startswith(fence) and not rest.strip()
            fence = "" if ends else fence
        elif "`" not in rest:
            fence = mark
    return f"{text}\n{fence}" if fence else text


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
