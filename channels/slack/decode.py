"""Slack's mrkdwn in: names for ids, links as people read them, entities decoded.

Slack escapes `&`, `<` and `>` in what people type and puts its own tokens in angle brackets, so that every `<…>`
in a text is a token (docs.slack.dev, "Formatting message text").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"<([^<>]*)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
_LINK = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def mentioned(text: str) -> list[str]:
    """The user ids mentioned in the text, each once, in their order."""
    return list(dict.fromkeys(_USER.findall(text)))


def without_own_mention(text: str, own_id: str) -> str:
    """The text without the mention that calls us, where it stands at the start or at the end."""
    own = rf"<@{re.escape(own_id)}(?:\|[^<>]*)?>"
    text = re.sub(rf"^\s*(?:{own}[\s,:]*)+", "", text)
    return re.sub(rf"(?:\s*{own})+\s*$", "", text).strip()


def decode(text: str, names: Mapping[str, str]) -> str:
    """The text as a person sees it. `names` gives people's names by id; an unknown id stays as `@id`."""
    return unescape(_TOKEN.sub(lambda match: _token(match.group(1), names), text))


def unescape(text: str) -> str:
    return _ENTITY.sub(lambda match: _ENTITIES[match.group()], text)


def _token(inner: str, names: Mapping[str, str]) -> str:
    head, _, label = inner.partition("|")
    kind, ident = head[:1], head[1:]
    if kind == "@":
        return "@" + (names.get(ident) or label.lstrip("@") or ident)
    if kind == "#":
        return "#" + (label.lstrip("#") or names.get(ident) or ident)
    if kind == "!":
        return _special(ident, label)
    if not _LINK.match(head):
        return f"<{inner}>"
    return _link(head, label)


def _special(ident: str, label: str) -> str:
    name, _, _ = ident.partition("^")
    if name in ("date", "subteam"):
        return label or ("@group" if name == "subteam" else ident)
    return "@" + (name or label)


def _link(url: str, label: str) -> str:
    bare = url.removeprefix("mailto:").removeprefix("tel:")
    if not label or label == bare or url.endswith("//" + label):
        return bare
    return f"{label} ({bare})"
