"""pydantic's findings in the words of the person who wrote the file: what is wrong, what was given, the mend."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic_core import ErrorDetails

from bridge.settings import Settings, types_in

KeyPath = tuple[str | int, ...]

WANTED: Mapping[str, str] = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number",
    "int_type": "must be a number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a number that ends",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text, in quotes",
    "string_unicode": "must be a text in Unicode",
    "tuple_type": "must be a list, like [a, b]",
    "dict_type": "must be a block of keys",
    "model_type": "must be a block of keys",
    "model_attributes_type": "must be a block of keys",
}
"""pydantic's error types and what such a key takes; those with bounds are in BOUNDS."""

BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
}

KINDS = '"anthropic", "openai" or "offline"'

LONGEST_SHOWN = 40


def told(details: ErrorDetails, path: KeyPath, *, show: bool) -> str:
    """One line on this finding. `show`: the value may be told (it did not come from a variable)."""
    kind = details["type"]
    context = details.get("ctx", {})
    match kind:
        case "missing":
            return "is missing; add it"
        case "string_too_short":
            return "must not be empty"
        case "extra_forbidden":
            return _unknown_key(path)
        case "value_error":
            return str(context["error"])
        case "union_tag_not_found":
            return f"is missing; write {KINDS}"
        case "union_tag_invalid":
            wanted = f"must be {KINDS}"
        case "literal_error":
            wanted = "must be " + str(context["expected"]).replace("'", '"')
        case "too_long":
            return f"has too many entries; at most {context['max_length']}"
        case _ if kind in BOUNDS:
            key, words = BOUNDS[kind]
            wanted = words.format(_number(context[key]))
        case _:
            wanted = WANTED.get(kind) or details["msg"].replace("Input should be", "must be")
    value = details["input"].get("kind") if kind == "union_tag_invalid" else details["input"]
    return wanted + _given(value, show=show and not is_secret(path))


def key_path(loc: Iterable[str | int], kind: str, data: object) -> KeyPath:
    """pydantic's place without the names of union members that it puts between the keys."""
    path: list[str | int] = []
    at: object = data
    parts = list(loc)
    for index, part in enumerate(parts):
        if isinstance(at, dict) and (part in at or (kind == "missing" and index == len(parts) - 1)):
            path.append(part)
            at = at.get(part)
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            path.append(part)
            at = at[part]
    return (*path, "kind") if kind.startswith("union_tag") else tuple(path)


def is_secret(path: KeyPath) -> bool:
    """Whether the key at this path takes a secret, so that nothing of its value may be told."""
    return any(SecretStr in types_in(annotation) for annotation in _annotations_at(path))


def _annotations_at(path: KeyPath) -> list[object]:
    at: list[object] = [Settings]
    for part in path:
        at = [inner for annotation in at for inner in _inside(annotation, part)]
    return at


def _inside(annotation: object, part: str | int) -> Iterator[object]:
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        for member in get_args(annotation):
            yield from _inside(member, part)
    elif origin in (dict, tuple):
        yield get_args(annotation)[1 if origin is dict else 0]
    elif _is_model(annotation) and (field := annotation.model_fields.get(str(part))) is not None:
        yield field.annotation


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _unknown_key(path: KeyPath) -> str:
    around = (kind for annotation in _annotations_at(path[:-1]) for kind in types_in(annotation))
    known = sorted({name for model in around if _is_model(model) for name in model.model_fields})
    if path[-1] in known:
        return "this kind has no such key; take it out"
    if near := nearest(str(path[-1]), known):
        return f'unknown key; did you mean "{near}"?'
    return f"unknown key; known here: {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one was probably meant to be."""
    near = difflib.get_close_matches(name[:100], list(known), 1, 0.5)
    return near[0] if near else None


def shown(text: object) -> str:
    """On one line, and without codes that a terminal would obey."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def _number(bound: object) -> str:
    return f"{bound:.12g}" if isinstance(bound, float) else str(bound)


def _given(value: object, *, show: bool) -> str:
    """What stands there, told so that it is recognised; a long text only by its start."""
    match value:
        case list() | tuple():
            words = "a list"
        case dict():
            words = "a block of keys"
        case _ if not show:
            return ""
        case None | bool() | int() | float():
            words = json.dumps(value)
        case str() if len(value) > LONGEST_SHOWN:
            words = f'"{value[:LONGEST_SHOWN]}…"'
        case _:
            words = f'"{value}"'
    return f"; {words} was given"
