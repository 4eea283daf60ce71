"""Arithmetic on a text, exact where it can be: a small parser that can't run code, hang or eat memory.

Whole numbers and decimals are fractions (0.1 + 0.2 is 0.3, (1/3) * 3 is 1); roots, logarithms and angles are
floats. Length and nesting are bounded here, the size of each value in agent.tools.numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.errors import ToolError
from agent.tools.numbers import (
    CONSTANTS,
    FUNCTIONS,
    PRODUCTS,
    Number,
    bounded,
    factorial,
    literal,
    power,
    show,
    too_large,
)

MAX_CHARS = 500
MAX_DEPTH = 40

_READ_AS = str.maketrans(
    {"×": "*", "·": "*", "∙": "*", "÷": "/", "−": "-", "–": "-", "²": "**2", "³": "**3", "π": "pi", "^": "**"}
    | {chr(0xFF01 + offset): chr(0x21 + offset) for offset in range(94)}  # the full-width forms
    | {"\u3000": " "}
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<operator>\*\*|//|[-+*/%!(),])|(?P<end>$))",
    re.ASCII,
)
_GROUPED = re.compile(r"\s*(\d{1,3}(?:,\d{3})+(?:\.\d+)?)(?![\w.,])", re.ASCII)


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises ToolError for anything that is not one, or is too large.

    Besides Python's operators: `^` is a power, `5!` a factorial, `15%` a part of a hundred (`15% of 80` is 12,
    `200 + 10%` is 220), `1,000` a thousand; a `%` between two values is the remainder.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed")
    text = expression.strip().translate(_READ_AS).rstrip("=? ")
    parser = _Parser(_tokens(text))
    try:
        value = parser.sum()
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        too_large()
    if parser.token.kind != "end":
        raise ToolError(f"can't read the expression at {parser.token.text!r} (character {parser.token.at + 1})")
    return value


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    calls: list[bool] = []  # for each open parenthesis, whether it holds a function's arguments
    at = 0
    while True:
        grouped = None if any(calls) else _GROUPED.match(text, at)
        match = grouped or _TOKEN.match(text, at)
        if match is None:
            raise ToolError(f"can't read the expression at {text[at:].strip()[:20]!r} (character {at + 1})")
        kind = "number" if grouped else str(match.lastgroup)
        word = match[1].replace(",", "") if grouped else match[kind]
        if word == "(":
            calls.append(bool(tokens) and tokens[-1].kind == "name")
        elif word == ")" and calls:
            calls.pop()
        tokens.append(_Token(kind, word, match.end() - len(match[0].lstrip())))
        if kind == "end":
            return tokens
        at = match.end()


class _Parser:
    """Recursive descent that evaluates as it reads; `token` is the next one. Used once."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._was_percent = False

    @property
    def token(self) -> _Token:
        return self._tokens[self._next]

    def sum(self) -> Number:
        value = self._product()
        all_percent = self._was_percent
        while operator := self._take("+", "-"):
            right = self._product()
            if self._was_percent and not all_percent:  # 200 + 10%, but not 50% + 50%
                right = bounded(value * right)
            all_percent = all_percent and self._was_percent
            value = bounded(value + right if operator == "+" else value - right)
        return value

    def _product(self) -> Number:
        value = self._signed()
        while operator := self._take("*", "/", "//", "%", "of"):
            right = self._signed()
            self._was_percent = False
            value = bounded(PRODUCTS[operator](value, right))
        return value

    def _signed(self) -> Number:
        self._deeper()
        if operator := self._take("+", "-"):
            value = self._signed()
            value = -value if operator == "-" else value
        else:
            value = self._power()
        self._depth -= 1
        return value

    def _power(self) -> Number:
        base = self._postfix()
        if self._take("**"):
            base = power(base, self._signed())
            self._was_percent = False
        return base

    def _postfix(self) -> Number:
        value = self._atom()
        self._was_percent = False
        while True:
            if self._take("!"):
                value = factorial(value)
            elif self.token.text == "%" and not self._starts_value(self._tokens[self._next + 1]):
                self._next += 1
                value = bounded(value / 100)
                self._was_percent = True
            else:
                return value

    def _atom(self) -> Number:
        token = self.token
        if token.kind == "number":
            self._next += 1
            return literal(token.text)
        if token.kind == "name":
            self._next += 1
            return self._named(token.text.lower())
        if self._take("("):
            value = self.sum()
            self._close()
            self._was_percent = False
            return value
        if token.kind == "end":
            raise ToolError("the expression ends where a value is expected")
        raise ToolError(f"a value is expected at {token.text!r} (character {token.at + 1})")

    def _named(self, name: str) -> Number:
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name not in FUNCTIONS:
            known = ", ".join([*FUNCTIONS, *CONSTANTS])
            raise ToolError(f"unknown name {name[:40]!r}; known are: {known}")
        if not self._take("("):
            raise ToolError(f"{name} needs its value in parentheses: {name}(2)")
        function = FUNCTIONS[name]
        arguments = [self.sum()]
        while self._take(","):
            arguments.append(self.sum())
        self._close()
        if not function.least <= len(arguments) <= function.most:
            raise ToolError(f"{name} takes {function.least} to {function.most} values, got {len(arguments)}")
        try:
            return bounded(function.call(*arguments))
        except ValueError:
            raise ToolError(f"{name} is not defined for {', '.join(show(a)[0][:40] for a in arguments)}") from None

    def _take(self, *texts: str) -> str | None:
        text = self.token.text.lower()
        if text not in texts:
            return None
        self._next += 1
        return text

    def _close(self) -> None:
        if not self._take(")"):
            raise ToolError("a parenthesis is not closed")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolError(f"the expression is nested more than {MAX_DEPTH} deep")

    @staticmethod
    def _starts_value(token: _Token) -> bool:
        return token.kind == "number" or token.text == "(" or (token.kind == "name" and token.text.lower() != "of")
