"""YAML with the line of every value, environment variables filled in, and mistakes gathered instead of raised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import ReaderError

Path = tuple[str | int, ...]

MOST_VALUES = 100_000
"""Values in one file with its aliases unfolded; a few aliases of aliases would else fill the memory."""

_VARIABLE = re.compile(
    r"""
    \$\$\{                                                      # a plain ${
    | \$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}
    | \$\{                                                      # neither
    """,
    re.VERBOSE,
)

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset(f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value"))
_PLAIN_TAGS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float"))
_BLOCK_TAGS = frozenset(f"{_TAG}{name}" for name in ("map", "seq"))

_SYNTAX = (
    (r"found character '\\t'", "a tab stands here; YAML is indented with blanks only", False),
    (r"found character", "a text can't start with this character; put it in quotes", False),
    (
        r"mapping values are not allowed",
        'no ":" can stand here; is one missing above, the indentation off, or a text without its quotes?',
        False,
    ),
    (r"expected <block end>", "the indentation does not fit the lines above", False),
    (r"could not find expected ':'", 'this is no "key: value"; a ":" with a blank after it is missing', True),
    (r"expected ',' or '\]'", "in this [ ] the end, a comma, or the quotes of a ${NAME} are missing", True),
    (r"expected ',' or '\}'", "in this { } the end, a comma, or the quotes of a ${NAME} are missing", True),
    (r"found unexpected end of stream", "the quote that opens here is not closed", True),
    (r"found undefined alias|expected alphabetic", "a text that starts with * or & must stand in quotes", False),
    (r"second occurrence", "this &name stands here a second time; give each its own", False),
    (r"but found another document", 'a second document starts here; take the "---" out', False),
)
"""PyYAML's words, ours for them, and whether the line that matters is where the construct began."""


@dataclass(slots=True)
class Document:
    """`data` as plain values; `lines` has the line, from 1, of each value and key by its path; `filled` the paths
    of texts that hold environment variables. Of a file that is no YAML there is one problem and no data."""

    data: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[tuple[int, Path, str]] = field(default_factory=list)
    filled: set[Path] = field(default_factory=set)

    def line(self, path: Path) -> int:
        """The line of this path, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _TooMuch(Exception):
    """More than MOST_VALUES."""


def read(text: str, environment: Mapping[str, str]) -> Document:
    """Problems are YAML's own, keys that stand twice, and variables that are not set."""
    try:
        # Composing builds nodes only: no tag of the file can make an object.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _Reader(environment).document(node)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _broken(
            line, f"a character that YAML does not allow (U+{ord(text[error.position]):04X}); take it out"
        )
    except yaml.MarkedYAMLError as error:
        return _broken(*_told(error))
    except RecursionError:
        return _broken(1, "it is nested too deeply")
    except _TooMuch:
        return _broken(1, f"it unfolds to more than {MOST_VALUES:,} values; use fewer aliases")


def _broken(line: int, told: str) -> Document:
    return Document(problems=[(line, (), f"this is no YAML: {told}")])


def _told(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    problem = error.problem or "it can't be read"
    for pattern, words, at_start in _SYNTAX:
        if re.search(pattern, problem):
            return _line_of(error.context_mark if at_start else error.problem_mark), words
    return _line_of(error.problem_mark), problem


def _line_of(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark is not None else 1


class _Reader:
    """From nodes to one Document."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._found = Document()
        self._values = 0
        self._constructor = SafeConstructor()

    def document(self, node: yaml.Node | None) -> Document:
        if node is not None:
            self._found.data = self._value(node, ())
        return self._found

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _TooMuch
        self._found.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag not in _TEXT_TAGS | _PLAIN_TAGS | _BLOCK_TAGS:
            self._problem(node, path, "has a tag (!), which means nothing here; take it out")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node, merged in self._pairs(node, path):
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be a plain word")
                continue
            key = str(key_node.value)
            place = (*path, key)
            if key not in found:
                self._found.lines[place] = _line_of(key_node.start_mark)
                found[key] = self._value(value_node, place)
            elif not merged:
                first = self._found.lines[place]
                self._problem(key_node, place, f"stands here a second time, after line {first}; keep one")
        return found

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """The keys and values; after the mapping's own those that a `<<` merges in, which never win."""
        merges: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                many = isinstance(value_node, yaml.SequenceNode)
                merges.extend(value_node.value if many else [value_node])
            else:
                yield key_node, value_node, False
        for merge in merges:
            if isinstance(merge, yaml.MappingNode):
                yield from ((key, value, True) for key, value, _ in self._pairs(merge, path))
            else:
                self._problem(merge, path, "<< takes a block of keys, such as *name")

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        """What the text stands for: null, a truth value, a number, or a text with its variables filled in."""
        if node.tag in _TEXT_TAGS:
            return self._filled(node, path)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, LookupError, OverflowError, yaml.YAMLError):
            # "0b_" and "!!bool x" pass for a number and a truth value until one looks closer.
            self._problem(node, path, "can't be read as what it looks like; put it in quotes")
            return None

    def _filled(self, node: yaml.Node, path: Path) -> str:
        def fill(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if name is None:
                if match[0] == "${":
                    told = "${ starts no ${NAME} or ${NAME:-default}; write $${ where ${ is meant"
                    self._problem(node, path, told)
                return "${"
            self._found.filled.add(path)
            value = self._environment.get(name, None if default is None else "")
            if value is None:
                mend = f"set it or write ${{{name}:-default}}"
                self._problem(node, path, f"environment variable {name} is not set; {mend}")
            return value or default or ""

        return _VARIABLE.sub(fill, node.value)

    def _problem(self, node: yaml.Node, path: Path, told: str) -> None:
        self._found.problems.append((_line_of(node.start_mark), path, told))
