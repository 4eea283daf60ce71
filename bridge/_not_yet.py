"""What the config's contract has and this version does not do. A line goes when its feature comes."""

from __future__ import annotations

from collections.abc import Callable

NOT_YET = "is not in this version yet; take it out"

Path = tuple[str, ...]


def _is_on(value: object) -> bool:
    return value is not None and str(value).lower() not in ("false", "no", "off", "0", "f", "n", "")


def _is_set(value: object) -> bool:
    return value not in (None, {}, "")


ASKS: tuple[tuple[Path, Callable[[object], bool]], ...] = (
    (("tools", "memory", "enabled"), _is_on),
    (("tools", "reminders", "enabled"), _is_on),
    (("tools", "web_fetch", "enabled"), _is_on),
    (("tools", "mcp"), _is_set),
    (("channels", "slack", "mode"), lambda value: value == "http"),
    (("channels", "slack", "http"), _is_set),
)
"""Keys, and which of their values ask for more than there is."""


def not_yet(data: object) -> list[tuple[Path, str]]:
    """What this config, as plain values, asks for in vain."""
    found = ((path, _at(data, path)) for path, _ in ASKS)
    return [
        (path, f'"{value}" {NOT_YET}' if path[-1] == "mode" else NOT_YET)
        for (path, value), (_, asks) in zip(found, ASKS, strict=True)
        if asks(value)
    ]


def _at(data: object, path: Path) -> object:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data
