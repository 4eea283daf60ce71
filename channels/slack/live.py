"""How a running reply looks: the text so far, quiet lines for its tools, a Stop button under the last message."""

from __future__ import annotations

from channels.base import Snapshot, ToolLine
from channels.slack.events import CANCEL_ACTION
from channels.slack.mrkdwn import escape, silent
from channels.slack.payload import Body, Json
from channels.slack.render import markdown_block, notice, parts_of

TOOL_LINES = 6
TOOL_LINE_LENGTH = 160
STATUS_LENGTH = 150
WORKING = "Working on it …"
STOP = "Stop"

_MARKS = {"running": "⏳", "done": "✓", "failed": "✗"}


def look_of(snapshot: Snapshot, request_id: str, *, plain: bool = False) -> list[Body]:
    """The messages that show a reply at one moment, first to last; never none.

    `plain` is the way out where Slack refused the markdown block.
    """
    parts = parts_of(snapshot.text)
    if not parts:
        return [panel_of(snapshot, request_id)]
    bodies: list[Body] = [{"text": notice(part), "blocks": [_text(part, plain=plain)]} for part in parts]
    bodies[-1]["blocks"] = [_text(parts[-1], plain=plain), *_notes(snapshot, idle=""), _buttons(request_id)]
    return bodies


def panel_of(snapshot: Snapshot, request_id: str) -> Body:
    """A message with no text of the reply: what is being done, and the button."""
    return {"text": WORKING, "blocks": [*_notes(snapshot, idle=WORKING), _buttons(request_id)]}


def status_of(snapshot: Snapshot) -> str:
    """The line that Slack shows next to our name while nothing is written yet."""
    running = [line.name for line in snapshot.tools if line.state == "running"]
    status = snapshot.status or (f"is using {running[-1]} …" if running else "is thinking …")
    return status[:STATUS_LENGTH]


def without_buttons(blocks: tuple[Json, ...]) -> list[Json]:
    return [block for block in blocks if block.get("type") != "actions"]


def _text(part: str, *, plain: bool) -> Json:
    if not plain:
        return markdown_block(part)
    # The newest words: a section holds 3,000 characters, and the whole text comes with the final message.
    return {"type": "section", "text": {"type": "plain_text", "text": silent(part)[-2900:], "emoji": False}}


def _notes(snapshot: Snapshot, idle: str) -> list[Json]:
    lines = [_tool_line(line) for line in snapshot.tools[-TOOL_LINES:]]
    if snapshot.status:
        lines.append("⏳ " + escape(silent(snapshot.status[:STATUS_LENGTH])))
    if not lines and idle:
        lines.append(idle)
    if not lines:
        return []
    return [{"type": "context", "elements": [{"type": "mrkdwn", "text": "\n".join(lines), "verbatim": True}]}]


def _tool_line(line: ToolLine) -> str:
    args = " ".join(line.args.split())
    text = f"{line.name} {args}".strip()
    if len(text) > TOOL_LINE_LENGTH:
        text = text[: TOOL_LINE_LENGTH - 1] + "…"
    return f"{_MARKS[line.state]} {escape(silent(text))}"


def _buttons(request_id: str) -> Json:
    button = {
        "type": "button",
        "action_id": CANCEL_ACTION,
        "value": request_id,
        "text": {"type": "plain_text", "text": STOP, "emoji": False},
    }
    return {"type": "actions", "elements": [button]}
