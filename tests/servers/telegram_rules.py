"""What the Bot API takes as a text, by its published rules, read strictly: lengths, bounds and nesting. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

TEXT_LIMIT = 4096
MOST_ENTITIES = 100
STYLES = {"bold", "italic", "underline", "strikethrough", "spoiler"}
QUOTES = {"blockquote", "expandable_blockquote"}
SOLID = {"text_link", "text_mention", "custom_emoji", "pre", "code"}
CODE = {"pre", "code"}

Entity = dict[str, Any]

_MARKDOWN_V2 = re.compile(r"(?<!\\)[_*\[\]()~`>#+\-=|{}.!]")


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def refusal(text: str, entities: Sequence[Entity] = (), *, empty: bool = False) -> str | None:
    """Why the text would be refused, in the Bot API's words; None where it is taken."""
    if not text.strip():
        return None if empty else "Bad Request: message text is empty"
    if units(text) > TEXT_LIMIT:
        return "Bad Request: message is too long"
    if len(entities) > MOST_ENTITIES:
        return "Bad Request: can't parse entities: too many"
    data = text.encode("utf-16-le")
    for entity in entities:
        if (wrong := _wrong_alone(entity, data)) is not None:
            return f"Bad Request: can't parse entities: {wrong}"
    wrong = _wrong_together(entities)
    return f"Bad Request: can't parse entities: {wrong}" if wrong else None


def _wrong_alone(entity: Entity, data: bytes) -> str | None:
    kind, start = entity["type"], entity["offset"]
    end = start + entity["length"]
    if kind not in STYLES | QUOTES | SOLID:
        return f"unknown type {kind}"
    if start < 0 or entity["length"] < 1 or 2 * end > len(data):
        return f"{kind} out of bounds"
    for edge in (start, end):
        if 2 * edge < len(data) and 0xDC00 <= int.from_bytes(data[2 * edge : 2 * edge + 2], "little") < 0xE000:
            return f"{kind} cuts a surrogate pair"
    if kind == "text_link" and not re.match(r"(https?|ftp|tg|ton)://", entity.get("url") or ""):
        return "unsupported URL"
    if kind != "text_link" and entity.get("url"):
        return f"{kind} with a URL"
    return None


def _wrong_together(entities: Sequence[Entity]) -> str | None:
    for number, one in enumerate(entities):
        for other in entities[number + 1 :]:
            if (wrong := _wrong_pair(one, other)) is not None:
                return f"{one['type']} and {other['type']} {wrong}"
    return None


def _wrong_pair(one: Entity, other: Entity) -> str | None:
    a, b = one["offset"], one["offset"] + one["length"]
    c, d = other["offset"], other["offset"] + other["length"]
    if b <= c or d <= a:
        return None
    if not ((a <= c and d <= b) or (c <= a and b <= d)):
        return "cross"
    kinds = {one["type"], other["type"]}
    if kinds & CODE and kinds & STYLES:
        return "share characters"
    if kinds <= QUOTES or kinds <= SOLID:
        return "are nested"
    return None


def parse_mode_refusal(text: str, mode: str) -> str | None:
    """A rough reader of the two Markdown modes, enough to refuse what is plainly unfinished."""
    if mode == "MarkdownV2" and (found := _MARKDOWN_V2.search(text)):
        return f"Bad Request: can't parse entities: character '{found.group()}' is reserved and must be escaped"
    if mode == "Markdown" and any(text.count(mark) % 2 for mark in "_*`"):
        return "Bad Request: can't parse entities: can't find end of the entity"
    if mode == "HTML" and re.search(r"<(?!/?(b|i|u|s|a|code|pre|em|strong|blockquote)\b)", text):
        return "Bad Request: can't parse entities: unsupported start tag"
    return None


def found_entities(text: str) -> list[Entity]:
    """Mentions and commands, as Telegram marks them in what people write."""
    found = []
    for kind, pattern in (("mention", r"(?<!\w)@\w{3,32}"), ("bot_command", r"(?<!\S)/\w{1,32}(?:@\w{3,32})?")):
        for match in re.finditer(pattern, text):
            offset = units(text[: match.start()])
            found.append({"type": kind, "offset": offset, "length": units(match.group())})
    return found
