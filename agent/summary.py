"""The summary that stands for dropped turns: one text, bounded, never nested (four-defences §2).

It lives in the messages as an injected text block under a fixed heading, so it starts no turn and reaches no
store. The heading names how many turns it stands for; `Summary.text` is what is below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agent.cut import head_text, tail_text
from agent.messages import Block, Message, blocks_of, injected_text, is_injected, text_of, user_message
from agent.texts import CHINESE, ENGLISH, Texts
from agent.turns import Turn, is_real_user_query

SUMMARY_LIMIT = 4_000
"""Characters of a summary as the model sees it, heading included."""

_LINE_MOST, _LINE_LEAST = 400, 60
"""Characters of one line of a digest: as much as there is room for, within these."""

_HEADINGS = tuple(
    re.compile(re.escape(texts.summary_heading).replace(re.escape("{turns}"), r"(\d{1,9})"))
    for texts in (ENGLISH, CHINESE)
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is left of `turns` dropped turns; `text` has no heading."""

    text: str
    turns: int


def digest(
    turns: Sequence[Turn], earlier: Summary | None, texts: Texts = ENGLISH, limit: int = SUMMARY_LIMIT
) -> Summary:
    """For each dropped turn what was asked and what was answered last, behind the earlier summary.

    Deterministic; with its heading at most `limit` characters. The newest turns have the first claim to the
    room, the earlier summary keeps up to half of it, and its oldest lines go first.
    """
    count = len(turns) + (earlier.turns if earlier else 0)
    room = _room(count, texts, limit)
    old = earlier.text if earlier else ""
    lines = _digest_lines(turns, max(room - len(old) - 1, room // 2), texts)
    new = "\n".join(lines)
    kept = _newest_lines(old, room - len(new) - 1)
    return Summary("\n".join(part for part in (kept, new) if part).strip(), count)


def inject_summary(messages: list[Message], summary: Summary, texts: Texts = ENGLISH) -> None:
    """Puts the summary before everything that was kept, in place.

    It becomes the first block of the first real user query. If that is the last turn's (what the user just
    asked is never rewritten), or there is none, it becomes an injected user message of its own.
    """
    block = injected_text(_with_heading(summary, texts))
    queries = (index for index, message in enumerate(messages) if is_real_user_query(message))
    first = next(queries, None)
    if first is not None and next(queries, None) is not None:
        messages[first]["content"] = [block, *blocks_of(messages[first])]
    else:
        messages.insert(first or 0, user_message(block))


def find_summary(messages: Sequence[Message]) -> Summary | None:
    """The summary in the messages, which stay as they are."""
    return next((summary for _, _, summary in _places(messages)), None)


def take_summary(messages: list[Message]) -> Summary | None:
    """Removes the summary from the messages and returns it; several (there should be one) come joined."""
    found = list(_places(messages))
    for message, block, _ in found:
        message["content"] = [other for other in blocks_of(message) if other is not block]
    emptied = {id(message) for message, _, _ in found if not message["content"]}
    if emptied:
        messages[:] = [message for message in messages if id(message) not in emptied]
    if not found:
        return None
    summaries = [summary for _, _, summary in found]
    return Summary("\n".join(summary.text for summary in summaries), sum(summary.turns for summary in summaries))


def replace_summary(
    messages: Sequence[Message], text: str, texts: Texts = ENGLISH, expected: Summary | None = None
) -> bool:
    """Gives the summary in the messages another text, at its place and for as many turns.

    With `expected` only where the summary is still that one, so that a text written in the background for an
    older summary changes nothing. False where nothing was changed.
    """
    for message, block, summary in _places(messages):
        if not text.strip() or (expected is not None and summary != expected):
            return False
        better = replace(summary, text=_without_headings(text).strip())
        fresh = injected_text(_with_heading(better, texts))
        message["content"] = [fresh if other is block else other for other in blocks_of(message)]
        return True
    return False


def summary_request(summary: Summary, texts: Texts = ENGLISH) -> tuple[str, str]:
    """System prompt and user text with which a model writes the summary anew, from the digest alone."""
    return texts.summary_prompt.format(limit=_room(summary.turns, texts, SUMMARY_LIMIT)), summary.text


def is_summary_only(turn: Turn) -> bool:
    """Whether the turn is nothing but the summary's own message."""
    blocks = [block for message in turn.messages for block in blocks_of(message)]
    return bool(blocks) and all(_heading_of(block) is not None for block in blocks)


def _places(messages: Sequence[Message]) -> Iterator[tuple[Message, Block, Summary]]:
    for message in messages:
        if message["role"] != "user" or isinstance(message["content"], str):
            continue
        for block in message["content"]:
            heading = _heading_of(block)
            if heading is not None and block["type"] == "text":
                yield message, block, Summary(block["text"][heading.end() :].strip(), int(heading[1]))


def _heading_of(block: Block) -> re.Match[str] | None:
    if not is_injected(block) or block["type"] != "text":
        return None
    return next(filter(None, (heading.match(block["text"]) for heading in _HEADINGS)), None)


def _with_heading(summary: Summary, texts: Texts) -> str:
    text = head_text(summary.text, _room(summary.turns, texts, SUMMARY_LIMIT))
    return f"{texts.summary_heading.format(turns=summary.turns)}\n{text}"


def _room(turns: int, texts: Texts, limit: int) -> int:
    return max(0, limit - len(texts.summary_heading.format(turns=turns)) - 1)


def _without_headings(text: str) -> str:
    for heading in _HEADINGS:
        text = heading.sub("", text)
    return text


def _digest_lines(turns: Sequence[Turn], room: int, texts: Texts) -> list[str]:
    """Lines of the newest turns, oldest first, together with their line ends within the room."""
    pairs: list[list[str]] = []
    left = room
    for turn in reversed(turns[-(room // _LINE_LEAST + 1) :]):
        pair = _turn_lines(turn, texts, _LINE_MOST)
        pairs.append(pair)
        left -= sum(len(line) + 1 for line in pair)
    if left < 0:
        pairs = _shortened(pairs, room)
    return [line for pair in reversed(pairs) for line in pair]


def _shortened(pairs: list[list[str]], room: int) -> list[list[str]]:
    """All lines cut alike until they fit; below the least length the oldest turns go."""
    count = sum(len(pair) for pair in pairs)
    length = min(_LINE_MOST, max(_LINE_LEAST, room // max(count, 1) - 1))
    kept: list[list[str]] = []
    for pair in pairs:
        short = [head_text(line, length) for line in pair]
        room -= sum(len(line) + 1 for line in short)
        if room < 0:
            break
        kept.append(short)
    return kept


def _turn_lines(turn: Turn, texts: Texts, most: int) -> list[str]:
    asked = next((_question(message) for message in turn.messages if is_real_user_query(message)), "")
    answers = (text_of(blocks_of(m)) for m in reversed(turn.messages) if m["role"] == "assistant")
    answered = next(filter(None, answers), "")
    lines = []
    if asked:
        lines.append(texts.summary_asked.format(text=_one_line(asked, most)))
    if asked or answered:
        lines.append(texts.summary_answered.format(text=_one_line(answered or texts.not_answered, most)))
    return lines


def _question(query: Message) -> str:
    """A real user query holds a text, or an image alone."""
    return text_of(blocks_of(query)) or "[image]"


def _one_line(text: str, most: int) -> str:
    return head_text(" ".join(_without_headings(text[: most * 4]).split()), most)


def _newest_lines(text: str, room: int) -> str:
    """The end of a text from a line's start; a single long line loses its beginning."""
    if len(text) <= room:
        return text
    if room < _LINE_LEAST:
        return ""
    end = tail_text(text, room)
    first, line_end, rest = end.partition("\n")
    return rest if line_end and len(rest) >= room // 2 and first else end
