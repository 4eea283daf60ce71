"""Defence 1 as properties: what goes, what stays, and that it fits."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.calibration import calibrated
from agent.cut import cut_text, head_text, tail_text, water_level
from agent.messages import (
    Block,
    Message,
    assistant_message,
    blocks_of,
    injected_tool_result,
    is_injected,
    text_block,
    tool_result,
    user_message,
)
from agent.repair import sanitize_claude_messages
from agent.summary import SUMMARY_LIMIT, Summary, find_summary, inject_summary
from agent.texts import CHINESE, ENGLISH, Texts
from agent.tokens import estimate_tokens
from agent.trimming import TrimReport, smart_compact_to_budget, trim_messages, truncate_historical_tool_results
from agent.turns import Turn, identify_complete_turns, is_real_user_query
from tests.agent.strategies import legal_histories

HEADING = regex.compile(r"\[Earlier conversation, (\d+) turns\]|\[此前的对话，共 (\d+) 轮\]")


def turn(name: str, *, result: str = "", answer: bool = True, steps: int = 1) -> list[Message]:
    """A turn in which `steps` tools are called, each with this result."""
    messages: list[Message] = [user_message(text_block(f"question {name}"))]
    for step in range(steps if result else 0):
        call: Block = {"type": "tool_use", "id": f"{name}_{step}", "name": "search", "input": {"q": name}}
        messages.append(assistant_message(text_block("I look"), call))
        messages.append(user_message(tool_result(f"{name}_{step}", result)))
    if answer:
        messages.append(assistant_message(text_block(f"answer {name}")))
    return messages


def history(count: int, result: str = "") -> list[Message]:
    return [message for number in range(count) for message in turn(str(number), result=result)]


def trim(
    messages: list[Message], *, max_turns: int = 20, budget: int = 10**9, texts: Texts = ENGLISH
) -> TrimReport:
    return trim_messages(messages, max_turns=max_turns, budget=budget, measure=estimate_tokens, texts=texts)


def user_texts(messages: Sequence[Message]) -> list[str]:
    """What people wrote, in order."""
    return [
        block["text"]
        for message in messages
        if is_real_user_query(message)
        for block in blocks_of(message)
        if block["type"] == "text" and not is_injected(block)
    ]


def all_texts(turns: Sequence[Turn]) -> list[str]:
    return [text for each in turns for text in user_texts(each.messages)]


words = st.text(st.sampled_from("ab cé中文🎉\n"), min_size=1, max_size=60).filter(str.strip)
results = st.just("") | words | st.integers(1, 30_000).map(lambda n: "r" * n)


@st.composite
def histories(draw: st.DrawFn, max_turns: int = 12) -> list[Message]:
    messages: list[Message] = []
    for number in range(draw(st.integers(1, max_turns))):
        made = turn(
            f"{number} {draw(words)}",
            result=draw(results),
            answer=draw(st.booleans()),
            steps=draw(st.integers(1, 3)),
        )
        if draw(st.booleans()):
            made[0]["content"] = [*blocks_of(made[0]), image()]
        messages += made
    if draw(st.integers(0, 3)) == 0:
        inject_summary(messages, Summary(draw(words).strip(), draw(st.integers(1, 50))), ENGLISH)
    return messages


def image() -> Block:
    return {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


budgets = st.integers(1, 30_000)
limits = st.integers(1, 25)


# --- trim_messages ----------------------------------------------------------------------------------------


def test_a_history_that_fits_is_left_alone_to_the_byte() -> None:
    messages = history(20, "found it")
    inject_summary(messages, Summary("asked: x", 3), ENGLISH)
    before, contents = copy.deepcopy(messages), [message["content"] for message in messages]
    report = trim(messages)
    assert messages == before
    assert all(message["content"] is content for message, content in zip(messages, contents, strict=True))
    assert report == TrimReport(0, 0, (), report.tokens_before, report.tokens_before, None)


def test_over_max_turns_the_older_half_goes_and_the_summary_says_how_many() -> None:
    messages = history(21)
    report = trim(messages)
    assert len(report.dropped) == 10
    assert [user_texts(each.messages) for each in report.dropped] == [[f"question {n}"] for n in range(10)]
    first = blocks_of(messages[0])[0]
    assert first["type"] == "text"
    assert first["text"].startswith("[Earlier conversation, 10 turns]\nasked: question 0\nanswered: answer 0\n")
    assert report.summary == find_summary(messages)
    assert user_texts(messages) == [f"question {n}" for n in range(10, 21)]


def test_under_five_turns_are_compressed_to_question_and_answer_before_any_is_dropped() -> None:
    messages = history(4, "x" * 4000)
    last = copy.deepcopy(messages[-4:])
    heads = [message for message in messages if is_real_user_query(message)]
    report = trim(messages, budget=2000)
    assert report.compressed == 3
    assert report.dropped == ()
    assert report.summary is None
    assert messages == [
        user_message(text_block("question 0")),
        assistant_message(text_block("answer 0")),
        user_message(text_block("question 1")),
        assistant_message(text_block("answer 1")),
        user_message(text_block("question 2")),
        assistant_message(text_block("answer 2")),
        *last,
    ]
    assert all(
        kept is head for kept, head in zip((m for m in messages if is_real_user_query(m)), heads, strict=True)
    )


def test_from_five_turns_on_the_older_half_goes_before_anything_is_compressed() -> None:
    messages = history(5, "x" * 4000)
    report = trim(messages, budget=4000)
    assert len(report.dropped) == 2
    assert report.compressed == 0


def test_a_turn_that_compression_would_not_make_smaller_is_left_as_it_is() -> None:
    messages = [message for n in range(3) for message in turn(str(n), answer=False)]
    messages += turn("last", result="x" * 4000)
    report = trim(messages, budget=1020)
    assert report.compressed == 0
    assert not any(is_injected(b) for m in messages[1:] for b in blocks_of(m) if m["role"] == "assistant")


def test_the_summarys_own_message_is_no_turn() -> None:
    messages = turn("0")
    inject_summary(messages, Summary("asked: x", 3), ENGLISH)
    messages += [message for n in range(1, 20) for message in turn(str(n))]
    before = copy.deepcopy(messages)
    assert trim(messages, max_turns=20).dropped == ()
    assert messages == before


def test_turns_dropped_after_compression_are_given_out_as_they_were() -> None:
    messages = history(4, "x" * 4000)
    messages[0]["content"] = [text_block("question 0"), image()]
    original = copy.deepcopy(messages)
    heads = [message for message in messages if is_real_user_query(message)]
    report = trim(messages, budget=1100)
    assert report.compressed == 3
    assert report.dropped
    gone = [message for each in report.dropped for message in each.messages]
    assert gone == original[: len(gone)]
    assert all(each.messages[0] is head for each, head in zip(report.dropped, heads, strict=False))


@given(histories(), limits, budgets)
def test_it_fits_or_only_the_last_turn_is_left(messages: list[Message], max_turns: int, budget: int) -> None:
    report = trim(messages, max_turns=max_turns, budget=budget)
    turns = [each for each in identify_complete_turns(messages) if any(map(is_real_user_query, each.messages))]
    assert len(turns) <= max_turns
    assert estimate_tokens(messages) <= budget or len(turns) == 1
    assert report.tokens_after == estimate_tokens(messages)


@given(histories(), limits, budgets)
def test_the_last_turn_is_never_touched(messages: list[Message], max_turns: int, budget: int) -> None:
    last = identify_complete_turns(messages)[-1].messages
    before = copy.deepcopy(last)
    trim(messages, max_turns=max_turns, budget=budget)
    assert messages[-len(last) :] == before
    assert all(kept is was for kept, was in zip(messages[-len(last) :], last, strict=True))


@given(histories(), limits, budgets)
def test_what_was_dropped_and_what_was_kept_is_all_that_the_user_wrote(
    messages: list[Message], max_turns: int, budget: int
) -> None:
    before = user_texts(messages)
    heads = [message for message in messages if is_real_user_query(message)]
    report = trim(messages, max_turns=max_turns, budget=budget)
    assert all_texts(report.dropped) + user_texts(messages) == before
    gone = [message for each in report.dropped for message in each.messages if is_real_user_query(message)]
    kept = [message for message in messages if is_real_user_query(message)]
    assert [id(message) for message in gone + kept] == [id(message) for message in heads]


@given(histories(), limits, budgets, limits, budgets)
def test_a_second_trim_folds_the_first_ones_summary(
    messages: list[Message], max_turns: int, budget: int, later_turns: int, later_budget: int
) -> None:
    earlier = find_summary(messages)
    first = trim(messages, max_turns=max_turns, budget=budget)
    messages += turn("next", result="r" * 500) + turn("after")
    second = trim(messages, max_turns=later_turns, budget=later_budget)
    stands_for = (earlier.turns if earlier else 0) + len(first.dropped) + len(second.dropped)
    found = find_summary(messages)
    assert (found.turns if found else 0) == stands_for
    assert len(HEADING.findall(json.dumps(messages, ensure_ascii=False))) == (1 if stands_for else 0)
    for message in messages:
        for block in blocks_of(message):
            if block["type"] == "text" and HEADING.match(block["text"]):
                assert len(block["text"]) <= SUMMARY_LIMIT


@given(histories(), limits, budgets)
def test_trimming_twice_changes_nothing_the_second_time(
    messages: list[Message], max_turns: int, budget: int
) -> None:
    trim(messages, max_turns=max_turns, budget=budget)
    once = copy.deepcopy(messages)
    report = trim(messages, max_turns=max_turns, budget=budget)
    assert messages == once
    assert not report.dropped
    assert not report.truncated


@given(histories(), limits, budgets)
def test_blocks_are_replaced_and_never_changed(messages: list[Message], max_turns: int, budget: int) -> None:
    blocks = [block for message in messages for block in blocks_of(message)]
    before = copy.deepcopy(blocks)
    trim(messages, max_turns=max_turns, budget=budget)
    smart_compact_to_budget(messages, budget=None, measure=estimate_tokens, texts=ENGLISH, on_drop=lambda _: None)
    assert blocks == before


def test_a_summary_takes_no_more_than_its_share_of_a_small_budget() -> None:
    messages = [message for n in range(30) for message in turn(f"{n} " + "很长的问题" * 60)]
    report = trim(messages, budget=4000, texts=CHINESE)
    assert report.summary is not None
    assert estimate_tokens([user_message(text_block(report.summary.text))]) <= 1000
    assert user_texts(messages)[-1].startswith("question 29")


def test_leading_messages_without_a_question_are_the_first_to_go() -> None:
    orphans = [assistant_message(text_block("left over")), user_message(tool_result("t", "lost"))]
    messages = orphans + history(5)
    report = trim(messages, max_turns=5)
    assert report.dropped[0].messages == orphans
    assert is_real_user_query(messages[0])


def test_an_empty_history_is_left_empty() -> None:
    messages: list[Message] = []
    assert trim(messages, max_turns=1, budget=1).tokens_after == 0
    assert messages == []


def test_one_turn_over_the_budget_stays_whole() -> None:
    messages = turn("big", result="x" * 100_000)
    before = copy.deepcopy(messages)
    report = trim(messages, budget=100)
    assert messages == before
    assert report.tokens_before == report.tokens_after


# --- truncation -------------------------------------------------------------------------------------------


def test_only_results_of_turns_before_the_last_are_cut() -> None:
    long = "head " + "x" * 30_000 + " tail"
    messages = turn("old", result=long) + turn("new", result=long)
    assert truncate_historical_tool_results(messages) == 1
    old, new = (
        block["content"] for message in messages for block in blocks_of(message) if block["type"] == "tool_result"
    )
    assert isinstance(old, str)
    assert len(old) <= 20_000
    assert old.startswith("head ")
    assert old.endswith(" tail")
    assert "characters left out here" in old
    assert new == long


def test_what_the_core_made_up_keeps_its_mark() -> None:
    messages = [
        user_message(text_block("q")),
        user_message(injected_tool_result("t", "x" * 30_000)),
        *turn("last"),
    ]
    assert truncate_historical_tool_results(messages) == 0
    assert is_injected(blocks_of(messages[1])[0])


def test_parts_of_a_result_are_cut_together_and_images_stay() -> None:
    parts: list[Block] = [text_block("a" * 15_000), image(), text_block("b" * 15_000), text_block("short")]
    messages = [user_message(text_block("q")), user_message(tool_result("t", parts)), *turn("last")]  # type: ignore[arg-type]  # parts are text and images
    assert truncate_historical_tool_results(messages) == 1
    block = blocks_of(messages[1])[0]
    assert block["type"] == "tool_result"
    content = block["content"]
    assert not isinstance(content, str)
    sizes = [len(part["text"]) if part["type"] == "text" else 0 for part in content]
    assert sum(sizes) <= 20_000
    assert min(sizes[0], sizes[2]) > 9_000
    assert content[1]["type"] == "image"
    assert content[3] == text_block("short")


@given(histories(), st.integers(0, 3000))
def test_truncation_is_idempotent_and_never_leaves_more_than_the_limit(
    messages: list[Message], limit: int
) -> None:
    truncate_historical_tool_results(messages, limit)
    once = copy.deepcopy(messages)
    assert truncate_historical_tool_results(messages, limit) == 0
    assert messages == once
    for each in identify_complete_turns(messages)[:-1]:
        for message in each.messages:
            for block in blocks_of(message):
                if block["type"] == "tool_result" and isinstance(block["content"], str):
                    assert len(block["content"]) <= limit


GRAPHEMES = [
    "a",
    "\r\n",
    "\n",
    "👨‍👩‍👧",
    "🇩🇪",
    "e\u0301",
    "中",
    "한",
    "\u1100\u1161",
    "क्षि",
    "か\u3099",
    "\ud83d\ude00",
    "z\u0316\u0317",
]
texts_of_graphemes = st.lists(st.sampled_from(GRAPHEMES), max_size=200).map("".join)
PIECE = regex.compile("[\ud800-\udbff][\udc00-\udfff]|\\X")


def boundaries(text: str) -> set[int]:
    return {0, *(match.end() for match in PIECE.finditer(text))}


@given(texts_of_graphemes, st.integers(0, 300), st.sampled_from([ENGLISH, CHINESE]))
def test_a_cut_never_splits_a_grapheme_and_never_exceeds_the_limit(text: str, limit: int, texts: Texts) -> None:
    cut = cut_text(text, limit, texts)
    assert len(cut) <= limit or cut == text
    if len(text) <= limit:
        assert cut == text
        return
    head, mark, tail = partition_mark(cut, texts)
    assert text.startswith(head)
    assert len(head) in boundaries(text)
    if mark is not None:
        assert text.endswith(tail)
        assert len(text) - len(tail) in boundaries(text)
        assert mark == len(text) - len(head) - len(tail)
    assert cut_text(cut, limit, texts) == cut


def partition_mark(cut: str, texts: Texts) -> tuple[str, int | None, str]:
    before, after = texts.cut_mark.split("{gone}")
    found = regex.search(regex.escape(before) + r"(\d+)" + regex.escape(after), cut)
    if found is None:
        return cut, None, ""
    return cut[: found.start()], int(found[1]), cut[found.end() :]


@given(st.integers(300, 5000), st.integers(150, 290))
def test_cutting_again_counts_what_the_first_cut_took(first: int, second: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(6000))
    head, gone, tail = partition_mark(cut_text(cut_text(text, first), second), ENGLISH)
    assert gone == len(text) - len(head) - len(tail)


@given(texts_of_graphemes, st.integers(1, 100))
def test_heads_and_tails_are_whole_graphemes_within_the_limit(text: str, limit: int) -> None:
    for short in (head_text(text, limit), tail_text(text, limit)):
        assert len(short) <= max(limit, 1)


@given(st.lists(st.integers(0, 500), max_size=20), st.integers(0, 3000))
def test_the_water_level_is_the_highest_that_fits(sizes: list[int], total: int) -> None:
    level = water_level(sizes, total)
    assert sum(min(size, level) for size in sizes) <= total
    if sizes and level < max(sizes):
        assert sum(min(size, level + 1) for size in sizes) > total


# --- smart_compact_to_budget ------------------------------------------------------------------------------


def compact(messages: list[Message], budget: int | None = None, ratio: float = 1.0) -> tuple[bool, list[Turn]]:
    dropped: list[Turn] = []
    measure = calibrated(estimate_tokens, ratio)
    smaller = smart_compact_to_budget(
        messages, budget=budget, measure=measure, texts=ENGLISH, on_drop=dropped.extend
    )
    return smaller, dropped


@given(histories(), st.none() | budgets, st.sampled_from([0.5, 1.0, 2.0]))
def test_compaction_makes_it_really_smaller_or_says_no_and_changes_nothing(
    messages: list[Message], budget: int | None, ratio: float
) -> None:
    measure = calibrated(estimate_tokens, ratio)
    before, weight = copy.deepcopy(messages), measure(messages)
    smaller, dropped = compact(messages, budget, ratio)
    if smaller:
        assert measure(messages) < weight
    else:
        assert messages == before
        assert dropped == []


@given(histories(), st.none() | budgets)
def test_compaction_reaches_its_end_in_a_bounded_number_of_calls(
    messages: list[Message], budget: int | None
) -> None:
    calls = 0
    while compact(messages, budget)[0]:
        calls += 1
        assert calls < 200


@given(histories(), st.none() | budgets)
def test_compaction_keeps_the_question_by_identity_and_loses_no_other(
    messages: list[Message], budget: int | None
) -> None:
    head = next(message for message in reversed(messages) if is_real_user_query(message))
    before = user_texts(messages)
    smaller, dropped = compact(messages, budget)
    assert any(message is head for message in messages)
    if smaller:
        kept = user_texts(messages)
        # the last question may have been cut, all others are whole
        assert (all_texts(dropped) + kept)[: len(before) - 1] == before[:-1]


def test_what_the_provider_refused_although_it_seemed_to_fit_becomes_smaller() -> None:
    messages = history(8, "x" * 2000)
    weight = estimate_tokens(messages)
    smaller, dropped = compact(messages, budget=10 * weight)
    assert smaller
    assert estimate_tokens(messages) <= weight * 0.7
    assert dropped


def test_the_run_keeps_its_tool_chain_while_older_turns_can_go() -> None:
    run = turn("now", result="x" * 3000, steps=10, answer=False)
    messages = history(6, "y" * 3000) + run
    smaller, _ = compact(messages, budget=estimate_tokens(run) + 400)
    assert smaller
    assert messages[-len(run) :] == turn("now", result="x" * 3000, steps=10, answer=False)


def test_in_the_last_turn_the_largest_results_are_cut_first() -> None:
    messages = turn("now", result="small" * 100, answer=False)
    call: Block = {"type": "tool_use", "id": "big", "name": "search", "input": {}}
    messages += [assistant_message(call), user_message(tool_result("big", "x" * 100_000))]
    question = copy.deepcopy(messages[0])
    smaller, dropped = compact(messages, budget=5_000)
    assert smaller
    assert dropped == []
    assert 3_500 <= estimate_tokens(messages) <= 5_000
    contents = [b["content"] for m in messages for b in blocks_of(m) if b["type"] == "tool_result"]
    assert contents[0] == "small" * 100
    assert len(contents[1]) < 25_000
    assert messages[0] == question
    assert [b["id"] for m in messages for b in blocks_of(m) if b["type"] == "tool_use"] == ["now_0", "big"]


def test_pictures_in_the_last_turns_results_give_way_too() -> None:
    shot = tool_result("a", [text_block("a page"), image()])  # type: ignore[list-item]  # an image block
    messages = [user_message(text_block("look")), *(user_message(copy.deepcopy(shot)) for _ in range(5))]
    smaller, _ = compact(messages, budget=1_000)
    assert smaller
    assert estimate_tokens(messages) <= 1_000


def test_a_long_pasted_question_keeps_head_and_tail_and_its_dict() -> None:
    head: Message = {"role": "user", "content": "Sum this up: " + "x" * 50_000 + " Thanks!"}
    messages = [head]
    smaller, _ = compact(messages, budget=4_000)
    assert smaller
    assert messages[0] is head
    (block,) = blocks_of(head)
    assert block["type"] == "text"
    assert block["text"].startswith("Sum this up: xxx")
    assert block["text"].endswith("xxx Thanks!")
    assert estimate_tokens(messages) <= 4_000


def test_a_short_question_alone_can_not_become_smaller() -> None:
    messages = [user_message(text_block("hello"))]
    assert compact(messages, budget=1) == (False, [])


def test_many_short_turns_become_smaller_although_a_summary_has_weight() -> None:
    messages = history(6)
    weight = estimate_tokens(messages)
    assert compact(messages, budget=weight // 2)[0]
    assert estimate_tokens(messages) < weight
    assert find_summary(messages) is not None


def test_a_summary_heavier_than_what_it_stands_for_goes() -> None:
    messages = [user_message(text_block("hi")), user_message(text_block("there"))]
    smaller, dropped = compact(messages, budget=1)
    assert smaller
    assert messages == [user_message(text_block("there"))]
    assert all_texts(dropped) == ["hi"]


@pytest.mark.parametrize("count", [3, 10])
def test_dropped_turns_are_handed_over_once(count: int) -> None:
    messages = history(count, "x" * 1000)
    before = user_texts(messages)
    calls: list[Sequence[Turn]] = []
    smart_compact_to_budget(messages, budget=50, measure=estimate_tokens, texts=ENGLISH, on_drop=calls.append)
    assert len(calls) == 1
    assert all_texts(calls[0]) == before[:-1]


def test_turns_are_weighed_once_and_not_in_each_round() -> None:
    weighed = 0

    def measure(messages: Sequence[Message]) -> int:
        nonlocal weighed
        weighed += len(messages)
        return estimate_tokens(messages)

    messages = history(2500, "found")
    count = len(messages)
    trim_messages(messages, max_turns=10_000, budget=1000, measure=measure, texts=ENGLISH)
    assert weighed < 2 * count


# --- with defence 2 ---------------------------------------------------------------------------------------


def holds_a_placeholder(message: Message) -> bool:
    """The repair may put a lost result before a question; it goes with its call, and the repair sees to that."""
    return is_real_user_query(message) and any(block["type"] == "tool_result" for block in blocks_of(message))


@given(legal_histories(max_turns=8), limits, st.integers(1, 400), st.booleans())
def test_a_legal_history_stays_legal(
    messages: list[Message], max_turns: int, budget: int, compacted: bool
) -> None:
    assume(not any(map(holds_a_placeholder, messages)))
    if compacted:
        compact(messages, budget)
    else:
        trim(messages, max_turns=max_turns, budget=budget)
    assert sanitize_claude_messages(messages) == 0


@pytest.mark.parametrize("max_turns", [20, 1])
def test_the_report_weighs_what_stood_there_before_results_were_cut(max_turns: int) -> None:
    messages = history(2, result="r" * 60_000)
    before = estimate_tokens(messages)
    report = trim(messages, max_turns=max_turns)
    assert report.truncated == 1
    assert report.tokens_before == before
    assert report.tokens_after == estimate_tokens(messages) < before
