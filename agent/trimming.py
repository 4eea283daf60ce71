"""Defence 1: a context that fits, by whole turns, from light to heavy (four-defences §2, and §5.4 for overflow).

Sans-I/O and in place. `measure` weighs messages in tokens and must be additive over them, up to rounding: turns
are weighed once and their weights are subtracted as they go. A message keeps its dict and gets another
`content`; blocks are replaced, never changed. The last turn is what the user just asked: trimming leaves it as
it is, and compaction leaves its question's dict in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agent.cut_turn import cut_last_turn, cut_result, last_query
from agent.messages import Block, Message
from agent.repair import compress_turn_to_text_only
from agent.summary import SUMMARY_LIMIT, Summary, digest, inject_summary, is_summary_only, take_summary
from agent.texts import ENGLISH, Texts
from agent.turns import Turn, identify_complete_turns, is_real_user_query

TOOL_RESULT_LIMIT = 20_000
"""Characters of a tool result in turns before the last."""

COMPRESS_BELOW = 5
"""With fewer turns than this they are compressed to text before any is dropped."""

COMPACT_ROUNDS = 32
COMPACT_SHARE = 0.7
"""Of the current estimate: the target where the provider named no limit, or refused what seemed to fit."""

_SUMMARY_SHARE = 0.25
"""Of the budget in tokens that a summary may take; 4,000 Chinese characters weigh 6,000 tokens."""
_SUMMARY_LEAST = 60
"""Tokens that a summary may take however small the budget is."""

Measure = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What a trim did: `truncated` tool results, `compressed` turns, `dropped` turns as they were before any
    compression, tokens by `measure`, and the summary that now stands in the messages if turns were dropped."""

    truncated: int
    compressed: int
    dropped: tuple[Turn, ...]
    tokens_before: int
    tokens_after: int
    summary: Summary | None


def truncate_historical_tool_results(
    messages: list[Message], limit: int = TOOL_RESULT_LIMIT, texts: Texts = ENGLISH
) -> int:
    """Cuts tool results of the turns before the last to `limit` characters, mark included.

    Returns how many were cut; a second call returns 0.
    """
    cut = 0
    for message, blocks, count in _long_results(messages, limit, texts):
        message["content"] = blocks
        cut += count
    return cut


def trim_messages(
    messages: list[Message], *, max_turns: int, budget: int, measure: Measure, texts: Texts = ENGLISH
) -> TrimReport:
    """Makes the messages fit into `budget` tokens and `max_turns` turns, or leaves only the last turn.

    Called once per request, before the loop. Where nothing has to go, nothing is touched, so that the provider
    reads the prefix from its cache.
    """
    truncated, saved = _truncate_measured(messages, measure, texts)
    turns = identify_complete_turns(messages)
    weights = [measure(turn.messages) for turn in turns]
    total = sum(weights)
    carried = bool(turns) and is_summary_only(turns[0])
    if len(turns) - carried <= max(1, max_turns) and total <= budget:
        return TrimReport(truncated, 0, (), total + saved, total, None)
    window = _Window.over(messages, turns, weights, measure, texts, budget)
    while window.len > max(1, max_turns):
        window.drop_older_half()
    while window.total > budget and window.lighten():
        pass
    summary = window.write()
    return TrimReport(
        truncated, window.compressed, tuple(window.dropped), total + saved, measure(messages), summary
    )


def smart_compact_to_budget(
    messages: list[Message],
    *,
    budget: int | None,
    measure: Measure,
    texts: Texts = ENGLISH,
    on_drop: Callable[[Sequence[Turn]], None],
) -> bool:
    """Makes a request that the provider refused smaller, inside a run, and returns whether it is (in tokens).

    The target is `budget` tokens; 70 % of the current estimate where the provider named no limit, or where the
    estimate says that it fits already. Older turns go first, then the last turn's tool results are cut from the
    largest down, then its long user text keeps head and tail. If nothing became smaller the messages are as
    they were. `on_drop` gets the dropped turns as they were, once.
    """
    before = measure(messages)
    target = int(before * COMPACT_SHARE)
    if budget is not None and budget < before:
        target = budget
    old = [(message, message["content"]) for message in messages]
    turns = identify_complete_turns(messages)
    window = _Window.over(messages, turns, [measure(turn.messages) for turn in turns], measure, texts, target)
    window.lighter_summary = True
    rounds = 0
    while window.total > target and rounds < COMPACT_ROUNDS and window.lighten():
        rounds += 1
    window.write()
    if measure(messages) > target:
        cut_last_turn(messages, target, measure, texts)
    if measure(messages) >= before and window.dropped:
        take_summary(messages)  # so little was dropped that its summary weighs more
    if measure(messages) < before:
        if window.dropped:
            on_drop(tuple(window.dropped))
        return True
    for message, content in old:
        message["content"] = content
    messages[:] = [message for message, _ in old]
    return False


