"""Terminal safety: text from a model or a web page must not move the cursor, set titles or hide what it says."""

from __future__ import annotations

import re

# All control characters but newline and tab, and the two that turn the direction of what follows.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202d\u202e\u2028\u2029]")
_FIRST_PICTURE = 0x2400


def clean(text: str) -> str:
    """The text with control characters made visible (ESC as ␛) and line ends as newlines."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n").replace("\r", "\n"))


def clean_line(text: str) -> str:
    """As `clean`, on one line."""
    return " ".join(clean(text).split())


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(_FIRST_PICTURE + code)
    return "␡" if code == 0x7F else "�"
