"""The data of a conversation: messages and their blocks, exactly as the Anthropic Messages API spells them.

A message goes to the store and to the SDK with no conversion. Only text that the core itself put in
(summary, nudge, step-limit prompt, repair placeholder) is marked, by its Python type and not by a key, so
that the mark can't reach a wire: it never starts a turn and never reaches the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]
Role = Literal["user", "assistant"]


class CacheControl(TypedDict):
    type: Literal["ephemeral"]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str
    cache_control: NotRequired[CacheControl]


class Base64Source(TypedDict):
    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(TypedDict):
    type: Literal["url"]
    url: str


class ImageBlock(TypedDict):
    type: Literal["image"]
    source: Base64Source | UrlSource


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


ResultContent: TypeAlias = "str | list[TextBlock | ImageBlock]"


class ToolResultBlock(TypedDict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultContent
    is_error: NotRequired[bool]


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(TypedDict):
    type: Literal["redacted_thinking"]
    data: str


Block: TypeAlias = (
    "TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock"
)


class Message(TypedDict):
    role: Role
    content: str | list[Block]


class _Injected(dict[str, object]):
    """A block that the core wrote. A subclass of dict, so that every JSON writer and SDK takes it as it is."""


def injected_text(text: str) -> TextBlock:
    """A text block that is the core's own: no turn starts with it and no store keeps it."""
    return cast("TextBlock", _Injected(type="text", text=text))


def injected_tool_result(tool_use_id: str, text: str) -> ToolResultBlock:
    """An error tool_result that the core made up for a call whose own result is lost."""
    return cast(
        "ToolResultBlock", _Injected(type="tool_result", tool_use_id=tool_use_id, content=text, is_error=True)
    )


def is_injected(block: Mapping[str, object]) -> bool:
    return isinstance(block, _Injected)


def text_block(text: str) -> TextBlock:
    return {"type": "text", "text": text}


def tool_result(tool_use_id: str, content: ResultContent, *, is_error: bool = False) -> ToolResultBlock:
    block: ToolResultBlock = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
    if is_error:
        block["is_error"] = True
    return block


def user_message(*blocks: Block) -> Message:
    return {"role": "user", "content": list(blocks)}


def assistant_message(*blocks: Block) -> Message:
    return {"role": "assistant", "content": list(blocks)}


def blocks_of(message: Message) -> list[Block]:
    """The message's blocks; a plain string content reads as one text block, an empty one as none."""
    content = message["content"]
    if isinstance(content, str):
        return [text_block(content)] if content else []
    return content


def text_of(blocks: Iterable[Block]) -> str:
    """The texts of the blocks, a blank line between them; the core's own texts are left out."""
    return "\n\n".join(
        block["text"] for block in blocks if block["type"] == "text" and not is_injected(block) and block["text"]
    )


def tool_uses(message: Message) -> list[ToolUseBlock]:
    return [block for block in blocks_of(message) if block["type"] == "tool_use"]


def without_injected(messages: Iterable[Message]) -> list[Message]:
    """The messages as they may be stored: without the core's own blocks, and without what is then empty."""
    kept: list[Message] = []
    for message in messages:
        blocks = blocks_of(message)
        own = [block for block in blocks if not is_injected(block)]
        if len(own) == len(blocks):
            kept.append(message)
        elif own:
            kept.append({"role": message["role"], "content": own})
    return kept


def without_tool_blocks(messages: Iterable[Message]) -> list[Message]:
    """What a load from the store gives back: texts and images, no tool_use, tool_result or thinking.

    A tool_use whose result was never stored can then not come back and make the provider refuse the
    conversation (four-defences §6).
    """
    kept: list[Message] = []
    for message in messages:
        own: list[Block] = [block for block in blocks_of(message) if block["type"] in ("text", "image")]
        if own:
            kept.append({"role": message["role"], "content": own})
    return kept
