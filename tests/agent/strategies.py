"""Histories for properties: legal ones, damaged ones, and lists of any nonsense at all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

from hypothesis import strategies as st

from agent.messages import Block, JsonObject, JsonValue, Message, injected_text, injected_tool_result, text_block

texts = st.text(min_size=1, max_size=12).filter(lambda text: text.strip() != "")
json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
json_objects: st.SearchStrategy[JsonObject] = st.dictionaries(st.text(max_size=4), json_values, max_size=2)
images: st.SearchStrategy[Block] = st.just(
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
)
thinking: st.SearchStrategy[Block] = st.sampled_from(
    [
        cast("Block", {"type": "thinking", "thinking": "hm", "signature": "sig"}),
        cast("Block", {"type": "redacted_thinking", "data": "xyz"}),
    ]
).map(copy.deepcopy)
tool_names = st.sampled_from(["search", "read_file", "mcp-web"])


@st.composite
def user_queries(draw: st.DrawFn) -> Message:
    """What a person sends: plain text, or text and images, perhaps with the summary before it."""
    if draw(st.booleans()):
        return {"role": "user", "content": draw(texts)}
    blocks: list[Block] = [text_block(draw(texts))]
    blocks += draw(st.lists(images, max_size=1))
    blocks += [text_block(text) for text in draw(st.lists(texts, max_size=1))]
    if draw(st.booleans()):
        blocks.insert(0, injected_text("[Earlier conversation, 3 turns]\nasked: x"))
    return {"role": "user", "content": blocks}


@st.composite
def _results(draw: st.DrawFn, call_id: str) -> Block:
    if draw(st.integers(0, 5)) == 0:
        return injected_tool_result(call_id, "lost")
    content: Any = draw(st.text(max_size=6) | st.lists(texts.map(text_block) | images, max_size=2))
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if draw(st.booleans()):
        block["is_error"] = False
    elif draw(st.booleans()):
        block |= {"content": draw(texts), "is_error": True}
    return cast("Block", block)


@st.composite
def _steps(draw: st.DrawFn, first: int) -> list[Message]:
    """An assistant message with calls, and the user message that answers them."""
    ids = [f"toolu_{first + number}" for number in range(draw(st.integers(1, 3)))]
    blocks: list[Block] = draw(st.lists(thinking, max_size=1))
    blocks += [text_block(text) for text in draw(st.lists(texts, max_size=1))]
    for call_id in ids:
        blocks.append({"type": "tool_use", "id": call_id, "name": draw(tool_names), "input": draw(json_objects)})
        blocks += draw(st.lists(thinking, max_size=1)) if call_id != ids[-1] else []
    answers = [draw(_results(call_id)) for call_id in draw(st.permutations(ids))]
    tail: list[Block] = [text_block(text) for text in draw(st.lists(texts, max_size=1))]
    tail += [injected_text("nudge")] if draw(st.integers(0, 4)) == 0 else []
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [*answers, *tail]}]


@st.composite
def legal_histories(draw: st.DrawFn, max_turns: int = 4) -> list[Message]:
    """Histories as the executor makes them; neighbours of one role occur."""
    messages: list[Message] = []
    used = 0
    for _ in range(draw(st.integers(0, max_turns))):
        messages += draw(st.lists(user_queries(), min_size=1, max_size=2))
        for _ in range(draw(st.integers(0, 3))):
            step = draw(_steps(used))
            used += len(step[0]["content"])
            messages += step
        for text in draw(st.lists(texts, max_size=2)):
            messages.append({"role": "assistant", "content": [text_block(text)] if draw(st.booleans()) else text})
    return messages


def _as_blocks(messages: list[Message]) -> list[Message]:
    for message in messages:
        if isinstance(message["content"], str):
            message["content"] = [text_block(message["content"])]
    return messages


Damage = Callable[[list[Message], int, int], object]


def _blocks_at(messages: list[Message], index: int) -> list[Block]:
    content = messages[index % len(messages)]["content"]
    return content if isinstance(content, list) else []


def _drop_block(messages: list[Message], where: int, which: int) -> None:
    if blocks := _blocks_at(messages, where):
        blocks.pop(which % len(blocks))


def _double_block(messages: list[Message], where: int, which: int) -> None:
    if blocks := _blocks_at(messages, where):
        blocks.append(copy.deepcopy(blocks[which % len(blocks)]))


def _move_block(messages: list[Message], where: int, which: int) -> None:
    if blocks := _blocks_at(messages, where):
        _blocks_at(messages, where + which).append(blocks.pop(which % len(blocks)))


def _swap_messages(messages: list[Message], where: int, which: int) -> None:
    a, b = where % len(messages), which % len(messages)
    messages[a], messages[b] = messages[b], messages[a]


def _split_message(messages: list[Message], where: int, which: int) -> None:
    index = where % len(messages)
    blocks = _blocks_at(messages, index)
    messages[index : index + 1] = [
        {"role": messages[index]["role"], "content": blocks[: which % 3]},
        {"role": messages[index]["role"], "content": blocks[which % 3 :]},
    ]


def _reverse_blocks(messages: list[Message], where: int, _which: int) -> None:
    _blocks_at(messages, where).reverse()


def _one_id(messages: list[Message], where: int, which: int) -> None:
    """The calls of one message, or of all, and their results, are all `call_0`."""
    for index, message in enumerate(messages):
        if which % 2 or index in (where % len(messages), where % len(messages) + 1):
            for block in cast("list[dict[str, Any]]", message["content"]):
                if block["type"] == "tool_use":
                    block["id"] = "call_0"
                if block["type"] == "tool_result":
                    block["tool_use_id"] = "call_0"


def _foreign_ids(messages: list[Message], _where: int, _which: int) -> None:
    for message in messages:
        for block in cast("list[dict[str, Any]]", message["content"]):
            for key in {"id", "tool_use_id"} & block.keys():
                block[key] = block[key].replace("toolu_", "functions.search:")


def _insert_query(messages: list[Message], where: int, which: int) -> None:
    messages.insert(where % (len(messages) + 1), {"role": "user", "content": [text_block(f"go on {which}")]})


_DAMAGES: list[Damage] = [
    _drop_block,
    _double_block,
    _move_block,
    _swap_messages,
    _split_message,
    _reverse_blocks,
    _one_id,
    _foreign_ids,
    _insert_query,
    lambda messages, where, _: messages.pop(where % len(messages)),
]


@st.composite
def damaged_histories(draw: st.DrawFn) -> list[Message]:
    """A legal history after a few accidents: crashes, cancels, cuts, other providers' ids, late results."""
    messages = _as_blocks(draw(legal_histories()))
    for damage in draw(st.lists(st.sampled_from(_DAMAGES), max_size=5)):
        if messages:
            damage(messages, draw(st.integers(0, 20)), draw(st.integers(0, 20)))
    return messages


