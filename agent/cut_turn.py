"""Cutting what stands inside a turn: tool results, and long texts of a question (four-defences §2, §5.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agent.cut import cut_text, water_level
from agent.messages import (
    Block,
    ImageBlock,
    Message,
    ResultContent,
    TextBlock,
    blocks_of,
    is_injected,
    text_block,
)
from agent.texts import Texts
from agent.turns import is_real_user_query

RESULT_LEAST = 200
"""Characters that compaction leaves of a tool result."""

QUESTION_LEAST = 1_000
"""Characters that compaction leaves of each text in the user's question."""

_IMAGE_SIZE = 4_800
"""Characters that weigh as much as an image."""

_STEP = 0.75


def last_query(messages: Sequence[Message]) -> int:
    """Where the last turn starts; 0 where nobody asked anything."""
    for index in range(len(messages) - 1, -1, -1):
        if is_real_user_query(messages[index]):
            return index
    return 0


def cut_result(block: Block, limit: int, texts: Texts, *, images: bool = False) -> Block:
    """A tool_result of at most `limit` characters over all its texts; the block itself where it is short
    enough, or no tool_result. With `images` those heavier than the limit become a word in brackets."""
    if block["type"] != "tool_result" or is_injected(block):
        return block
    content = block["content"]
    if sum(_sizes(content, images=images)) <= limit:
        return block
    if isinstance(content, str):
        return {**block, "content": cut_text(content, limit, texts)}
    level = water_level(_sizes(content, images=images), limit)
    return {**block, "content": [_cut_part(part, level, texts, images=images) for part in content]}


def cut_last_turn(
    messages: Sequence[Message], target: int, measure: Callable[[Sequence[Message]], int], texts: Texts
) -> None:
    """Makes the last turn smaller until all messages weigh at most `target` tokens, or nothing long is left.

    First the tool results, from the largest down; then long texts of the question, which keep head and tail.
    """
    start = last_query(messages)
    run = messages[start:]
    rest = measure(messages[:start])
    for least, sizes, cut in (
        (RESULT_LEAST, _result_sizes, _cut_results),
        (QUESTION_LEAST, _question_sizes, _cut_question),
    ):
        level = max(sizes(run), default=0)
        while level > least and rest + measure(run) > target:
            level = max(least, int(level * _STEP))
            cut(run, level, texts)


def _cut_part(part: TextBlock | ImageBlock, level: int, texts: Texts, *, images: bool) -> TextBlock | ImageBlock:
    if part["type"] == "text":
        return {**part, "text": cut_text(part["text"], level, texts)}
    return text_block("[image]") if images and level < _IMAGE_SIZE else part


def _sizes(content: ResultContent, *, images: bool) -> list[int]:
    if isinstance(content, str):
        return [len(content)]
    weight = _IMAGE_SIZE if images else 0
    return [len(part["text"]) if part["type"] == "text" else weight for part in content]


def _result_sizes(run: Sequence[Message]) -> Iterator[int]:
    for message in run:
        for block in blocks_of(message):
            if block["type"] == "tool_result":
                yield sum(_sizes(block["content"], images=True))


def _question_sizes(run: Sequence[Message]) -> Iterator[int]:
    return (len(block["text"]) for block in blocks_of(run[0]) if block["type"] == "text")


def _cut_results(run: Sequence[Message], level: int, texts: Texts) -> None:
    for message in run:
        blocks = blocks_of(message)
        cut = [cut_result(block, level, texts, images=True) for block in blocks]
        if any(new is not old for new, old in zip(cut, blocks, strict=True)):
            message["content"] = cut


def _cut_question(run: Sequence[Message], level: int, texts: Texts) -> None:
    blocks = blocks_of(run[0])
    if is_real_user_query(run[0]) and any(
        block["type"] == "text" and len(block["text"]) > level for block in blocks
    ):
        run[0]["content"] = [_cut_own(block, level, texts) for block in blocks]


def _cut_own(block: Block, level: int, texts: Texts) -> Block:
    if block["type"] != "text" or is_injected(block):
        return block
    return {**block, "text": cut_text(block["text"], level, texts)}
