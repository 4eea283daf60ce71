"""Tool-call deltas, cut and marked in all the ways that servers have, make up the calls that were meant."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from agent.models._openai_answer import OpenAIAnswer
from tests.servers.model_replies import Raw

calls_made = st.lists(
    st.tuples(st.sampled_from("fg"), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)), max_size=3
)


def answer_of(deltas: list[Raw]) -> OpenAIAnswer:
    """What the adapter makes of these tool-call deltas, each in a chunk."""
    answer = OpenAIAnswer()
    for choice in (*({"delta": {"tool_calls": [delta]}} for delta in deltas), {"finish_reason": "stop"}):
        answer.feed({"choices": [choice]})
    return answer


def pieces_of(data: st.DataObject, text: str) -> Iterator[str]:
    """The text in pieces, the first of which is not empty."""
    start = 0
    while start < len(text):
        end = data.draw(st.integers(start + 1, len(text)))
        yield text[start:end]
        start = end


@given(calls_made, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_calls_come_out_as_meant(
    calls: list[tuple[str, dict[str, int]]], numbered: bool, identified: bool, repeated: bool, data: st.DataObject
) -> None:
    """With or without an index, with or without ids, with id and name in the first delta or in each."""
    deltas: list[Raw] = []
    for number, (name, arguments) in enumerate(calls):
        for part, piece in enumerate(pieces_of(data, json.dumps(arguments))):
            delta: Raw = {"function": {"arguments": piece}}
            if part == 0 or repeated:
                delta["function"]["name"] = name
                delta |= {"id": f"c{number}"} if identified else {}
            deltas.append(delta | ({"index": number} if numbered else {}))
    result = answer_of(deltas).result()
    made = [block for block in result.content if block["type"] == "tool_use"]
    assert [(block["name"], block["input"]) for block in made] == calls
    assert len({block["id"] for block in made}) == len(calls)
    assert result.broken_inputs == {}


@given(calls_made, st.permutations(range(6)))
def test_interleaved_calls_come_out_in_the_order_in_which_they_started(
    calls: list[tuple[str, dict[str, int]]], order: list[int]
) -> None:
    """As OpenAI sends parallel calls: a start for each, then arguments by index."""
    starts: list[Raw] = [
        {"index": i, "id": f"c{i}", "type": "function", "function": {"name": name, "arguments": ""}}
        for i, (name, _) in enumerate(calls)
    ]
    texts = [json.dumps(arguments) for _, arguments in calls]
    halves = {i: iter((text[: len(text) // 2], text[len(text) // 2 :])) for i, text in enumerate(texts)}
    rest: list[Raw] = [
        {"index": i, "function": {"arguments": next(halves[i])}}
        for i in (position % 3 for position in order)
        if i < len(calls)
    ]
    result = answer_of([*starts, *rest]).result()
    made = [block for block in result.content if block["type"] == "tool_use"]
    assert [(block["id"], block["name"], block["input"]) for block in made] == [
        (f"c{i}", name, arguments) for i, (name, arguments) in enumerate(calls)
    ]
