"""Telegram's published rules for a text message, written for the test server and for properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TEXT_LIMIT = 4096
ALONE = {"code", "pre"}
QUOTES = {"blockquote", "expandable_blockquote"}
KINDS = {
    "mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bold", "italic", "underline",
    "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre", "text_link", "text_mention",
    "custom_emoji", "date_time",
}  # fmt: skip


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def text_problem(text: str, entities: Sequence[Mapping[str, object]]) -> str | None:
    """What the Bot API would answer to this text, or None where it would take it."""
    if not text.strip():
        return "Bad Request: message text is empty"
    length = utf16_length(text)
    if length > TEXT_LIMIT:
        return "Bad Request: message is too long"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "Bad Request: strings must be encoded in UTF-8"
    borders = _borders(text)
    spans = []
    for entity in entities:
        offset, size = entity["offset"], entity["length"]
        if not isinstance(offset, int) or not isinstance(size, int) or entity["type"] not in KINDS:
            return "Bad Request: can't parse entities: an entity is malformed"
        if offset < 0 or size <= 0 or offset + size > length:
            return "Bad Request: can't parse entities: ENTITY_BOUNDS_INVALID"
        if offset not in borders or offset + size not in borders:
            return "Bad Request: can't parse entities: an entity begins inside of a character"
        spans.append((offset, offset + size, str(entity["type"])))
    return _nesting_problem(spans)


def _nesting_problem(spans: list[tuple[int, int, str]]) -> str | None:
    spans = sorted(spans, key=lambda span: (span[0], -span[1]))
    for index, (start, end, kind) in enumerate(spans):
        for other_start, other_end, other in spans[index + 1 :]:
            if other_start >= end:
                break
            if other_end > end:
                return "Bad Request: can't parse entities: entities overlap"
            if kind in QUOTES and other in QUOTES:
                return "Bad Request: can't parse entities: quotes can't be nested"
            if (kind in ALONE and other not in QUOTES) or (other in ALONE and kind not in QUOTES):
                return f"Bad Request: can't parse entities: {kind} and {other} can't be nested ({start})"
    return None


def _borders(text: str) -> set[int]:
    found, at = {0}, 0
    for char in text:
        at += 2 if ord(char) > 0xFFFF else 1
        found.add(at)
    return found
