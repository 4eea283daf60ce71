"""Reading what Slack sent: JSON objects whose shape is Slack's promise, not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = Mapping[str, object]
Body: TypeAlias = dict[str, object]

_EMPTY: Json = {}


def text_at(source: Json, *path: str) -> str:
    """The text at the end of the path of keys; "" where anything on the way is missing or of another kind."""
    value = _at(source, path)
    return value if isinstance(value, str) else ""


def map_at(source: Json, *path: str) -> Json:
    value = _at(source, path)
    return value if isinstance(value, Mapping) else _EMPTY


def maps_at(source: Json, *path: str) -> list[Json]:
    """The JSON objects in the list at the end of the path; whatever else is in it is left out."""
    value = _at(source, path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def flag_at(source: Json, *path: str) -> bool:
    return _at(source, path) is True


def number_at(source: Json, *path: str) -> int:
    value = _at(source, path)
    return value if isinstance(value, int) else 0


def _at(source: Json, path: tuple[str, ...]) -> object:
    value: object = source
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
