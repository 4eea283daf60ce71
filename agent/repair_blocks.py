"""What of a block or message can be understood, each on its own: the first half of defence 2 (§3).

Nothing is changed in place: what is right comes back as the same object, what can be mended as a new one, what
can't be understood as None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

from agent.messages import Block, JsonObject, Role, TextBlock, injected_tool_result, is_injected, text_block
from agent.texts import Texts

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARACTERS: Final = 128

RawBlock = Mapping[str, object]


def is_valid_id(value: str) -> bool:
    """Whether Anthropic takes it as a tool_use id; other providers' ids (`functions.bash:0`) may be none."""
    return _ID.fullmatch(value) is not None


def id_stem(value: str) -> str:
    """A valid id that resembles this one, with room for a number behind it."""
    return _NOT_IN_ID.sub("_", value)[:52] or "call"


def role_of(message: RawBlock, blocks: list[object]) -> Role | None:
    """The role; where there is none at all, what the blocks tell of it; None for roles that are not ours."""
    role = message.get("role")
    if role == "user" or role == "assistant":
        return role
    if isinstance(role, str):
        return None
    kinds = [block.get("type") for block in blocks if isinstance(block, Mapping)]
    return "assistant" if any(kind in kinds for kind in ("tool_use", "thinking", "redacted_thinking")) else "user"


def sound_block(block: object, role: Role, texts: Texts) -> Block | None:
    """The block as it may stand in a message of this role.

    Text is kept from anything that carries it: what the user wrote never goes.
    """
    if isinstance(block, str):
        return text_block(block) if block.strip() else None
    if not isinstance(block, Mapping):
        return None
    kind = block.get("type")
    if isinstance(kind, str) and (judge := _JUDGES[role].get(kind)):
        return judge(block, texts)
    foreign = isinstance(kind, str) and kind in _JUDGES["user"] | _JUDGES["assistant"]
    return None if foreign else _text_in(block)


def _text_in(block: RawBlock) -> TextBlock | None:
    text = block.get("text")
    return text_block(text) if isinstance(text, str) and text.strip() else None


def _text(block: RawBlock, _texts: Texts) -> Block | None:
    # Whitespace alone is refused like nothing at all ("must contain non-whitespace text").
    text = block.get("text")
    return cast("Block", block) if isinstance(text, str) and text.strip() else None


def _image(block: RawBlock, _texts: Texts) -> Block | None:
    source = block.get("source")
    if not isinstance(source, Mapping):
        return None
    needed = {"base64": ("media_type", "data"), "url": ("url",)}.get(str(source.get("type")))
    if needed is None or not all(isinstance(value := source.get(key), str) and value for key in needed):
        return None
    return cast("Block", block)


def _tool_use(block: RawBlock, _texts: Texts) -> Block | None:
    name = block.get("name")
    if not isinstance(name, str) or not name:
        return None
    mended: dict[str, object] = {}
    clean_name = _NOT_IN_ID.sub("_", name)[:_NAME_CHARACTERS]
    if clean_name != name:
        mended["name"] = clean_name
    given = block.get("input")
    if not isinstance(given, dict):
        mended["input"] = _json_object(given)
    if not isinstance(block.get("id"), str):
        mended["id"] = ""  # it gets an id when all the others are known
    return cast("Block", {**block, **mended} if mended else block)


def _json_object(value: object) -> JsonObject:
    """Arguments that stayed text, where they are an object after all; else an empty object."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tool_result(block: RawBlock, texts: Texts) -> Block | None:
    if not isinstance(block.get("tool_use_id"), str) or not block["tool_use_id"]:
        return None
    fields = dict(block)
    content = fields.get("content")
    if isinstance(content, list):
        kept = [part for item in content if (part := _result_part(item, texts))]
        if len(kept) != len(content) or any(a is not b for a, b in zip(kept, content, strict=True)):
            fields["content"] = kept
    elif not isinstance(content, str):
        fields["content"] = ""
    if "is_error" in fields and not isinstance(fields["is_error"], bool):
        del fields["is_error"]
    if fields.get("is_error"):
        fields["content"] = _error_content(fields["content"], texts)
    return cast("Block", block if _same(fields, block) else fields)


def _error_content(content: object, texts: Texts) -> object:
    """Of a failed call Anthropic takes text only, and not none ("content cannot be empty if `is_error`")."""
    if isinstance(content, list) and any(part["type"] != "text" for part in content):
        content = [part for part in content if part["type"] == "text"]
    return content or texts.lost_result


def _result_part(part: object, texts: Texts) -> Block | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind == "image":
        return _image(part, texts)
    return sound_block(part, "user", texts) if kind != "tool_result" else None


def _same(fields: dict[str, object], block: RawBlock) -> bool:
    return len(fields) == len(block) and all(value is block.get(key) for key, value in fields.items())


def _thinking(block: RawBlock, _texts: Texts) -> Block | None:
    signed = isinstance(block.get("thinking"), str) and isinstance(block.get("signature"), str)
    return cast("Block", block) if signed else None


def _redacted(block: RawBlock, _texts: Texts) -> Block | None:
    return cast("Block", block) if isinstance(block.get("data"), str) else None


# Anthropic takes results and images from the user only, calls and thinking from the assistant only.
_JUDGES: Final[dict[Role, dict[str, Callable[[RawBlock, Texts], Block | None]]]] = {
    "user": {"text": _text, "image": _image, "tool_result": _tool_result},
    "assistant": {
        "text": _text,
        "tool_use": _tool_use,
        "thinking": _thinking,
        "redacted_thinking": _redacted,
    },
}


def with_tool_use_id(block: Block, new_id: str) -> Block:
    """The same tool_use or tool_result under another id."""
    if block["type"] == "tool_use":
        return block if block["id"] == new_id else {**block, "id": new_id}
    if block["type"] != "tool_result" or block["tool_use_id"] == new_id:
        return block
    if is_injected(block):
        return injected_tool_result(new_id, str(block["content"]))
    return {**block, "tool_use_id": new_id}