@dataclass(slots=True)
class _Window:
    """The turns while they are trimmed; `write` puts the outcome into the messages."""

    messages: list[Message]
    turns: list[Turn]
    weights: list[int]
    measure: Measure
    texts: Texts
    budget: int
    earlier: Summary | None
    summary: Summary | None
    dropped: list[Turn] = field(default_factory=list)
    originals: dict[int, tuple[Turn, str | list[Block]]] = field(default_factory=dict)
    compressed: int = 0
    compress_tried: bool = False
    summary_weight: int = 0
    lighter_summary: bool = False
    gone_weight: int = 0

    @classmethod
    def over(
        cls,
        messages: list[Message],
        turns: list[Turn],
        weights: list[int],
        measure: Measure,
        texts: Texts,
        budget: int,
    ) -> _Window:
        """Takes the earlier summary out, so that turns are only what was really said."""
        earlier = take_summary(messages)
        if earlier is not None:
            turns = identify_complete_turns(messages)
            weights = [measure(turn.messages) for turn in turns]
        window = cls(messages, turns, weights, measure, texts, budget, earlier, earlier)
        window._weigh_summary()
        window.gone_weight = window.summary_weight
        return window

    @property
    def len(self) -> int:
        return len(self.turns)

    @property
    def total(self) -> int:
        return sum(self.weights) + self.summary_weight

    def lighten(self) -> bool:
        """The lightest step that is left; False when only the last turn is."""
        if self.len <= 1:
            return False
        if self.len >= COMPRESS_BELOW:
            self.drop_older_half()
        elif not self.compress_tried:
            self._compress()
        else:
            self._drop(1)
        return True

    def drop_older_half(self) -> None:
        self._drop(self.len // 2)

    def write(self) -> Summary | None:
        """The messages are now the kept turns and the summary; returns it where turns were dropped."""
        self.messages[:] = [message for turn in self.turns for message in turn.messages]
        if self.summary is not None:
            inject_summary(self.messages, self.summary, self.texts)
        return self.summary if self.dropped else None

    def _drop(self, count: int) -> None:
        gone = [self._as_it_was(turn) for turn in self.turns[:count]]
        self.gone_weight += sum(self.weights[:count])
        del self.turns[:count], self.weights[:count]
        self.dropped += gone
        self._summarise()

    def _as_it_was(self, turn: Turn) -> Turn:
        original = self.originals.pop(id(turn), None)
        if original is None:
            return turn
        was, content = original
        was.messages[0]["content"] = content
        return was

    def _compress(self) -> None:
        """All turns but the last to question and answer, where that is less."""
        self.compress_tried = True
        for index, turn in enumerate(self.turns[:-1]):
            head, content = turn.messages[0], turn.messages[0]["content"]
            short = compress_turn_to_text_only(turn, self.texts)
            weight = self.measure(short.messages)
            if short is turn or weight >= self.weights[index]:
                continue
            if short.messages and is_real_user_query(head):
                # The question keeps its dict, by which the owner of the list knows it.
                head["content"] = short.messages[0]["content"]
                short.messages[0] = head
            self.originals[id(short)] = (turn, content)
            self.turns[index], self.weights[index] = short, weight
            self.compressed += 1

    def _summarise(self) -> None:
        """One digest of all that was dropped, within its share of the budget; in a compaction also no heavier
        than what it stands for."""
        room = max(int(self.budget * _SUMMARY_SHARE), _SUMMARY_LEAST)
        if self.lighter_summary:
            room = min(room, self.gone_weight)
        limit = SUMMARY_LIMIT
        while True:
            self.summary = digest(self.dropped, self.earlier, self.texts, limit)
            self._weigh_summary()
            if self.summary_weight <= room or not self.summary.text:
                return
            limit //= 2

    def _weigh_summary(self) -> None:
        carrier: list[Message] = []
        if self.summary is not None:
            inject_summary(carrier, self.summary, self.texts)
        self.summary_weight = self.measure(carrier)


def _long_results(
    messages: Sequence[Message], limit: int, texts: Texts
) -> Iterator[tuple[Message, list[Block], int]]:
    """Messages before the last turn with tool results over the limit, and their blocks with those cut."""
    for message in messages[: last_query(messages)]:
        if message["role"] != "user" or isinstance(message["content"], str):
            continue
        blocks = [cut_result(block, limit, texts) for block in message["content"]]
        count = sum(new is not old for new, old in zip(blocks, message["content"], strict=True))
        if count:
            yield message, blocks, count


def _truncate_measured(messages: list[Message], measure: Measure, texts: Texts) -> tuple[int, int]:
    """How many results were cut, and how many tokens that saved."""
    cut = saved = 0
    for message, blocks, count in _long_results(messages, TOOL_RESULT_LIMIT, texts):
        saved += measure([message])
        message["content"] = blocks
        saved -= measure([message])
        cut += count
    return cut, saved
