"""Markdown to Telegram's rich text. Whatever the model wrote is shown; what is no Markdown stays as written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias, cast

import pyromark
import structlog
from telegramify_markdown.config import RenderConfig
from telegramify_markdown.converter import EventWalker

from channels.telegram.rich_text import RichText, Span, SpanKind, legal_spans, unit_offsets

log = structlog.get_logger()

Event: TypeAlias = "str | dict[str, object]"
Ranged: TypeAlias = "tuple[Event, dict[str, int]]"

LONGEST_URL = 2_000

_OPTIONS = (
    pyromark.Options.ENABLE_TABLES
    | pyromark.Options.ENABLE_STRIKETHROUGH
    | pyromark.Options.ENABLE_TASKLISTS
    | pyromark.Options.ENABLE_MATH
)
_KINDS: dict[str, SpanKind] = {
    "bold": "bold",
    "italic": "italic",
    "underline": "underline",
    "strikethrough": "strikethrough",
    "blockquote": "blockquote",
    "text_link": "text_link",
    "pre": "pre",
    "code": "code",
}
# Telegram's servers drop or replace these, and then our offsets would be wrong.
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f]")
_GONE = re.compile("[\u202a-\u202e]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TEX = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_COMMAND = re.compile(r"\\[A-Za-z]")
_LINK = re.compile(r"https?://[^\s/]", re.IGNORECASE)


def _config() -> RenderConfig:
    """Quiet symbols, and ours alone: the library's own configuration is one for the whole process."""
    config = RenderConfig.isolated()
    symbol = config.markdown_symbol
    symbol.heading_level_1 = symbol.heading_level_2 = symbol.heading_level_3 = symbol.heading_level_4 = ""
    symbol.unordered_list_item = "•"
    symbol.task_completed, symbol.task_uncompleted = "☑", "☐"
    config.cite_expandable = False
    return config


_CONFIG = _config()


def render(markdown: str) -> RichText:
    """The text as people see it, with legal spans. Never raises: what can't be read is shown plain."""
    source = clean(markdown)
    try:
        source = _tex_between_dollars(source)
        events = tuple(_prepared(source))
        text, entities, _ = EventWalker(_CONFIG, source).walk(events)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("telegram.not_rendered", error=repr(error)[:200])
        return RichText(source.strip("\n"))
    at = {offset: index for index, offset in enumerate(unit_offsets(text))}
    spans = (
        Span(_KINDS[each.type], at[each.offset], at[each.offset + each.length], each.url, each.language)
        for each in entities
        if each.type in _KINDS
    )
    whole = RichText(text, legal_spans(spans))
    first = len(text) - len(text.lstrip("\n"))
    return whole.cut(first, max(first, len(text.rstrip())))


def plain(markdown: str) -> RichText:
    """The Markdown as it was written, for where Telegram refuses the formatting."""
    return RichText(clean(markdown).strip("\n").rstrip())


def clean(text: str) -> str:
    """The text with what Telegram would change by itself changed already: line ends, control characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _SURROGATE.sub("\ufffd", _GONE.sub("", _CONTROL.sub(" ", text)))


def _tex_between_dollars(source: str) -> str:
    """TeX between `\\(` and `\\)` or `\\[` and `\\]`, as some models write it, in the way that the parser knows.

    Code, and brackets without TeX in them, stay as they are.
    """
    if "\\(" not in source and "\\[" not in source:
        return source
    data, pieces, at = source.encode(), list[str](), 0
    found = cast("Iterable[Ranged]", pyromark.events_with_range(source, options=_OPTIONS))
    for event, span in found:
        start = _tag(event, "Start")
        is_code = (isinstance(start, dict) and "CodeBlock" in start) or (
            isinstance(event, dict) and "Code" in event
        )
        if is_code and span["start"] >= at:
            pieces.append(_TEX.sub(_dollars, data[at : span["start"]].decode()))
            pieces.append(data[span["start"] : span["end"]].decode())
            at = span["end"]
    return "".join([*pieces, _TEX.sub(_dollars, data[at:].decode())])


def _dollars(match: re.Match[str]) -> str:
    inline, display = match.groups()
    tex = inline if inline is not None else display
    if not _COMMAND.search(tex) or "$" in tex or "\n\n" in tex:
        return match.group()
    mark = "$" if inline is not None else "$$"
    return f"{mark}{tex.strip()}{mark}"


def _prepared(source: str) -> Iterator[Ranged]:
    """The parser's events with those put right that the library drops, or reads as people do not write."""
    data = source.encode()
    found = cast("Iterable[Ranged]", pyromark.events_with_range(source, options=_OPTIONS))
    links: list[str | None] = []
    strikes: list[bool] = []
    in_cell = False
    label_empty = False
    for event, span in found:
        literal = data[span["start"] : span["end"]].decode("utf-8", "replace")
        start, end = _tag(event, "Start"), _tag(event, "End")
        if "TableCell" in (start, end):
            in_cell = start == "TableCell"
        if start == "Strikethrough":
            strikes.append(literal.startswith("~~"))
        single_tilde = "Strikethrough" in (start, end) and not (strikes[-1] if start else strikes.pop())
        if isinstance(start, dict) and "Link" in start:
            url = str(start["Link"]["dest_url"])
            links.append(url)
            label_empty = True
            if _can_link(url):
                yield event, span
            continue
        if end == "Link":
            url = links.pop() or ""
            if label_empty or not (_can_link(url) or _is_own_text(literal)):
                yield {"Text": url if label_empty else f" ({url})"}, span
            if _can_link(url):
                yield event, span
            label_empty = False
            continue
        label_empty = False
        yield (_as_text("~") if single_tilde else _put_right(event, literal, in_cell=in_cell)), span


def _put_right(event: Event, literal: str, *, in_cell: bool) -> Event:
    """HTML is shown, `<br>` breaks the line, and a dollar sign is one unless there is TeX between two."""
    if not isinstance(event, dict):
        return event
    if (tag := _tag(event, "Start")) == "HtmlBlock":
        return {"Start": "Paragraph"}
    if _tag(event, "End") == "HtmlBlock":
        return {"End": "Paragraph"}
    if isinstance(tag, dict) and "Image" in tag and not _can_link(str(tag["Image"]["dest_url"])):
        return {"Start": {"Image": {**tag["Image"], "dest_url": ""}}}
    html = event.get("InlineHtml", event.get("Html"))
    if html is not None:
        return "SoftBreak" if _BREAK.fullmatch(str(html).strip()) else _as_text(str(html))
    math = event.get("InlineMath", event.get("DisplayMath"))
    if math is not None and (in_cell or "\\" not in str(math)):
        return _as_text(literal)
    return event


def _as_text(text: str) -> Event:
    return {"Text": text}


def _tag(event: Event, edge: str) -> object:
    return event.get(edge) if isinstance(event, dict) else None


def _can_link(url: str) -> bool:
    return len(url) <= LONGEST_URL and _LINK.match(url) is not None


def _is_own_text(literal: str) -> bool:
    """An autolink (`<a@b.c>`): its address is its text."""
    return literal.startswith("<")
