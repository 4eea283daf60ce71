"""Reading the config file: every mistake at once, each on one line with file:line, the key and the mend."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from bridge.errors import ConfigError
from bridge.settings import Settings

DEFAULT_FILE = Path("config.yaml")

PLAIN = {
    "missing": "is missing; add it",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text; put it in quotes",
    "tuple_type": "must be a list, like [a, b]",
    "list_type": "must be a list, like [a, b]",
    "dict_type": "must be a block of keys",
    "model_type": "must be a block of keys",
    "model_attributes_type": "must be a block of keys",
    "union_tag_not_found": 'needs a kind: "anthropic", "openai" or "offline"',
    "none_required": "must be empty",
}
"""pydantic's error types in plain words; the others are told in pydantic's own."""

KeyPath = tuple[str | int, ...]
Problem = tuple[int, KeyPath, str]


def load_settings(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings in this file; None: ./config.yaml if it is there, else the defaults (console, offline model).

    Raises ConfigError with every mistake in it.
    """
    if path is None:
        if not DEFAULT_FILE.exists():
            return Settings()
        path = DEFAULT_FILE
    return parse_settings(_text_of(path), str(path), environment)


def parse_settings(text: str, name: str, environment: Mapping[str, str]) -> Settings:
    """As `load_settings`, of a text; `name` is what mistakes are reported under."""
    from bridge import _yaml  # YAML is read only where there is a file

    document = _yaml.read(text, environment)
    problems = list(document.problems)
    data = {} if document.data is None else document.data
    settings: Settings | None = None
    if not isinstance(data, dict):
        problems.append((1, (), "must be a block of keys at its top"))
    elif document.data is not None or not problems:
        told = {path for _, path, _ in problems}
        try:
            settings = Settings.model_validate(data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                key_path = _key_path(details["loc"], data)
                if key_path not in told:
                    problems.append((document.line(key_path), key_path, _plain(details, key_path)))
        problems += [(document.line(path), path, what) for path, what in _cross_checks(data)]
    if problems or settings is None:
        raise ConfigError([_line(name, problem) for problem in sorted(problems, key=lambda found: found[0])])
    return settings


def json_schema() -> dict[str, object]:
    """The config's JSON schema, for editors."""
    return Settings.model_json_schema()


def secrets_of(settings: BaseModel) -> set[str]:
    """Every secret in the settings, so that the log can leave them out."""
    found: set[str] = set()
    values: list[object] = [settings]
    while values:
        value = values.pop()
        if isinstance(value, SecretStr):
            found.add(value.get_secret_value())
        elif isinstance(value, BaseModel):
            values.extend(getattr(value, name) for name in type(value).model_fields)
        elif isinstance(value, dict):
            values.extend(value.values())
    return {secret for secret in found if len(secret) >= 6}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{path}: there is no such file; copy config.example.yaml to it"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: this is a folder; name the file in it"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: this is no UTF-8 text; save it as UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: can't be read ({error.strerror}); mend its permissions"]) from None


def _line(name: str, problem: Problem) -> str:
    line, path, what = problem
    key = ".".join(str(part) for part in path)
    return f"{name}:{line}: {key}: {what}" if key else f"{name}:{line}: {what}"


def _key_path(loc: Iterable[str | int], data: object) -> KeyPath:
    """pydantic's place without the names of union members that it puts between the keys."""
    parts = list(loc)
    path: list[str | int] = []
    at: object = data
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if isinstance(at, dict) and (part in at or (last and not _is_member_name(part))):
            path.append(part)
            at = at.get(part)
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            path.append(part)
            at = at[part]
    return tuple(path)


def _is_member_name(part: str | int) -> bool:
    return not isinstance(part, str) or part in ("anthropic", "openai", "offline") or not part.isidentifier()


def _plain(details: ErrorDetails, path: KeyPath) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "value_error":
        return str(details["ctx"]["error"])
    if kind == "union_tag_invalid":
        return 'kind must be "anthropic", "openai" or "offline"'
    if kind in PLAIN:
        return PLAIN[kind]
    message = details["msg"].replace("Input should be", "must be")
    return f"{message[:1].lower()}{message[1:]}"


def _unknown_key(path: KeyPath) -> str:
    known = sorted({name for model in _models_at(path[:-1]) for name in model.model_fields})
    near = difflib.get_close_matches(str(path[-1]), known, 1, 0.5)
    if near and near[0] != path[-1]:
        return f'unknown key; did you mean "{near[0]}"?'
    if near:
        return "this kind has no such key; take it out"
    return f"unknown key; known here: {', '.join(known)}"


def _models_at(path: KeyPath) -> list[type[BaseModel]]:
    """The models that the block at this path may be."""
    at: list[type[BaseModel]] = [Settings]
    for part in path:
        annotations = [model.model_fields[str(part)].annotation for model in at if str(part) in model.model_fields]
        if not annotations and at != [Settings]:
            continue  # a name that the user chose, as under providers
        at = [model for annotation in annotations for model in _models_in(annotation)]
    return at


def _models_in(annotation: Any) -> list[type[BaseModel]]:  # annotations are of any kind
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, types.UnionType, dict, tuple):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []


def _cross_checks(data: dict[str, object]) -> list[tuple[KeyPath, str]]:
    """What no single key shows: names that must fit, and what is not built yet."""
    found: list[tuple[KeyPath, str]] = []
    providers = _block(data, "providers")
    names = [*providers, "offline"]
    agent = _block(data, "agent")
    provider = agent.get("provider")
    if provider is None and len(providers) > 1:
        several = ", ".join(map(str, providers))
        found.append((("agent", "provider"), f"is missing; say which of your providers answers: {several}"))
    if isinstance(provider, str) and provider not in names:
        found.append((("agent", "provider"), _unknown_provider(provider, names)))
    fallback = agent.get("fallback")
    for index, name in enumerate(fallback if isinstance(fallback, list) else []):
        if name not in names:
            found.append((("agent", "fallback", index), _unknown_provider(str(name), names)))
    channels = data.get("channels")
    if isinstance(channels, dict):
        for name, section in channels.items():
            if section is None:
                found.append((("channels", name), "is empty; write {} behind it to switch it on, or take it out"))
        if not channels:
            found.append((("channels",), "names no channel; switch one on, for instance console: {}"))
    found += _not_yet(data)
    return found


def _not_yet(data: dict[str, object]) -> list[tuple[KeyPath, str]]:
    """Keys of the contract whose values ask for what this version does not do."""
    from bridge.settings import NOT_YET

    asks = (
        (("channels", "telegram", "mode"), "webhook"),
        (("channels", "slack", "mode"), "http"),
    )
    found: list[tuple[KeyPath, str]] = [
        (path, f'"{value}" {NOT_YET}') for path, value in asks if _at(data, path) == value
    ]
    if _at(data, ("health", "port")) is not None:
        found.append((("health", "port"), NOT_YET))
    return found


def _block(data: Mapping[str, object], key: str) -> dict[str, object]:
    block = data.get(key)
    return block if isinstance(block, dict) else {}


def _at(data: object, path: Iterable[str]) -> object:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _unknown_provider(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        return f'there is no provider "{name}"; did you mean "{near[0]}"?'
    return f'there is no provider "{name}"; known: {", ".join(names)}'
