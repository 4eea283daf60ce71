"""What Slack refuses in a message, and what in it would ping people or act as a token (docs.slack.dev, 2026)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

Json = Mapping[str, object]

TEXT_LIMIT = 40_000
UPDATE_TEXT_LIMIT = 4_000
BLOCKS_LIMIT = 50
SECTION_LIMIT = 3_000
MARKDOWN_LIMIT = 12_000
BLOCKS_TOTAL = 13_200  # measured by others; not in the documents

_TOKEN = re.compile(r"<(?:[!@#][^<>\s]*|[a-z][a-z0-9+.-]*:[^<>\s][^<>]*)>", re.IGNORECASE)
_PING = re.compile(r"<(?:!(?:here|channel|everyone|subteam)\b[^<>]*|@[UW][A-Z0-9]+[^<>]*)>", re.IGNORECASE)
_GROUP = re.compile(r"(?<!\w)@(?:here|channel|everyone)\b", re.IGNORECASE)
_FORBIDDEN = re.compile(r"&(?!(?:amp|lt|gt);)")


def refusal(body: Json, *, update: bool = False) -> str | None:
    """The error code that Slack answers to chat.postMessage (chat.update) with this body; None: it is taken."""
    text, blocks = body.get("text"), body.get("blocks")
    if isinstance(blocks, str):
        blocks = json.loads(blocks)
    if not text and not blocks and not body.get("markdown_text"):
        return "no_text"
    if isinstance(text, str) and not blocks:
        return "msg_too_long" if len(text) > (UPDATE_TEXT_LIMIT if update else TEXT_LIMIT) else None
    if blocks is None:
        return "msg_too_long" if len(str(body.get("markdown_text"))) > MARKDOWN_LIMIT else None
    return _refused_blocks(blocks)


def _refused_blocks(blocks: object) -> str | None:
    if not isinstance(blocks, list) or len(blocks) > BLOCKS_LIMIT:
        return "invalid_blocks"
    if not all(isinstance(block, dict) and _CHECKS.get(str(block.get("type")), _no)(block) for block in blocks):
        return "invalid_blocks"
    markdown = sum(len(block["text"]) for block in blocks if block["type"] == "markdown")
    if markdown > MARKDOWN_LIMIT:
        return "msg_too_long"
    return "msg_blocks_too_long" if sum(map(_shown, blocks)) > BLOCKS_TOTAL else None


def _shown(block: Json) -> int:
    return sum(len(text) for text in texts_of([block]))


def _no(_block: Json) -> bool:
    return False


def _markdown(block: Json) -> bool:
    return isinstance(block.get("text"), str) and bool(str(block["text"]).strip())


def _text_object(value: object, limit: int) -> bool:
    return (
        isinstance(value, dict)
        and value.get("type") in ("mrkdwn", "plain_text")
        and isinstance(value.get("text"), str)
        and 0 < len(value["text"]) <= limit
    )


def _section(block: Json) -> bool:
    return _text_object(block.get("text"), SECTION_LIMIT)


def _context(block: Json) -> bool:
    elements = block.get("elements")
    return isinstance(elements, list) and 0 < len(elements) <= 10 and all(_text_object(e, 3_000) for e in elements)


def _actions(block: Json) -> bool:
    elements = block.get("elements")
    return isinstance(elements, list) and 0 < len(elements) <= 25 and all(map(_button, elements))


def _button(element: object) -> bool:
    return (
        isinstance(element, dict)
        and element.get("type") == "button"
        and _text_object(element.get("text"), 75)
        and len(str(element.get("action_id", ""))) <= 255
        and len(str(element.get("value", ""))) <= 2_000
    )


_CHECKS = {"markdown": _markdown, "section": _section, "context": _context, "actions": _actions}


def texts_of(blocks: Sequence[object]) -> list[str]:
    """Every text in the blocks, in order."""
    found: list[str] = []
    for block in blocks:
        if isinstance(block, dict):
            for key in ("text", "elements"):
                value = block.get(key)
                if isinstance(value, str):
                    found.append(value)
                elif isinstance(value, dict):
                    found.extend(texts_of([value]))
                elif isinstance(value, list):
                    found.extend(texts_of(value))
    return found


def all_texts(body: Json) -> list[str]:
    blocks = body.get("blocks")
    own = [str(body[key]) for key in ("text", "markdown_text") if body.get(key)]
    return own + (texts_of(blocks) if isinstance(blocks, list) else [])


def pings(body: Json) -> list[str]:
    """What in the message would call people."""
    return [found for text in all_texts(body) for found in _PING.findall(text)]


def group_words(body: Json) -> list[str]:
    """@here and its like outside of code, which some clients turn into a call."""
    return [found for text in all_texts(body) for found in _GROUP.findall(text)]


def tokens(text: str) -> list[str]:
    """Slack's own tokens in a text: mentions, channels, links."""
    return _TOKEN.findall(text)


def badly_escaped(text: str) -> bool:
    """Whether a mrkdwn text has a bare `&`, or a `<` or `>` that is no token's."""
    rest = _TOKEN.sub("", text)
    rest = re.sub(r"^(?:\s*> ?)+", "", rest, flags=re.MULTILINE)
    return "<" in rest or ">" in rest or bool(_FORBIDDEN.search(rest))
