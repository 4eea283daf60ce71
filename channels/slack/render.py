"""A final text for Slack: parts that fit, and each part in three forms, the best one first.

Slack's `markdown` block takes 12,000 characters in all of a message, and it still reads Slack's own `<…>` tokens,
so model text could ping with `<!here>`: every `<` goes out as `&lt;`, which Slack shows as `<` and never reads as
a token again. Where Slack refuses the block, a part goes out as mrkdwn sections, then as plain text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from channels.slack.mrkdwn import escape, silent, to_mrkdwn
from channels.slack.payload import Body, Json
from channels.slack.split import split, split_fences

PART_LIMIT = 11_000  # of 12,000, so that tool lines and a button have room beside it
SECTION_LIMIT = 2_900  # of 3,000
SECTIONS = 4  # in one message; more of them run into msg_blocks_too_long at about 13,000 characters
PLAIN_LIMIT = 3_900  # of 4,000, above which chat.update says msg_too_long
NOTICE_LENGTH = 600  # characters of the text that notifications show

Form = Callable[[str], list[Body]]

_AUTOLINK = re.compile(r"<((?:https?|mailto):[^\s<>]+)>")
_ENTITY = re.compile(r"&(?=#?\w{1,31};)")
_RUN = re.compile(r"`+")


def parts_of(text: str, limit: int = PART_LIMIT) -> list[str]:
    """The Markdown text in parts that fit one message in every form; code fences are closed and reopened.

    Blank text gives no part.
    """
    return split(text, limit, _weight)


def forms() -> tuple[Form, ...]:
    """The forms of a part, to be tried in this order; each gives the bodies of one or more messages."""
    return (as_markdown, as_sections, as_plain)


def as_markdown(part: str) -> list[Body]:
    return [{"text": notice(part), "blocks": [markdown_block(part)]}]


def as_sections(part: str) -> list[Body]:
    texts = split(to_mrkdwn(part), SECTION_LIMIT, len) or [escape(part)[:SECTION_LIMIT]]
    groups = [texts[start : start + SECTIONS] for start in range(0, len(texts), SECTIONS)]
    return [{"text": notice(group[0]), "blocks": [_section(text) for text in group]} for group in groups]


def as_plain(part: str) -> list[Body]:
    texts = split(silent(part), PLAIN_LIMIT, _weight, fences=False)
    return [{"text": escape(text), "blocks": [], "mrkdwn": False} for text in texts]


def notice(text: str) -> str:
    """The short text that stands in notifications; escaped, so that it pings nobody."""
    return escape(silent(text[:NOTICE_LENGTH]))


def markdown_block(part: str) -> Json:
    return {"type": "markdown", "text": harmless(part)}


def _section(text: str) -> Json:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def harmless(text: str) -> str:
    """The Markdown with nothing in it that Slack reads as a token of its own; it looks the same to a reader."""
    return "".join(_code(lines) if is_code else "".join(_inline(lines)) for is_code, lines in split_fences(text))


def _inline(text: str) -> Iterator[str]:
    """Text outside of fences, with its code spans told apart."""
    at = 0
    for start, end in code_spans(text):
        yield _prose(text[at:start])
        yield _code(text[start:end])
        at = end
    yield _prose(text[at:])


def _prose(text: str) -> str:
    return silent(_AUTOLINK.sub(r"\1", text).replace("<", "&lt;"))


def _code(text: str) -> str:
    # In code an entity is meant as it is written; Slack would show what it stands for.
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;")


def code_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each code span: a run of backticks up to the next run of the same length."""
    runs = [match.span() for match in _RUN.finditer(text)]
    starts: dict[int, list[int]] = {}
    for start, end in runs:
        starts.setdefault(end - start, []).append(start)
    spans: list[tuple[int, int]] = []
    at = 0
    for start, end in runs:
        same = starts[end - start]
        following = bisect_left(same, end)
        if start >= at and following < len(same):
            at = same[following] + (end - start)
            spans.append((start, at))
    return spans


_WEIGHTS = {"<": 4, ">": 4, "&": 5, "@": 2}


def _weight(text: str) -> int:
    """An upper bound of how long the text is in any form."""
    return len(text) + sum((weight - 1) * text.count(char) for char, weight in _WEIGHTS.items())
