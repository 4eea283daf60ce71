"""The body of an error answer, whatever its shape: its parts, the codes in it, and what it says (§5.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping


def layers_of(body: object) -> Iterator[object]:
    """The parts of an error's body, from the outside in: lists unpacked, {"error": …} opened, and what a
    gateway passes on of the provider behind it (metadata.raw)."""
    if isinstance(body, list):
        for item in body[:3]:
            yield from layers_of(item)
    elif isinstance(body, str):
        yield body
        if body.lstrip().startswith(("{", "[")):
            try:
                yield from layers_of(json.loads(body))
            except (ValueError, RecursionError):
                return
    elif isinstance(body, Mapping):
        yield body
        for key in ("error", "base_resp", "innererror", "metadata", "raw", "details", "detail"):
            if body.get(key):
                yield from layers_of(body[key])


def codes_of(error: BaseException, layers: list[object]) -> Iterator[str | int]:
    """Structured codes, the most telling first: codes before statuses before types."""
    attributes = (getattr(error, name, None) for name in ("error_code", "code"))
    yield from (code for code in attributes if isinstance(code, str) and code)
    for keys in (("error_code", "code", "status_code"), ("status", "reason"), ("type",)):
        for layer in layers:
            for key in keys:
                code = layer.get(key) if isinstance(layer, Mapping) else None
                if isinstance(code, str | int) and not isinstance(code, bool) and code and code != "error":
                    yield code
    kind = getattr(error, "type", None)
    if isinstance(kind, str) and kind:
        yield kind


def message_of(layer: object) -> str:
    """What this part of a body says in words; empty where it says nothing."""
    if isinstance(layer, str):
        return layer
    if not isinstance(layer, Mapping):
        return ""
    texts = (layer.get(key) for key in ("message", "status_msg", "msg", "detail"))
    return next((text for text in texts if isinstance(text, str) and text), "")
