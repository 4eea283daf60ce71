"""A text with spans of formatting, as Telegram takes it: legal nesting, lengths in UTF-16 units. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

SpanKind = Literal[
    "bold", "italic", "underline", "strikethrough", "spoiler", "blockquote", "text_link", "pre", "code"
]

CODE: frozenset[SpanKind] = frozenset({"pre", "code"})
SOLID: frozenset[SpanKind] = CODE | {"text_link"}
MOST_ENTITIES = 100
"""Telegram leaves out formatting beyond this number in one message."""


@dataclass(frozen=True, slots=True)
class Span:
    """Formatting from character `start` up to, not including, `end`."""

    kind: SpanKind
    start: int
    end: int
    url: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class RichText:
    """Plain text and its spans; `spans` are in the order in which they start, outer ones first."""

    text: str
    spans: tuple[Span, ...] = ()

    def cut(self, start: int, end: int) -> RichText:
        """The piece from `start` to `end`; spans that reach beyond it are cut with it."""
        spans = (
            replace(span, start=max(span.start, start) - start, end=min(span.end, end) - start)
            for span in self.spans
            if span.start < end and span.end > start
        )
        return RichText(self.text[start:end], tuple(spans))

    def __add__(self, other: RichText) -> RichText:
        shift = len(self.text)
        moved = (replace(span, start=span.start + shift, end=span.end + shift) for span in other.spans)
        return RichText(self.text + other.text, (*self.spans, *moved))


def units(text: str) -> int:
    """The length as Telegram counts it: in UTF-16 units."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def unit_offsets(text: str) -> list[int]:
    """For each character, and for the end, how many UTF-16 units stand before it."""
    offsets, offset = [0], 0
    for char in text:
        offset += 2 if char > "\uffff" else 1
        offsets.append(offset)
    return offsets


def legal_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans by Telegram's rules: none crosses another; code holds and is held by no style; links, code and
    blocks don't hold each other; quotes don't hold quotes. What breaks a rule gives way, text never does."""
    ordered = _in_order(span for span in spans if span.start < span.end)
    solid = _apart([span for span in ordered if span.kind in SOLID])
    quotes = _apart([span for span in ordered if span.kind == "blockquote"])
    styles = [span for span in ordered if span.kind not in SOLID and span.kind != "blockquote"]
    code = [span for span in solid if span.kind in CODE]
    pieces = [piece for style in styles for piece in _around(style, code)]
    return tuple(_in_order(_nested(_in_order([*solid, *quotes, *pieces]))))


def _in_order(spans: Iterable[Span]) -> list[Span]:
    rank = {"blockquote": 0, "text_link": 1}
    return sorted(spans, key=lambda span: (span.start, -span.end, rank.get(span.kind, 2)))


def _apart(ordered: list[Span]) -> list[Span]:
    """Those that share no character with one before them."""
    kept: list[Span] = []
    for span in ordered:
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def _around(style: Span, code: list[Span]) -> list[Span]:
    """The style without the characters of code in it."""
    pieces, start = list[Span](), style.start
    for span in code:
        if span.start >= style.end:
            break
        if span.end <= start:
            continue
        pieces.append(replace(style, start=start, end=span.start))
        start = span.end
    pieces.append(replace(style, start=start))
    return [piece for piece in pieces if piece.start < piece.end]


def _nested(ordered: list[Span]) -> list[Span]:
    """Cuts what crosses the end of the span around it, and leaves out a style within the same style."""
    kept: list[Span] = []
    around: list[Span] = []
    for span in ordered:
        while around and around[-1].end <= span.start:
            around.pop()
        fitted = replace(span, end=min([span.end, *(outer.end for outer in around)]))
        if any(outer.kind == span.kind for outer in around):
            continue
        kept.append(fitted)
        around.append(fitted)
    return kept
