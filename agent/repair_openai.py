"""Defence 2 at the OpenAI wire: every tool call answered right behind it, no answer without a call (§3).

OpenAI refuses a `tool` message that does not follow an assistant message with that call, and an assistant
message whose calls are not all answered before anything else is said. Ids may be used again in a later message.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agent.texts import ENGLISH, Texts

OpenAIMessage = dict[str, object]


@dataclass(slots=True)
class _Group:
    """An assistant message and the tool messages that answer it, in the order in which they came."""

    message: OpenAIMessage
    call_ids: list[str]
    answers: list[OpenAIMessage] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)


def drop_orphaned_tool_results_openai(
    messages: Sequence[OpenAIMessage], texts: Texts = ENGLISH
) -> list[OpenAIMessage]:
    """The messages as OpenAI takes them; what was right comes back as the same objects in the same order.

    Dropped: a `tool` message whose `tool_call_id` no earlier call has, or whose call has its answer already.
    Moved: an answer that comes late, to behind its call. Added: an answer for each call that has none. A call
    without an id gets one, a second one with the same id in one message another one, and what is no call goes.
    The input is not changed.
    """
    out: list[OpenAIMessage] = []
    for entry in _grouped(messages):
        if isinstance(entry, _Group):
            out.append(entry.message)
            out.extend(entry.answers)
            out.extend(
                {"role": "tool", "tool_call_id": call_id, "content": texts.lost_result}
                for call_id in entry.call_ids
                if call_id not in entry.answered
            )
        else:
            out.append(entry)
    return out


def _grouped(messages: Sequence[OpenAIMessage]) -> list[OpenAIMessage | _Group]:
    entries: list[OpenAIMessage | _Group] = []
    # The calls that wait under an id as it was written, with the id they have now; a later message that uses
    # the id again takes it over.
    waiting: dict[str, deque[tuple[_Group, str]]] = {}
    fresh = _fresh_ids(messages)
    for message in messages:
        if message.get("role") == "tool":
            _answer(message, waiting)
        elif message.get("role") == "assistant" and "tool_calls" in message:
            repaired, old_ids, new_ids = _with_sound_calls(message, fresh)
            if repaired is None:
                continue
            group = _Group(repaired, new_ids)
            entries.append(group)
            asked: defaultdict[str, deque[tuple[_Group, str]]] = defaultdict(deque)
            for old, new in zip(old_ids, new_ids, strict=True):
                asked[old].append((group, new))
            waiting.update(asked)
        else:
            entries.append(message)
    return entries


def _answer(message: OpenAIMessage, waiting: dict[str, deque[tuple[_Group, str]]]) -> None:
    call_id = message.get("tool_call_id")
    asked = waiting.get(call_id) if isinstance(call_id, str) else None
    if not asked:
        return
    group, new_id = asked.popleft()
    group.answers.append(message if new_id == call_id else {**message, "tool_call_id": new_id})
    group.answered.add(new_id)


def _with_sound_calls(
    message: OpenAIMessage, fresh: Iterator[str]
) -> tuple[OpenAIMessage | None, list[str], list[str]]:
    """The message with usable calls only, their ids before and after; None where nothing is left to say."""
    found_calls = message["tool_calls"]
    calls: list[object] = found_calls if isinstance(found_calls, list) else []
    old_ids: list[str] = []
    new_ids: list[str] = []
    sound: list[object] = []
    for call in calls:
        if not isinstance(call, dict):
            continue
        found = call.get("id")
        old = found if isinstance(found, str) else ""
        new = next(fresh) if not old or old in new_ids else old
        old_ids.append(old or new)
        new_ids.append(new)
        sound.append(call if new == found else {**call, "id": new})
    if sound:
        unchanged = len(calls) == len(sound) and all(a is b for a, b in zip(calls, sound, strict=True))
        return (message if unchanged else {**message, "tool_calls": sound}), old_ids, new_ids
    # An empty list of calls is refused too, and so is an assistant message with neither calls nor content.
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return (plain if plain.get("content") or plain.get("refusal") else None), [], []


def _fresh_ids(messages: Sequence[OpenAIMessage]) -> Iterator[str]:
    """Ids that no call and no answer of these messages has; the same for the same messages."""
    taken: set[object] | None = None
    number = 0
    while True:
        if taken is None:
            taken = set(_ids(messages))
        number += 1
        if (candidate := f"call_again_{number}") not in taken:
            yield candidate


def _ids(messages: Sequence[OpenAIMessage]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls")
        found = [message.get("tool_call_id")]
        found += [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        yield from (value for value in found if isinstance(value, str))