_junk: st.SearchStrategy[Any] = (
    st.none() | st.integers(0, 2) | st.sampled_from(["", " ", "text", "x"]) | st.just([]) | st.just({})
)
_few_ids = st.sampled_from(["a", "b", "call_0", "call_0_2", "", "bad id", "é", "x" * 65, "functions.f:0"])
_kinds = st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document"])
_nonsense_blocks: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.fixed_dictionaries(
            {},
            optional={
                "type": _kinds | _junk,
                "text": st.sampled_from(["", "  ", "hi", "nötig"]) | _junk,
                "id": _few_ids | _junk,
                "tool_use_id": _few_ids | _junk,
                "name": st.sampled_from(["f", "a.b", "", "n" * 200]) | _junk,
                "input": json_objects | st.sampled_from(['{"a": 1}', "[1]", "{"]) | _junk,
                "content": st.just("r") | _junk | st.lists(_nonsense_blocks, max_size=2),
                "is_error": st.booleans() | _junk,
                "source": st.just({"type": "url", "url": "http://x"}) | _junk,
                "thinking": st.just("t") | _junk,
                "signature": st.just("s") | _junk,
                "data": st.just("d") | _junk,
            },
        )
        | st.builds(
            lambda i, c: {"type": "tool_result", "tool_use_id": i, "content": c}, _few_ids, st.text(max_size=2)
        )
        | st.builds(lambda i: {"type": "tool_use", "id": i, "name": "f", "input": {}}, _few_ids)
        | texts.map(lambda text: {"type": "text", "text": text})
        | _junk
    )
)
_nonsense_messages = (
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant"]),
            "content": st.lists(_nonsense_blocks, max_size=4) | st.text(max_size=3),
        }
    )
    | st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "assistant", "system", "tool"]) | _junk,
            "content": st.lists(_nonsense_blocks, max_size=3) | _junk | _nonsense_blocks,
        },
    )
    | _junk
)
# As Message, for what nonsense claims to be; Hypothesis gives the same object twice from sampled_from, so copies.
nonsense_histories: st.SearchStrategy[list[Message]] = st.lists(_nonsense_messages, max_size=8).map(
    lambda messages: [cast("Message", copy.deepcopy(message)) for message in messages]
)
any_histories = legal_histories() | damaged_histories() | nonsense_histories
