"""A tool made from a typed function: its signature is the schema, its docstring the description.

    def dice(sides: Annotated[int, Field(ge=2)], times: int = 1) -> str:
        '''Rolls dice and gives the sum.

        sides: how many sides each has
        '''

    tool = function_tool(dice)

A parameter annotated `ToolContext` is filled in by the caller of the tool and is no part of the schema.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from agent.errors import ToolError
from agent.messages import JsonObject, ResultContent
from agent.ports import ToolContext, ToolSpec

ToolFunction = Callable[..., "ResultContent | Awaitable[ResultContent]"]

_SHOWN_INPUT_CHARS = 60
_SHOWN_PROBLEMS = 10
_FIELD = "arg_"  # before each field's name, so that a parameter may be called `copy` or `json`


class ArgumentsError(ToolError):
    """The arguments don't fit the tool's schema. `missing` are the required fields that were not given."""

    def __init__(self, problems: list[str], missing: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.missing = missing


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """See `function_tool`."""

    spec: ToolSpec
    effects: bool
    function: ToolFunction
    arguments: type[BaseModel]
    context_parameter: str | None

    async def run(self, args: JsonObject, context: ToolContext) -> ResultContent:
        """The function's result. Raises ArgumentsError, and what the function raises.

        A plain function runs in a thread, which can't be stopped: one that may take long should be async.
        """
        call = self.validate(args)
        if self.context_parameter is not None:
            call[self.context_parameter] = context
        if inspect.iscoroutinefunction(self.function):
            return await cast("Awaitable[ResultContent]", self.function(**call))
        return cast("ResultContent", await asyncio.to_thread(self.function, **call))

    def validate(self, args: JsonObject) -> dict[str, object]:
        """The arguments as the function takes them, defaults filled in. Raises ArgumentsError."""
        try:
            # Through JSON, since strict validation takes a date or an enum only from JSON.
            model = self.arguments.model_validate_json(json.dumps(args), strict=True)
        except ValidationError as error:
            raise _arguments_error(error, self.spec.input_schema) from None
        return {name.removeprefix(_FIELD): getattr(model, name) for name in self.arguments.model_fields}


def function_tool(fn: ToolFunction, *, effects: bool = False, name: str | None = None) -> FunctionTool:
    """A tool that calls `fn`. The docstring's first paragraph is the tool's description, and each later line
    `parameter: text` (also `:param parameter: text`) the description of a field.

    Raises TypeError when a parameter has no annotation or can't be given by name, or the docstring is missing.
    """
    tool_name = name or fn.__name__
    description, field_texts = _read_docstring(tool_name, inspect.getdoc(fn) or "")
    hints = get_type_hints(fn, include_extras=True)
    fields: dict[str, object] = {}
    context_parameter = None
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {tool_name}: parameter {parameter.name} can't be given by name")
        if parameter.name not in hints:
            raise TypeError(f"tool {tool_name}: parameter {parameter.name} has no annotation")
        if hints[parameter.name] is ToolContext:
            context_parameter = parameter.name
        else:
            fields[_FIELD + parameter.name] = _field(parameter, hints[parameter.name], field_texts)
    arguments = _arguments_model(tool_name, fields)
    spec = ToolSpec(tool_name, description, _schema(arguments))
    return FunctionTool(spec, effects, fn, arguments, context_parameter)


def _field(parameter: inspect.Parameter, hint: object, texts: Mapping[str, str]) -> tuple[object, object]:
    default = ... if parameter.default is parameter.empty else parameter.default
    text = texts.get(parameter.name)
    # A description that is None would hide one given in Annotated.
    if text is None:
        return hint, Field(default, alias=parameter.name)
    return hint, Field(default, alias=parameter.name, description=text)


def _arguments_model(tool_name: str, fields: dict[str, object]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    make = cast("Callable[..., type[BaseModel]]", create_model)  # its overloads can't take computed names
    return make(tool_name, __config__=config, **fields)


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes from the names: they say nothing and cost tokens."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def _schema(arguments: type[BaseModel]) -> JsonObject:
    schema = cast("JsonObject", arguments.model_json_schema(schema_generator=_Untitled))
    schema.pop("title", None)
    return schema


def _read_docstring(tool_name: str, doc: str) -> tuple[str, dict[str, str]]:
    first, _, rest = doc.strip().partition("\n\n")
    if not first:
        raise TypeError(f"tool {tool_name}: no docstring, so a model would not know what it is for")
    texts: dict[str, str] = {}
    current = None
    for line in rest.splitlines():
        if match := re.match(r"\s*(?::param\s+)?(\w+)\s*:\s+(\S.*)", line):
            current = match[1]
            texts[current] = match[2].strip()
        elif not line.strip():
            current = None
        elif current is not None:
            texts[current] += " " + line.strip()
    return " ".join(first.split()), texts


def _arguments_error(error: ValidationError, schema: JsonObject) -> ArgumentsError:
    details = error.errors(include_url=False, include_context=False)
    known = cast("dict[str, JsonObject]", schema.get("properties", {}))
    problems = [_problem(detail, known) for detail in details[:_SHOWN_PROBLEMS]]
    missing = tuple(_path(detail) for detail in details if detail["type"] == "missing")
    return ArgumentsError(problems, missing)


def _problem(detail: ErrorDetails, known: Mapping[str, JsonObject]) -> str:
    path = _path(detail)
    if detail["type"] == "missing":
        described = known.get(path, {})
        hints = [str(described[key]) for key in ("type", "description") if key in described]
        return f"lacks the required field {path}" + (f" ({': '.join(hints)})" if hints else "")
    if detail["type"] == "extra_forbidden":
        names = ", ".join(known) or "none"
        return f"unknown field {path}; the fields are: {names}"
    expected = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{path}: expected {expected}, got {_shown(detail['input'])}"


def _path(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"]) or "arguments"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_INPUT_CHARS else text[: _SHOWN_INPUT_CHARS - 1] + "…"
