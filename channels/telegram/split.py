"""Cutting rich text into messages: at paragraphs, then lines, then words, then characters as people see them.

A span goes on in the next message where it was cut, so code stays code. What a link or a word in bold covers is
kept together where that is possible. Pure.
"""

from __future__ import annotations

from bisect import bisect_right

import regex

from channels.telegram.rich_text import MOST_ENTITIES, RichText, unit_offsets

LIMIT = 4096
"""UTF-16 units in one message."""

_WHOLE = frozenset({"text_link", "code", "bold", "italic", "underline", "strikethrough", "spoiler"})
_GRAPHEME = regex.compile(r"\X")
_REACH = 64  # characters; a grapheme is looked for in no more than so many


def split(rich: RichText, limit: int = LIMIT) -> list[RichText]:
    """Parts of at most `limit` units, none of them blank. Nothing but white space at the cuts is lost."""
    offsets = unit_offsets(rich.text)
    parts: list[RichText] = []
    start = 0
    while start < len(rich.text):
        most = min(bisect_right(offsets, offsets[start] + limit) - 1, _most_by_spans(rich, start))
        end = len(rich.text) if most >= len(rich.text) else _end(rich, start, most)
        parts.append(_trimmed(rich.cut(start, end)))
        start = _next_start(rich.text, end)
    return [part for part in parts if part.text.strip()]


def _most_by_spans(rich: RichText, start: int) -> int:
    """How far a part may reach so that all formatting in it is shown."""
    starts = [span.start for span in rich.spans if span.end > start]
    return max(starts[MOST_ENTITIES], start + 1) if len(starts) > MOST_ENTITIES else len(rich.text)


def _end(rich: RichText, start: int, most: int) -> int:
    """Where the part that begins at `start` ends; `most` is the furthest it may reach."""
    text = rich.text
    half = start + (most - start) // 2
    for mark, earliest in (("\n\n", half), ("\n", half), (" ", start), ("\n", start)):
        at = text.rfind(mark, earliest + 1, most + len(mark))
        if at > earliest:
            return _before_span(rich, start, at)
    return _before_span(rich, start, _between_graphemes(text, start, most))


def _before_span(rich: RichText, start: int, end: int) -> int:
    """Moves the end in front of the spans it would cut, unless too little would be left."""
    begins = [
        span.start
        for span in rich.spans
        if span.kind in _WHOLE and span.start < end < span.end and span.start - start > (end - start) // 2
    ]
    return min(begins, default=end)


def _between_graphemes(text: str, start: int, most: int) -> int:
    reach = max(start, most - _REACH)
    ends = [reach + match.end() for match in _GRAPHEME.finditer(text[reach : most + 1])]
    fitting = [end for end in ends if start < end <= most and end < reach + len(text[reach : most + 1])]
    return fitting[-1] if fitting else most


def _next_start(text: str, end: int) -> int:
    """Skips the white space at the cut, but not the indent of the next line."""
    after = end
    while after < len(text) and text[after].isspace():
        after += 1
    line = text.rfind("\n", end, after)
    return line + 1 if line >= 0 and after < len(text) else after


def _trimmed(rich: RichText) -> RichText:
    return rich.cut(0, len(rich.text.rstrip()))
