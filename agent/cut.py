"""Cutting a text in the middle: head and tail stay, a visible mark says how much is gone (four-defences §2)."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from agent.texts import CHINESE, ENGLISH, Texts

HEAD_SHARE = 0.7
"""Of what is kept; results tell the most at their head, and errors at their end."""

# A surrogate pair may come as two characters, from JSON that some other program wrote.
_GRAPHEME = regex.compile("[\ud800-\udbff][\udc00-\udfff]|\\X")
# Between two of these a grapheme always ends: ASCII but controls, CJK punctuation, kana, ideographs, fullwidth.
_PLAIN = regex.compile(r"[\x20-\x7e\u3001-\u3029\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uff01-\uff60]{2}")
_MARKS = tuple(
    regex.compile(regex.escape(texts.cut_mark).replace(regex.escape("{gone}"), r"(\d{1,12})"))
    for texts in (ENGLISH, CHINESE)
)


def cut_text(text: str, limit: int, texts: Texts = ENGLISH) -> str:
    """At most `limit` characters of the text, the mark included; the text itself where it is short enough.

    Never cuts inside a grapheme. What an earlier cut took is counted in the new mark. A limit too small for
    the mark gives the head alone.
    """
    if len(text) <= limit:
        return text
    widest = texts.cut_mark.format(gone=len(text) + sum(_already_gone(text)))
    keep = limit - len(widest)
    if keep < 2:
        return text[: _boundary_before(text, max(0, limit))]
    head = _boundary_before(text, int(keep * HEAD_SHARE))
    tail = _boundary_after(text, len(text) - (keep - head))
    gone = tail - head
    for match in _marks_in(text[head:tail]):
        gone += int(match[1]) - len(match[0])
    return text[:head] + texts.cut_mark.format(gone=gone) + text[tail:]


def head_text(text: str, limit: int, ellipsis: str = "…") -> str:
    """At most `limit` characters from the start, ended by an ellipsis where something is gone."""
    if len(text) <= limit:
        return text
    return text[: _boundary_before(text, max(0, limit - len(ellipsis)))].rstrip() + ellipsis


def tail_text(text: str, limit: int, ellipsis: str = "…") -> str:
    """At most `limit` characters from the end, an ellipsis first where something is gone."""
    if len(text) <= limit:
        return text
    return ellipsis + text[_boundary_after(text, len(text) - max(0, limit - len(ellipsis))) :].lstrip()


def water_level(sizes: Sequence[int], total: int) -> int:
    """The level to which the largest must be cut, so that all together are at most `total`; 0 or more."""
    left, count = total, len(sizes)
    for size in sorted(sizes):
        if size * count > left:
            return max(0, left // count)
        left -= size
        count -= 1
    return max(sizes, default=0)


def _marks_in(text: str) -> list[regex.Match[str]]:
    return [match for pattern in _MARKS for match in pattern.finditer(text)]


def _already_gone(text: str) -> list[int]:
    return [int(match[1]) for match in _marks_in(text)]


def _boundary_before(text: str, index: int) -> int:
    """The last end of a grapheme at or before the index."""
    if index >= len(text):
        return len(text)
    last = start = _safe_start(text, index)
    while start <= index:
        last = start
        match = _GRAPHEME.match(text, start)
        if match is None:
            break
        start = match.end()
    return last


def _boundary_after(text: str, index: int) -> int:
    """The first start of a grapheme at or after the index."""
    start = _safe_start(text, index)
    while start < index:
        match = _GRAPHEME.match(text, start)
        if match is None:
            return len(text)
        start = match.end()
    return start


def _safe_start(text: str, index: int) -> int:
    """A place at or before the index where a grapheme surely starts, near it in any common text."""
    for start in range(min(index, len(text) - 1), 0, -1):
        if _PLAIN.match(text, start - 1):
            return start
    return 0
