from __future__ import annotations

import asyncio
import threading
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agent.messages import JsonObject
from agent.ports import Tool, ToolContext
from agent.tools.function import ArgumentsError, FunctionTool, function_tool

HERE = ToolContext(session_id="console/local", request_id="r1", time_zone="Asia/Tokyo")


class Colour(Enum):
    RED = "red"


def dice(sides: Annotated[int, Field(ge=2)], times: int = 1, colour: Colour = Colour.RED) -> str:
    """Rolls dice
    and gives the sum.

    Text that is for programmers.

    sides: how many sides each has,
        at least two
    times: how often
    """
    return f"{sides}x{times} {colour.value}"


@pytest.fixture
def tool() -> FunctionTool:
    return function_tool(dice, effects=True)


def test_signature_and_docstring_become_the_spec(tool: FunctionTool) -> None:
    as_port: Tool = tool
    assert as_port.effects
    assert tool.spec.name == "dice"
    assert tool.spec.description == "Rolls dice and gives the sum."
    assert tool.spec.input_schema["required"] == ["sides"]
    assert tool.spec.input_schema["additionalProperties"] is False
    properties = tool.spec.input_schema["properties"]
    assert isinstance(properties, dict)
    assert properties["sides"] == {
        "type": "integer",
        "minimum": 2,
        "description": "how many sides each has, at least two",
    }
    assert properties["times"] == {"type": "integer", "default": 1, "description": "how often"}
    assert "title" not in tool.spec.input_schema


async def test_a_call_fills_in_defaults(tool: FunctionTool) -> None:
    assert await tool.run({"sides": 6}, HERE) == "6x1 red"


async def test_values_that_json_has_no_type_for_are_read_from_text() -> None:
    def until(day: date, colour: Colour) -> str:
        """Counts."""
        return f"{day.year} {colour.name}"

    assert await function_tool(until).run({"day": "2026-12-24", "colour": "red"}, HERE) == "2026 RED"


@pytest.mark.parametrize(
    ("args", "text", "missing"),
    [
        ({}, "lacks the required field sides (integer: how many sides each has, at least two)", ("sides",)),
        ({"sides": "6"}, 'sides: expected a valid integer, got "6"', ()),
        ({"sides": 1}, "sides: expected greater than or equal to 2, got 1", ()),
        ({"sides": 6, "side": 6}, "unknown field side; the fields are: sides, times, colour", ()),
        ({"sides": True}, "sides: expected a valid integer, got true", ()),
        ({"sides": None}, "sides: expected a valid integer, got null", ()),
        ({"sides": 6, "colour": "blue"}, "colour: expected 'red', got \"blue\"", ()),
        ({"sides": "x" * 1000}, 'sides: expected a valid integer, got "' + "x" * 58 + "…", ()),
    ],
)
async def test_a_misfit_says_which_field_and_what_was_expected(
    tool: FunctionTool, args: JsonObject, text: str, missing: tuple[str, ...]
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        await tool.run(args, HERE)
    assert str(caught.value) == text
    assert caught.value.missing == missing


async def test_every_mistake_is_named_at_once(tool: FunctionTool) -> None:
    with pytest.raises(ArgumentsError) as caught:
        await tool.run({"times": "x", "more": 1}, HERE)
    assert len(caught.value.problems) == 3


async def test_the_context_is_injected_and_not_in_the_schema() -> None:
    async def where(context: ToolContext, exact: bool = False) -> str:
        """Says where."""
        return f"{context.time_zone} {exact}"

    tool = function_tool(where, name="place")
    assert tool.spec.name == "place"
    assert tool.spec.input_schema["properties"] == {"exact": {"type": "boolean", "default": False}}
    assert await tool.run({"exact": True}, HERE) == "Asia/Tokyo True"
    with pytest.raises(ArgumentsError, match="unknown field context"):
        await tool.run({"context": {}}, HERE)


async def test_an_async_function_runs_on_the_loop_and_a_plain_one_beside_it() -> None:
    threads: list[int] = []

    async def on_loop() -> str:
        """A."""
        threads.append(threading.get_ident())
        return ""

    def beside() -> str:
        """B."""
        threads.append(threading.get_ident())
        return ""

    await function_tool(on_loop).run({}, HERE)
    await function_tool(beside).run({}, HERE)
    assert threads[0] == threading.get_ident()
    assert threads[1] != threads[0]


async def test_a_call_can_be_cancelled() -> None:
    started = asyncio.Event()

    async def forever() -> str:
        """Never ends."""
        started.set()
        await asyncio.Event().wait()
        return ""

    running = asyncio.create_task(function_tool(forever).run({}, HERE))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_names_that_pydantic_uses_itself_are_allowed_as_parameters() -> None:
    def odd(copy: str, json: int, model_dump: bool = False, _inner: Literal["a"] = "a") -> str:
        """Odd.

        :param copy: what to copy
        """
        return f"{copy}{json}{model_dump}{_inner}"

    tool = function_tool(odd)
    assert asyncio.run(_run(tool, {"copy": "x", "json": 1})) == "x1Falsea"
    properties = tool.spec.input_schema["properties"]
    assert isinstance(properties, dict)
    assert properties["copy"] == {"type": "string", "description": "what to copy"}


async def _run(tool: Tool, args: JsonObject) -> object:
    return await tool.run(args, HERE)


def test_a_function_a_model_could_not_call_is_refused() -> None:
    def silent(value: int) -> str:
        return str(value)

    def bare(value) -> str:  # type: ignore[no-untyped-def]  # what is refused here
        """Says."""
        return str(value)

    def many(*values: int) -> str:
        """Says."""
        return str(values)

    for function, why in ((silent, "docstring"), (bare, "annotation"), (many, "by name")):
        with pytest.raises(TypeError, match=why):
            function_tool(function)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["sides", "times", "colour"]) | st.text(), _json, max_size=4))
def test_any_arguments_either_fit_or_get_a_line_the_model_can_act_on(args: JsonObject) -> None:
    tool = function_tool(dice)
    values: dict[str, object] = {}
    refused: ArgumentsError | None = None
    try:
        values = tool.validate(args)
    except ArgumentsError as error:
        refused = error
    if refused is not None:
        assert 0 < len(str(refused)) < 5000
        assert ("sides" not in args) == ("sides" in refused.missing)
    else:
        assert isinstance(values["sides"], int)
        assert values["sides"] >= 2
        assert set(values) == {"sides", "times", "colour"}
