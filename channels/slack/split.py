"""Cutting Markdown into parts that fit: at paragraphs, then lines, then words, then characters as people see them.

A code fence that is cut is closed at the end of its part and opened again at the start of the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import regex

Weight = Callable[[str], int]

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_OPENER_LENGTH = 40  # a longer line that starts like a fence is treated as text
_CLOSER_ROOM = _OPENER_LENGTH + 1
_OPENER_ROOM = 5 * (_OPENER_LENGTH + 1)  # no weight counts a character more than five times
_WORD = re.compile(r"\S*\s*")
_ENTITY_OR_CHAR = regex.compile(r"&#?\w{1,8};|\X")


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code fence: how it was opened, and what closes it."""

    opener: str
    marker: str

    def closed_by(self, line: str) -> bool:
        match = _FENCE.match(line)
        return (
            match is not None
            and match[1][0] == self.marker[0]
            and len(match[1]) >= len(self.marker)
            and not match[2].strip()
        )


def fence_opened_by(line: str) -> Fence | None:
    match = _FENCE.match(line)
    if match is None or len(line) > _OPENER_LENGTH or (match[1][0] == "`" and "`" in match[2]):
        return None
    return Fence(line.strip(), match[1])


def split_fences(text: str) -> Iterator[tuple[bool, str]]:
    """The text in its order, as (whether it is fenced code, lines); joined, they give the text back."""
    fence: Fence | None = None
    held: list[str] = []
    for line in _LINE.findall(text):
        opened = fence_opened_by(line) if fence is None else None
        if opened is not None:
            if held:
                yield False, "".join(held)
            held, fence = [], opened
        held.append(line)
        if opened is None and fence is not None and fence.closed_by(line):
            yield True, "".join(held)
            held, fence = [], None
    if held:
        yield fence is not None, "".join(held)


@dataclass(slots=True)
class _Splitter:
    """Fills one part after the other with lines. `limit` holds for the weight of a whole part."""

    limit: int
    weigh: Weight
    fences: bool
    parts: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    weight: int = 0
    fence: Fence | None = None
    reopened: bool = False
    paragraph: int = 0  # how many of `lines` stand before the last blank line outside of code

    def add(self, line: str) -> None:
        room = self.limit - (_CLOSER_ROOM + _OPENER_ROOM if self.fences else 0)
        whole = self.weigh(line) <= room
        for piece in [line] if whole else _words(line, room, self.weigh):
            if self.weight + self.weigh(piece) > self.limit - (_CLOSER_ROOM if self.fences else 0):
                self._cut()
            self._put(piece, whole)

    def _put(self, line: str, whole: bool) -> None:
        if self.fences and whole:
            line = self._track(line)
        self.lines.append(line)
        self.weight += self.weigh(line)
        if self.fence is None and not line.strip():
            self.paragraph = len(self.lines)

    def _track(self, line: str) -> str:
        """Keeps `fence` right, and gives the line as it is to be written."""
        if self.fence is None:
            self.fence = fence_opened_by(line)
            self.reopened = False
        elif self.fence.closed_by(line):
            # A reopened fence stands at the margin, and only a line at the margin surely closes it.
            line = self.fence.marker + line[len(line.rstrip("\r\n")) :] if self.reopened else line
            self.fence = None
        return line

    def _cut(self) -> None:
        """Ends the part: before its last paragraph if that keeps half of it, else after its last line."""
        kept, rest = self.lines, list[str]()
        if self.fence is None and 0 < self.paragraph < len(kept):
            head = "".join(kept[: self.paragraph])
            if 2 * self.weigh(head) >= self.limit:
                kept, rest = kept[: self.paragraph], kept[self.paragraph :]
        self._close(kept)
        self.lines, self.weight, self.paragraph = [], 0, 0
        if self.fence is not None:
            rest = [self.fence.opener + "\n"]
            self.reopened = True
        self.lines = rest
        self.weight = self.weigh("".join(rest))

    def _close(self, lines: list[str]) -> None:
        text = "".join(lines).rstrip() if self.fence is None else "".join(lines).rstrip("\r\n")
        if self.fence is not None:
            text = text.rstrip("\n") + "\n" + self.fence.marker
        if text.strip():
            self.parts.append(text)

    def end(self) -> list[str]:
        self._close(self.lines)
        return self.parts


def split(text: str, limit: int, weigh: Weight, *, fences: bool = True) -> list[str]:
    """The text in parts of at most `limit` (500 or more), measured by `weigh`: 1 to 5 for each character.

    Nothing but white space at the cuts is lost; blank text gives no part. A text that only grows keeps its
    earlier parts, so that messages which show them need no edit.
    """
    splitter = _Splitter(limit, weigh, fences)
    for line in _LINE.findall(text.strip("\r\n")):
        splitter.add(line)
    return splitter.end()


def _words(line: str, room: int, weigh: Weight) -> Iterator[str]:
    """A long line in pieces of at most `room`: at white space, inside of a long word between graphemes."""
    held, weight = "", 0
    for word in _WORD.findall(line):
        for piece in [word] if weigh(word) <= room else _pieces(word, room, weigh):
            cost = weigh(piece)
            if held and weight + cost > room:
                yield held
                held, weight = "", 0
            held, weight = held + piece, weight + cost
    if held:
        yield held


def _pieces(word: str, room: int, weigh: Weight) -> list[str]:
    """A word in pieces; an entity or a grapheme stays whole unless it alone is too heavy."""
    pieces, held, weight = list[str](), list[str](), 0
    for match in _ENTITY_OR_CHAR.finditer(word):
        units = [match.group()] if weigh(match.group()) <= room else list(match.group())
        for unit in units:
            cost = weigh(unit)
            if held and weight + cost > room:
                pieces.append("".join(held))
                held, weight = [], 0
            held.append(unit)
            weight += cost
    return [*pieces, "".join(held)]
