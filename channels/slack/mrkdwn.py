"""Markdown → Slack's mrkdwn, for workspaces or messages where the `markdown` block is refused.

mrkdwn has one level of everything: *bold*, _italic_, ~strike~, `code`, <url|label>, > quote. It knows no headings
(bold here), no tables (aligned text in a code block here) and no escapes but `&amp; &lt; &gt;`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import east_asian_width

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark", {"maxNesting": 60}).enable(["table", "strikethrough"])
_DEEP = 50
_CELL_WIDTH = 40  # a wider cell of a table is not padded for

_WORD_JOINER = "\u2060"  # invisible, and behind an @ no name of a group follows it
_GROUP = re.compile(r"(?<![\w@])@(?=(?:here|channel|everyone)\b)", re.IGNORECASE)

_MARKS = {
    "strong_open": "*",
    "strong_close": "*",
    "em_open": "_",
    "em_close": "_",
    "s_open": "~",
    "s_close": "~",
    "softbreak": "\n",
    "hardbreak": "\n",
}


def escape(text: str) -> str:
    """The three characters that Slack reads as markup of its own, encoded."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def silent(text: str) -> str:
    """The text whose @here, @channel and @everyone are mere words."""
    return _GROUP.sub("@" + _WORD_JOINER, text)


def to_mrkdwn(markdown: str) -> str:
    """The same text in mrkdwn, every `&`, `<` and `>` of it encoded; no word is lost."""
    tokens = _PARSER.parse(markdown)
    if any(token.level > _DEEP for token in tokens):
        return escape(markdown)  # deeper still, the parser drops what it finds
    return "\n\n".join(_blocks(tokens))


def _blocks(tokens: Sequence[Token]) -> list[str]:
    blocks: list[str] = []
    at = 0
    while at < len(tokens):
        end = _end_of(tokens, at)
        text = _block(tokens[at], tokens[at + 1 : end])
        if text:
            blocks.append(text)
        at = end + 1
    return blocks


def _end_of(tokens: Sequence[Token], start: int) -> int:
    """The index of the token that closes the one at `start`; itself where nothing has to be closed."""
    depth = 0
    for at in range(start, len(tokens)):
        depth += tokens[at].nesting
        if depth == 0:
            return at
    return len(tokens) - 1


def _block(token: Token, inner: Sequence[Token]) -> str:
    match token.type:
        case "inline":
            return _inline(token)
        case "heading_open":
            return _bold("\n".join(_blocks(inner)))
        case "fence" | "code_block":
            return _code_block(token.content)
        case "blockquote_open":
            return _prefixed("\n\n".join(_blocks(inner)), "> ", "> ")
        case "bullet_list_open" | "ordered_list_open":
            return _list(token, inner)
        case "table_open":
            return _table(inner)
        case "hr":
            return "———"
        case "html_block":
            return escape(token.content.strip())
        case _:
            return "\n\n".join(_blocks(inner))


def _code_block(content: str) -> str:
    # No language: Slack would show it as the first line. A fence inside of it would end it early.
    return "```\n" + escape(content.rstrip("\n")).replace("```", "`\u2060`\u2060`") + "\n```"


def _bold(text: str) -> str:
    plain = text.replace("*", "")
    return "\n".join(f"*{line}*" if line.strip() else line for line in plain.split("\n"))


def _prefixed(text: str, first: str, other: str) -> str:
    lines = text.split("\n")
    return "\n".join([first + lines[0], *(other + line if line else line for line in lines[1:])])


def _list(token: Token, inner: Sequence[Token]) -> str:
    number = int(str(token.attrs.get("start", 1)))
    ordered = token.type == "ordered_list_open"
    items: list[str] = []
    at = 0
    while at < len(inner):
        end = _end_of(inner, at)
        mark = f"{number + len(items)}. " if ordered else "• "
        items.append(_prefixed("\n".join(_blocks(inner[at + 1 : end])), mark, "    "))
        at = end + 1
    return "\n".join(items)


def _table(inner: Sequence[Token]) -> str:
    rows: list[list[str]] = []
    for token in inner:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(" ".join(token.content.split()))
    columns = max((len(row) for row in rows), default=0)
    widths = [max(_padded_width(row[at]) for row in rows if at < len(row)) for at in range(columns)]
    lines = [
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
    return _code_block("\n".join(lines))


def _padded_width(cell: str) -> int:
    return min(_width(cell), _CELL_WIDTH)


def _width(text: str) -> int:
    """Columns in a fixed-width font: wide characters take two."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _inline(token: Token) -> str:
    pieces: list[str] = []
    links: list[tuple[int, str]] = []
    for child in token.children or []:
        if child.type == "link_open":
            links.append((len(pieces), str(child.attrs.get("href", ""))))
        elif child.type == "link_close" and links:
            start, href = links.pop()
            pieces[start:] = [_link(href, "".join(pieces[start:]))]
        else:
            pieces.append(_span(child))
    return "".join(pieces)


def _span(child: Token) -> str:
    match child.type:
        case "code_inline":
            return f"`{escape(child.content)}`"
        case "image":
            return _link(str(child.attrs.get("src", "")), escape(child.content))
        case "text" | "html_inline":
            return escape(silent(child.content))
        case kind:
            return _MARKS.get(kind, escape(child.content))


def _link(href: str, label: str) -> str:
    # Only schemes that open a page or a mail: "<!here>" and "<@U1>" are links to Slack.
    if not href.lower().startswith(("http://", "https://", "mailto:")):
        return f"{label} ({escape(href)})" if href else label
    target = escape(href).replace("|", "%7C").replace(" ", "%20")
    label = label.replace("|", "¦")
    return f"<{target}|{label}>" if label.strip() else f"<{target}>"
