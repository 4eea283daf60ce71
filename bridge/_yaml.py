"""YAML with the line of every value, environment variables filled in, and mistakes gathered instead of raised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

Path = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


@dataclass(slots=True)
class Document:
    """`data` as plain values; `lines` has the line, from 1, of each value and key by its path."""

    data: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, Path, str]] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of this path, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str, environment: Mapping[str, str]) -> Document:
    """Problems are YAML's own, keys that stand twice, and variables that are not set."""
    document = Document()
    try:
        # Composing builds nodes only: no tag of the file can make an object.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            document.data = _value(node, (), document, environment)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        told = getattr(error, "problem", None) or str(error).splitlines()[0]
        document.problems.append((mark.line + 1 if mark else 1, (), f"this is no YAML: {told}"))
    except RecursionError:
        document.problems.append((1, (), "this is nested too deeply"))
    return document


def _value(node: yaml.Node, path: Path, document: Document, environment: Mapping[str, str]) -> object:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document, environment)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), document, environment) for index, item in enumerate(node.value)]
    value = _scalar(node)
    return _filled(value, path, document, environment) if isinstance(value, str) else value


def _mapping(
    node: yaml.MappingNode, path: Path, document: Document, environment: Mapping[str, str]
) -> dict[str, object]:
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append((line, path, "a key must be a plain word"))
            continue
        key = str(key_node.value)
        if key in found:
            document.problems.append((line, (*path, key), "stands here a second time; keep one"))
            continue
        document.lines[(*path, key)] = line
        found[key] = _value(value_node, (*path, key), document, environment)
    return found


def _scalar(node: yaml.Node) -> object:
    """What the text stands for in YAML: null, a truth value, a number or a string."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(f"a value that can't be read: {error}") from error
    finally:
        loader.dispose()


def _filled(value: str, path: Path, document: Document, environment: Mapping[str, str]) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "${"
        if name in environment:
            return environment[name]
        if match["default"] is not None:
            return match["default"]
        mend = f"set it, or give a default: ${{{name}:-…}}"
        document.problems.append((document.line(path), path, f"environment variable {name} is not set; {mend}"))
        return ""

    return _VARIABLE.sub(fill, value)
