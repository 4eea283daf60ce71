"""What of a running reply is on the screen for good, and what is still to come. No I/O.

What was printed on a terminal stays printed, so only finished text is; `finished` tells how much of a text that
is still growing will not change its looks any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from channels.base import Snapshot, ToolLine
from channels.console.clean import clean


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Markdown that goes on where the last piece of the same reply ended."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolPiece:
    line: ToolLine


@dataclass(frozen=True, slots=True)
class NoticePiece:
    """A line of the program itself."""

    text: str


Piece: TypeAlias = "TextPiece | ToolPiece | NoticePiece"


@dataclass(frozen=True, slots=True)
class Live:
    """What may still change: the open text, the tools that run, and what the reply waits for."""

    text: str = ""
    tools: tuple[ToolLine, ...] = ()
    status: str | None = None


@dataclass(slots=True)
class Progress:
    """One reply on its way to the screen."""

    finished: Callable[[str], int]
    live: Live = field(default_factory=Live)
    _text: str = ""
    _printed: str = ""
    _tools: int = 0
    _seen_tools: int = 0

    def advance(self, snapshot: Snapshot) -> list[Piece]:
        """What can now be printed for good; `live` is then what can't yet."""
        before, text = self._text, clean(snapshot.text)
        self._text = text
        if not text.startswith(self._printed):  # the stream was restarted and went another way
            self.live = Live(text, self._running(snapshot), snapshot.status)
            return []
        pieces: list[Piece] = []
        fresh = snapshot.tools[self._seen_tools :]
        if fresh:
            pieces += self._print(_led_to(fresh[0], before, text)[len(self._printed) :])
            self._seen_tools = len(snapshot.tools)
        pieces += self._finished_tools(snapshot)
        open_text = text[len(self._printed) :]
        pieces += self._print(open_text[: self.finished(open_text)])
        self.live = Live(text[len(self._printed) :], self._running(snapshot), snapshot.status)
        return pieces

    def finish(self, final: str) -> list[Piece]:
        """What is still to be printed when the whole reply is this text."""
        tools: list[Piece] = [ToolPiece(line) for line in self.live.tools]
        final = clean(final)
        rest = rest_after(final, self._printed)
        self.live = Live()
        self._text = self._printed = final
        if rest is None:
            return [*tools, NoticePiece("the answer was started anew:"), TextPiece(final)]
        return [*tools, TextPiece(rest)] if rest else tools

    def abandon(self) -> list[Piece]:
        """What was shown and may get no final text; `finish` may still come, and then goes on from here."""
        return self.finish(self._text)

    def _print(self, text: str) -> list[Piece]:
        self._printed += text
        return [TextPiece(text)] if text else []

    def _finished_tools(self, snapshot: Snapshot) -> list[Piece]:
        """In the order of the calls: one that has ended waits for those before it."""
        pieces: list[Piece] = []
        while self._tools < len(snapshot.tools) and snapshot.tools[self._tools].state != "running":
            pieces.append(ToolPiece(snapshot.tools[self._tools]))
            self._tools += 1
        return pieces

    def _running(self, snapshot: Snapshot) -> tuple[ToolLine, ...]:
        return snapshot.tools[self._tools :]


def _led_to(call: ToolLine, before: str, text: str) -> str:
    """The part of the text that led to this call, new since the text was `before`. While the call runs, all. When
    it is over already: what was seen before and the rest of that paragraph, since what comes after a call is a
    paragraph of its own."""
    if call.state == "running":
        return text
    gap = text.find("\n\n", len(before)) if before else 0
    return text[:gap] if gap >= 0 else text


def rest_after(final: str, printed: str) -> str | None:
    """The part of a text that is not printed yet; None: something else was printed. White space does not count."""
    if final.startswith(printed):
        return final[len(printed) :]
    wanted = [char for char in printed if not char.isspace()]
    position = 0
    for char in wanted:
        while position < len(final) and final[position].isspace():
            position += 1
        if position == len(final) or final[position] != char:
            return None
        position += 1
    return final[position:]
