"""Defence 2: a history that the provider takes, whatever happened to it before (four-defences §3).

Legal means: it starts with a user message; no content and no text is empty; each tool_use of an assistant
message is answered in the very next message, which is the user's and has the results first, one for each id and
none besides; ids are unique over the whole list. Neighbours of one role are legal and stay.

Decided beyond the contract: an assistant message that ends in thinking loses that thinking ("The final block in
an assistant message cannot be `thinking`", wherever it stands), so one with nothing else goes. What the
assistant said before the user said anything goes too. A call never goes for want of a result; only one that
names no tool does, and the text beside it stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from agent.messages import (
    Block,
    Message,
    Role,
    ToolResultBlock,
    assistant_message,
    blocks_of,
    injected_text,
    injected_tool_result,
    is_injected,
    text_block,
    text_of,
    tool_uses,
    user_message,
)
from agent.repair_blocks import id_stem, is_valid_id, role_of, sound_block, with_tool_use_id
from agent.repair_openai import drop_orphaned_tool_results_openai
from agent.texts import ENGLISH, Texts
from agent.turns import Turn, is_real_user_query

__all__ = [
    "Repairer",
    "compress_turn_to_text_only",
    "drop_orphaned_tool_results_openai",
    "sanitize_claude_messages",
]

# How far back the last answer is looked for, which the next call looks at again.
_LOOK_BACK = 4


def sanitize_claude_messages(messages: list[Message], texts: Texts = ENGLISH) -> int:
    """Makes the list legal, in place, and returns the number of repairs; 0 means that nothing was touched.

    Messages keep their dict and get another `content`; blocks are replaced, never changed. A result goes to the
    last call before it that has its id, and one that comes late is moved back there; a further result for a
    call that has one goes, unless what it has is a placeholder. Ids that are used again or that the provider
    does not take are renamed, in the call and in its result. Linear in the length of the list.
    """
    return _repair_tail(messages, 0, _Ids(), texts)


class Repairer:
    """`sanitize_claude_messages` for one list that grows: the cost of a call depends on what is new.

    It remembers how far the list was verified and its last verified message, and looks again at the last answer
    and what follows it, so that an edit there (a nudge) is seen. Whoever changes the list before that point
    (trimming, compaction) calls `forget`; another list, or a shorter one, is noticed.
    """

    def __init__(self, texts: Texts = ENGLISH) -> None:
        self._texts = texts
        self.forget()

    def forget(self) -> None:
        """The next call looks at the whole list."""
        self._messages: list[Message] | None = None
        self._verified = 0
        self._last: Message | None = None
        self._ids = _Ids()
        # Of calls whose result is a placeholder: id, and where their message stands.
        self._placeholders: dict[str, int] = {}

    def repair(self, messages: list[Message]) -> int:
        """As `sanitize_claude_messages`, with the same outcome."""
        if not self._knows(messages):
            self.forget()
            self._messages = messages
        start = min(self._late_results(messages), default=self._verified)
        for message in messages[start : self._verified]:
            for block in tool_uses(message):
                self._ids.taken.discard(block["id"])
                self._placeholders.pop(block["id"], None)
        repairs = _repair_tail(messages, start, self._ids, self._texts)
        self._remember(messages, start)
        return repairs

    def _knows(self, messages: list[Message]) -> bool:
        if messages is not self._messages or len(messages) < self._verified:
            return False
        return self._verified == 0 or messages[self._verified - 1] is self._last

    def _late_results(self, messages: list[Message]) -> list[int]:
        """Where calls stand whose placeholder can now give way to the real result."""
        if not self._placeholders:
            return []
        found = []
        for message in cast("list[object]", messages[self._verified :]):
            content = message.get("content") if isinstance(message, Mapping) else None
            for block in content if isinstance(content, list) else []:
                call_id = block.get("tool_use_id") if isinstance(block, Mapping) else None
                if isinstance(call_id, str) and call_id in self._placeholders:
                    found.append(self._placeholders[call_id])
        return found

    def _remember(self, messages: list[Message], start: int) -> None:
        end = max(start, _last_answer(messages))
        for index in range(start, end):
            for block in blocks_of(messages[index]):
                if block["type"] == "tool_result" and is_injected(block):
                    self._placeholders[block["tool_use_id"]] = index - 1
        # What is looked at again has its ids free then.
        self._ids.taken.difference_update(
            block["id"] for message in messages[end:] for block in tool_uses(message)
        )
        self._verified = end
        self._last = messages[end - 1] if end else None


def _last_answer(messages: list[Message]) -> int:
    end = len(messages)
    for index in range(end - 1, max(end - 1 - _LOOK_BACK, -1), -1):
        if messages[index]["role"] == "assistant":
            return index
    return end - 1 if end > _LOOK_BACK else 0


def compress_turn_to_text_only(turn: Turn, texts: Texts = ENGLISH) -> Turn:
    """The turn as two plain messages: what was asked first, and the text that was answered last.

    A summary at the head of the question stays, an image becomes a word in brackets, and a turn without an
    answer says so. A turn that nobody asked (left by a cut) keeps its answer only. The turn is not changed.
    """
    question = next(filter(None, map(_question, turn.messages)), None)
    answers = (
        text_of(blocks_of(message)) for message in reversed(turn.messages) if message["role"] == "assistant"
    )
    answer = next(filter(None, answers), None)
    short: list[Message] = []
    if question:
        short.append(user_message(*question))
    if answer:
        short.append(assistant_message(text_block(answer)))
    elif question:
        short.append(assistant_message(injected_text(texts.not_answered)))
    return turn if short == turn.messages else Turn(short)


def _question(message: Message) -> list[Block]:
    if message["role"] != "user":
        return []
    blocks = blocks_of(message)
    asked = is_real_user_query(message)
    summary = [block for block in blocks if asked and block["type"] == "text" and is_injected(block)]
    own = text_of(blocks)
    if not own and any(block["type"] == "image" for block in blocks):
        own = "[image]"
    return [*summary, text_block(own)] if own.strip() else []


@dataclass(slots=True)
class _Draft:
    """A message while it is repaired; `before` are its blocks as they were."""

    message: Message
    role: Role
    before: list[Block]
    blocks: list[Block]
    exchange: list[_Call] = field(default_factory=list)

    def write(self) -> int:
        """Gives the message its new content, if it has one; the number of blocks that are new or gone."""
        repairs = _difference(self.before, self.blocks)
        if repairs:
            self.message["content"] = self.blocks
        if self.message.get("role") != self.role:
            self.message["role"] = self.role
            repairs += 1
        return repairs


@dataclass(slots=True, eq=False)
class _Call:
    """A tool_use: its place in the message, the id it was given by the model, the id it has in the end."""

    place: int
    written_id: str
    id: str = ""
    result: ToolResultBlock | None = None


@dataclass(slots=True)
class _Ids:
    """The ids that are used up, and the last number that was put behind each stem."""

    taken: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    def unique(self, written: str, reserved: set[str]) -> str:
        if written not in self.taken and is_valid_id(written):
            self.taken.add(written)
            return written
        stem = id_stem(written)
        found = stem
        while found in self.taken or found in reserved:
            self.numbers[stem] = self.numbers.get(stem, 1) + 1
            found = f"{stem}_{self.numbers[stem]}"
        self.taken.add(found)
        return found


@dataclass(slots=True)
class _Waiting:
    """The calls of one message that share an id: those without a result, and those with a placeholder."""

    open: deque[_Call] = field(default_factory=deque)
    placeheld: deque[_Call] = field(default_factory=deque)

    def offer(self, result: ToolResultBlock) -> _Call | None:
        """The call that now has its first result; None where the result replaced a placeholder or is one too
        many."""
        if self.open:
            call = self.open.popleft()
            call.result = result
            if is_injected(result):
                self.placeheld.append(call)
            return call
        if self.placeheld and not is_injected(result):
            self.placeheld.popleft().result = result
        return None


def _repair_tail(messages: list[Message], start: int, ids: _Ids, texts: Texts) -> int:
    """Repairs what stands from `start` on, behind a part that is legal and ends with no open call."""
    found = messages[start:]
    drafts = _drafts(found, texts)
    kept = [draft for draft in drafts if draft.blocks]
    if start == 0:
        kept = kept[_first_query(kept) :]
    _pair(kept)
    _rename(kept, ids)
    out = [draft for draft in _arranged(kept, texts) if draft.blocks]
    staying = {id(draft) for draft in out}
    repairs = len(found) - len(drafts)
    repairs += sum(max(1, len(draft.before)) for draft in drafts if id(draft) not in staying)
    repairs += sum(draft.write() for draft in out)
    if repairs:
        messages[start:] = [draft.message for draft in out]
    return repairs


def _drafts(messages: Iterable[object], texts: Texts) -> list[_Draft]:
    drafts: list[_Draft] = []
    seen: set[int] = set()
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        raw: list[object] = content if isinstance(content, list) else [content]
        role = role_of(message, raw)
        if role is None:
            continue
        before = raw if isinstance(content, list) else []
        if isinstance(content, str):
            before = raw = [text_block(content)]
        blocks = [sound for block in raw if (sound := sound_block(block, role, texts))]
        while role == "assistant" and blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.pop()
        # One dict that stands in the list twice must be able to become two messages.
        own = dict(message) if id(message) in seen else message
        seen.add(id(message))
        drafts.append(_Draft(cast("Message", own), role, cast("list[Block]", before), blocks))
    return drafts


def _first_query(drafts: list[_Draft]) -> int:
    for index, draft in enumerate(drafts):
        if draft.role == "user" and any(block["type"] != "tool_result" for block in draft.blocks):
            return index
    return len(drafts)


def _pair(drafts: list[_Draft]) -> None:
    """Gives each call its result: `exchange` has the answered calls in the order of their results, then the
    others."""
    waiting: dict[str, tuple[_Draft, _Waiting]] = {}
    unanswered: dict[int, list[_Call]] = {}
    for draft in drafts:
        if draft.role == "assistant":
            calls = [
                _Call(place, block["id"])
                for place, block in enumerate(draft.blocks)
                if block["type"] == "tool_use"
            ]
            groups: dict[str, _Waiting] = {}
            for call in calls:
                groups.setdefault(call.written_id, _Waiting()).open.append(call)
            waiting.update((written_id, (draft, group)) for written_id, group in groups.items())
            unanswered[id(draft)] = calls
            continue
        for block in draft.blocks:
            if block["type"] == "tool_result" and (asked := waiting.get(block["tool_use_id"])):
                owner, group = asked
                if answered := group.offer(block):
                    owner.exchange.append(answered)
    for draft in drafts:
        draft.exchange.extend(call for call in unanswered.get(id(draft), []) if call.result is None)


def _rename(drafts: list[_Draft], ids: _Ids) -> None:
    calls = [(draft, call) for draft in drafts for call in sorted(draft.exchange, key=lambda call: call.place)]
    reserved = {call.written_id for _, call in calls}
    for draft, call in calls:
        call.id = ids.unique(call.written_id, reserved)
        draft.blocks[call.place] = with_tool_use_id(draft.blocks[call.place], call.id)


def _arranged(drafts: list[_Draft], texts: Texts) -> Iterable[_Draft]:
    """The messages with each exchange's results directly behind it, at the head of the user's message."""
    results: list[Block] = []
    for draft in drafts:
        if draft.role == "user":
            # A question stays a question: a real result that belongs before it gets its own message.
            if any(not is_injected(block) for block in results) and _is_query(draft):
                yield _new(results)
                results = []
            draft.blocks = results + [block for block in draft.blocks if block["type"] != "tool_result"]
        else:
            if results:
                yield _new(results)
            yield draft
        results = [_result(call, texts) for call in draft.exchange]
        if draft.role == "user":
            yield draft
    if results:
        yield _new(results)


def _is_query(draft: _Draft) -> bool:
    return is_real_user_query({"role": "user", "content": draft.blocks})


def _new(results: list[Block]) -> _Draft:
    return _Draft({"role": "user", "content": []}, "user", [], results)


def _result(call: _Call, texts: Texts) -> Block:
    if call.result is None:
        return injected_tool_result(call.id, texts.lost_result)
    return with_tool_use_id(call.result, call.id)


def _difference(before: list[Block], after: list[Block]) -> int:
    if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
        return 0
    gone = {id(block) for block in before} - {id(block) for block in after}
    new = {id(block) for block in after} - {id(block) for block in before}
    return max(len(gone), len(new), 1)
