"""How a running reply looks: the text so far, quiet lines for its tools, a Cancel button under the last one."""

from __future__ import annotations

from dataclasses import dataclass

from channels.base import Snapshot, ToolLine
from channels.telegram.render import clean, plain, render
from channels.telegram.rich_text import RichText, Span
from channels.telegram.split import LIMIT, split

TOOL_LINES = 5
TOOL_LINE_LENGTH = 120
STATUS_LENGTH = 200
NOTES_ROOM = 1_000  # units of a message kept for tool lines and status
LIVE_MESSAGES = 5  # a longer text is shown whole when it is ready
MOST_LIVE = 2 * LIVE_MESSAGES * LIMIT  # characters with their markup
WORKING = "…"

_MARKS = {"running": "⏳", "done": "✓", "failed": "✗"}
_CANCEL = "cancel:"


@dataclass(frozen=True, slots=True)
class Body:
    """One message: its text, and the callback data of its Cancel button where it has one."""

    rich: RichText
    cancel: str | None = None


def cancel_data(request_id: str) -> str:
    """At most 64 bytes, as Telegram wants it: a request id of 32 characters fits."""
    return _CANCEL + request_id


def cancelled_request(data: str) -> str | None:
    """The request that a button stops, from its callback data; None where it is no Cancel button."""
    return data.removeprefix(_CANCEL) if data.startswith(_CANCEL) else None


def parts_so_far(text: str, *, as_plain: bool = False) -> list[RichText]:
    """The text in messages that leave room for the notes; of a very long one, what can be shown live at most."""
    text = text[:MOST_LIVE]
    return split(plain(text) if as_plain else render(text), LIMIT - NOTES_ROOM)


def look_of(snapshot: Snapshot, request_id: str, *, as_plain: bool = False) -> list[Body]:
    """The messages that show a reply at one moment, first to last; never none."""
    parts = parts_so_far(snapshot.text, as_plain=as_plain)[:LIVE_MESSAGES]
    if not parts:
        return [panel_of(snapshot, request_id)]
    bodies = [Body(part) for part in parts]
    notes = notes_of(snapshot)
    last = parts[-1] + RichText("\n\n") + notes if notes.text else parts[-1]
    bodies[-1] = Body(last, cancel_data(request_id))
    return bodies


def panel_of(snapshot: Snapshot, request_id: str) -> Body:
    """A message with no text of the reply: what is being done, and the button."""
    notes = notes_of(snapshot)
    return Body(notes if notes.text else RichText(WORKING), cancel_data(request_id))


def notes_of(snapshot: Snapshot) -> RichText:
    """The newest tool calls and what the run waits for, in italics; empty where there is neither."""
    lines = [_tool_line(line) for line in snapshot.tools[-TOOL_LINES:]]
    if snapshot.status:
        lines.append("⏳ " + _one_line(snapshot.status, STATUS_LENGTH))
    text = "\n".join(lines)
    return RichText(text, (Span("italic", 0, len(text)),) if text else ())


def _tool_line(line: ToolLine) -> str:
    return f"{_MARKS[line.state]} {_one_line(f'{line.name} {line.args}', TOOL_LINE_LENGTH)}"


def _one_line(text: str, most: int) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"
