"""The summary of dropped turns: bounded, folded, never nested, at its place."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.messages import (
    Block,
    Message,
    assistant_message,
    blocks_of,
    injected_text,
    is_injected,
    text_block,
    user_message,
    without_injected,
)
from agent.summary import (
    SUMMARY_LIMIT,
    Summary,
    digest,
    find_summary,
    inject_summary,
    replace_summary,
    summary_request,
    take_summary,
)
from agent.texts import CHINESE, ENGLISH, Texts
from agent.turns import Turn, identify_complete_turns

both = st.sampled_from([ENGLISH, CHINESE])
words = st.text(max_size=600)
summaries = st.builds(lambda text, turns: Summary(text.strip(), turns), words, st.integers(0, 10**6))


def turn_of(asked: str, answered: str = "") -> Turn:
    messages: list[Message] = [user_message(text_block(asked))]
    if answered:
        messages.append(assistant_message(text_block(answered)))
    return Turn(messages)


turns = st.lists(st.builds(turn_of, words, words), max_size=30)


def conversation(count: int) -> list[Message]:
    return [m for n in range(count) for m in turn_of(f"q{n}", f"a{n}").messages]


def block_text(messages: list[Message]) -> str:
    """The text of the one summary block."""
    (text,) = (
        block["text"]
        for message in messages
        for block in blocks_of(message)
        if block["type"] == "text" and is_injected(block)
    )
    return text


@given(turns, st.none() | summaries, both)
def test_a_digest_is_bounded_and_counts_every_turn(
    dropped: list[Turn], earlier: Summary | None, texts: Texts
) -> None:
    summary = digest(dropped, earlier, texts)
    assert summary.turns == len(dropped) + (earlier.turns if earlier else 0)
    messages = conversation(2)
    inject_summary(messages, summary, texts)
    assert len(block_text(messages)) <= SUMMARY_LIMIT
    assert digest(dropped, earlier, texts) == summary


@given(turns, summaries, both)
def test_a_digest_never_nests(dropped: list[Turn], earlier: Summary, texts: Texts) -> None:
    heading = texts.summary_heading.format(turns=7)
    dropped = [*dropped, turn_of(f"what does {heading} mean", heading)]
    once = digest(dropped, earlier, texts)
    assert "\n[" not in once.text.removeprefix(earlier.text) or heading not in once.text
    messages = conversation(3)
    inject_summary(messages, digest(dropped, once, texts), texts)
    assert block_text(messages).count(heading) == 0


def test_a_digest_says_what_was_asked_and_what_was_answered_last() -> None:
    turn = Turn(
        [
            user_message(text_block("where\n is it?")),
            assistant_message(text_block("I look"), {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
            user_message({"type": "tool_result", "tool_use_id": "t", "content": "secret result"}),
            assistant_message(text_block("in the kitchen")),
        ]
    )
    assert digest([turn, turn_of("and now?")], None, ENGLISH).text == (
        "asked: where is it?\nanswered: in the kitchen\nasked: and now?\nanswered: (This was not answered.)"
    )


def test_short_equal_texts_are_all_there() -> None:
    """Identity counts, not what a text reads like."""
    assert digest([turn_of("ok", "fine")] * 3, None, ENGLISH).text.count("asked: ok\nanswered: fine") == 3


def test_a_picture_without_a_word_is_named() -> None:
    picture: Block = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    messages = [user_message(picture), assistant_message(text_block("a cat"))]
    assert digest([Turn(messages)], None, ENGLISH).text == "asked: [image]\nanswered: a cat"


def test_an_earlier_summary_comes_first_and_gives_way_from_its_oldest_line() -> None:
    earlier = Summary("\n".join(f"asked: old {n} {'x' * 50}" for n in range(60)), 60)
    summary = digest([turn_of("new " + "y" * 300, "z" * 300) for _ in range(10)], earlier, ENGLISH)
    assert summary.turns == 70
    assert "asked: old 59" in summary.text
    assert "asked: old 0 " not in summary.text
    assert summary.text.index("old 59") < summary.text.index("new ")
    assert summary.text.count("asked: new") == 10


def test_of_too_many_turns_the_newest_are_named() -> None:
    summary = digest([turn_of(f"question number {n} " + "x" * 100, "a") for n in range(2000)], None, ENGLISH)
    assert summary.turns == 2000
    assert "question number 1999 " in summary.text
    assert "question number 0 " not in summary.text


def test_it_stands_in_the_first_kept_question() -> None:
    messages = conversation(3)
    first = messages[0]
    inject_summary(messages, Summary("asked: x", 4), ENGLISH)
    assert messages[0] is first
    assert len(messages) == 6
    assert blocks_of(first) == [
        {"type": "text", "text": "[Earlier conversation, 4 turns]\nasked: x"},
        text_block("q0"),
    ]
    assert len(identify_complete_turns(messages)) == 3


def test_it_never_stands_in_the_last_question() -> None:
    messages = conversation(1)
    before = copy.deepcopy(messages)
    inject_summary(messages, Summary("asked: x", 4), ENGLISH)
    assert messages[1:] == before
    assert messages[0] == user_message(text_block("[Earlier conversation, 4 turns]\nasked: x"))


@given(summaries, st.integers(0, 4), both)
def test_what_is_injected_can_be_found_and_taken_out_again(summary: Summary, count: int, texts: Texts) -> None:
    messages = conversation(count)
    before = copy.deepcopy(messages)
    inject_summary(messages, summary, texts)
    assert find_summary(messages) == summary
    assert without_injected(messages) == before
    assert take_summary(messages) == summary
    assert messages == before
    assert take_summary(messages) is None


def test_what_a_person_wrote_is_no_summary() -> None:
    messages = [
        user_message(text_block("[Earlier conversation, 4 turns]\nasked: x")),
        user_message(injected_text("a nudge")),
    ]
    assert find_summary(messages) is None
    assert take_summary(messages) is None


def test_several_summaries_come_out_as_one() -> None:
    messages = conversation(2)
    inject_summary(messages, Summary("asked: new", 2), ENGLISH)
    inject_summary(messages, Summary("问：旧", 3), CHINESE)
    assert take_summary(messages) == Summary("问：旧\nasked: new", 5)
    assert messages == conversation(2)


@pytest.mark.parametrize("count", [1, 3])
def test_a_better_text_takes_its_place_and_keeps_the_count(count: int) -> None:
    messages = conversation(count)
    inject_summary(messages, Summary("asked: x", 4), ENGLISH)
    size, ids = len(messages), [id(message) for message in messages]
    assert replace_summary(messages, "  They spoke of x.  ", ENGLISH, expected=Summary("asked: x", 4))
    assert find_summary(messages) == Summary("They spoke of x.", 4)
    assert len(messages) == size
    assert [id(message) for message in messages] == ids


def test_a_text_for_an_older_summary_changes_nothing() -> None:
    messages = conversation(2)
    assert not replace_summary(messages, "x", ENGLISH)
    inject_summary(messages, Summary("asked: y", 9), ENGLISH)
    before = copy.deepcopy(messages)
    assert not replace_summary(messages, "about x", ENGLISH, expected=Summary("asked: x", 4))
    assert not replace_summary(messages, " \n", ENGLISH)
    assert messages == before


@example("x" * 9000, ENGLISH)
@example("很" * 9000, CHINESE)
@given(st.text(max_size=200), both)
def test_a_models_text_is_bounded_and_brings_no_heading_of_its_own(text: str, texts: Texts) -> None:
    messages = conversation(2)
    inject_summary(messages, Summary("asked: x", 4), texts)
    heading = texts.summary_heading.format(turns=4)
    replace_summary(messages, f"{heading}\n{text}", texts)
    assert len(block_text(messages)) <= SUMMARY_LIMIT
    assert block_text(messages).count(heading) == 1


def test_the_request_for_a_model_names_the_bound_and_holds_the_digest() -> None:
    system, user = summary_request(Summary("asked: x", 4), ENGLISH)
    assert "at most 3968 characters" in system
    assert user == "asked: x"
