"""A conversation's whole history as a file: Markdown to read, JSON to keep."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

from agent.messages import Block, blocks_of
from bridge.ports import StoredMessage

Format = Literal["md", "json"]
MEDIA_TYPES = {"md": "text/markdown", "json": "application/json"}


def export(session_id: str, history: Sequence[StoredMessage], form: Format) -> str:
    """The history as text. Markdown leaves out what tools gave; JSON has everything that is stored."""
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
    return json.dumps({"session": session_id, "messages": rows}, ensure_ascii=False, indent=2)


def _as_markdown(session_id: str, history: Sequence[StoredMessage]) -> str:
    parts = [f"# {session_id}"]
    for row in history:
        lines = list(_lines(blocks_of(row.message)))
        if lines:
            who = "Person" if row.origin == "user" else "steadybot"
            parts.append(f"## {who}, {row.created_at:%Y-%m-%d %H:%M} UTC")
            parts += lines
    return "\n\n".join(parts) + "\n"


def _lines(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text":
            yield block["text"]
        elif block["type"] == "image":
            yield "*(an image)*"
        elif block["type"] == "tool_use":
            yield f"- tool `{block['name']}` {json.dumps(block['input'], ensure_ascii=False)}"
