"""Defence 2, legality (four-defences §3; field notes A 13-17, B 1)."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import Block, Message, injected_text, injected_tool_result, is_injected, text_block
from agent.repair import (
    Repairer,
    compress_turn_to_text_only,
    drop_orphaned_tool_results_openai,
    sanitize_claude_messages,
)
from agent.texts import CHINESE, ENGLISH
from agent.turns import Turn, identify_complete_turns, is_real_user_query
from tests.agent.legality import anthropic_violations, openai_violations
from tests.agent.strategies import any_histories, damaged_histories, legal_histories


def user(*blocks: Any) -> Message:
    return cast("Message", {"role": "user", "content": [_block(block) for block in blocks]})


def assistant(*blocks: Any) -> Message:
    return cast("Message", {"role": "assistant", "content": [_block(block) for block in blocks]})


def _block(block: Any) -> Any:
    return text_block(block) if isinstance(block, str) else block


def use(call_id: str, name: str = "search") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def result(call_id: str, content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def lost(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": ENGLISH.lost_result, "is_error": True}


THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def repaired(*messages: Message) -> list[Message]:
    done = list(messages)
    assert sanitize_claude_messages(done) > 0
    assert anthropic_violations(done) == []
    return done


class TestEveryHistory:
    @given(any_histories)
    def test_is_legal_in_both_readings_afterwards(self, messages: list[Message]) -> None:
        sanitize_claude_messages(messages)
        assert anthropic_violations(messages) == []

    @given(any_histories)
    def test_is_left_alone_the_second_time(self, messages: list[Message]) -> None:
        sanitize_claude_messages(messages)
        once = copy.deepcopy(messages)
        assert sanitize_claude_messages(messages) == 0
        assert messages == once

    @given(any_histories)
    def test_counts_no_repair_exactly_where_nothing_changed(self, messages: list[Message]) -> None:
        before = copy.deepcopy(messages)
        repairs = sanitize_claude_messages(messages)
        assert (repairs == 0) == (messages == before)
        assert repairs >= 0

    @given(legal_histories())
    def test_that_is_legal_comes_out_unchanged(self, messages: list[Message]) -> None:
        assert anthropic_violations(messages) == []
        contents = [message["content"] for message in messages]
        objects = list(messages)
        before = copy.deepcopy(messages)
        assert sanitize_claude_messages(messages) == 0
        assert messages == before
        assert all(message is same for message, same in zip(messages, objects, strict=True))
        assert all(message["content"] is same for message, same in zip(messages, contents, strict=True))

    @given(any_histories)
    def test_that_passes_the_rules_needs_no_repair(self, messages: list[Message]) -> None:
        if anthropic_violations(messages) == []:
            assert sanitize_claude_messages(messages) == 0

    @given(any_histories)
    def test_keeps_every_text_the_user_wrote_in_its_order(self, messages: list[Message]) -> None:
        before = list(_user_texts(messages))
        sanitize_claude_messages(messages)
        assert list(_user_texts(messages)) == before

    @given(any_histories)
    def test_has_its_blocks_replaced_and_never_changed(self, messages: list[Message]) -> None:
        blocks = [block for message in messages for block in _raw_blocks(message)]
        before = copy.deepcopy(blocks)
        sanitize_claude_messages(messages)
        assert blocks == before

    @given(damaged_histories())
    def test_keeps_its_questions_as_the_same_messages_and_as_questions(self, messages: list[Message]) -> None:
        queries = [message for message in messages if is_real_user_query(message)]
        sanitize_claude_messages(messages)
        by_identity = {id(message) for message in messages}
        assert all(id(query) in by_identity and is_real_user_query(query) for query in queries)

    @given(damaged_histories())
    def test_keeps_the_thinking_of_an_answer_that_goes_on_after_it(self, messages: list[Message]) -> None:
        wanted = Counter(
            id(block)
            for message in messages[_first_question(messages) :]
            if message["role"] == "assistant"
            for block, tail in _with_tail(_raw_blocks(message))
            if "thinking" in block["type"] and any("thinking" not in later["type"] for later in tail)
        )
        sanitize_claude_messages(messages)
        assert wanted == Counter(
            id(block) for message in messages for block in _raw_blocks(message) if "thinking" in block["type"]
        )

    @given(damaged_histories(), st.randoms())
    def test_loses_no_result_that_comes_after_its_call_wherever_it_stands(
        self, messages: list[Message], random: Any
    ) -> None:
        sanitize_claude_messages(messages)
        real = [block for block in _results(messages) if not is_injected(cast("Block", block))]
        for block in real:
            owner = next(message for message in messages if any(b is block for b in _raw_blocks(message)))
            cast("list[Any]", owner["content"]).remove(block)
            home = next(index for index, message in enumerate(messages) if message is owner)
            place = random.randint(home + 1, len(messages))
            messages.insert(place, user(block))
        sanitize_claude_messages(messages)
        kept = {block["tool_use_id"]: block["content"] for block in _results(messages)}
        assert all(kept[block["tool_use_id"]] == block["content"] for block in real)


def _user_texts(messages: list[Message]) -> Iterator[str]:
    """Texts of messages that are the user's, or may be for all one can tell; the core's own are left out."""
    for message in cast("list[Any]", messages):
        if not isinstance(message, dict):
            continue
        role = message.get("role")
        content = message.get("content")
        kinds = [
            b.get("type") for b in (content if isinstance(content, list) else [content]) if isinstance(b, dict)
        ]
        assistants = any(kind in kinds for kind in ("tool_use", "thinking", "redacted_thinking"))
        unknown = not isinstance(role, str) and not assistants
        if role != "user" and not unknown:
            continue
        for block in content if isinstance(content, list) else [content]:
            text = block if isinstance(block, str) else None
            if isinstance(block, dict) and block.get("type") not in _NO_TEXT and not is_injected(block):
                text = block.get("text")
            if isinstance(text, str) and text.strip():
                yield text


_NO_TEXT = ["image", "tool_use", "tool_result", "thinking", "redacted_thinking"]


def _raw_blocks(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _results(messages: list[Message]) -> list[dict[str, Any]]:
    return [block for message in messages for block in _raw_blocks(message) if block["type"] == "tool_result"]


def _first_question(messages: list[Message]) -> int:
    for index, message in enumerate(messages):
        if message["role"] == "user" and any(block["type"] != "tool_result" for block in _raw_blocks(message)):
            return index
    return len(messages)


def _with_tail(blocks: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    for place, block in enumerate(blocks):
        yield block, blocks[place + 1 :]


class TestOneFault:
    def test_a_missing_result_is_put_before_the_text_of_the_next_user_message(self) -> None:
        query = user("and now?")
        done = [user("hi"), assistant(use("a")), query]
        assert sanitize_claude_messages(done) == 1
        assert done == [user("hi"), assistant(use("a")), user(lost("a"), "and now?")]
        assert done[2] is query
        assert is_injected(cast("Block", query["content"][0]))

    def test_a_missing_result_at_the_end_gets_a_message_of_its_own(self) -> None:
        done = repaired(user("hi"), assistant("let me see", use("a"), use("b")))
        assert done == [user("hi"), assistant("let me see", use("a"), use("b")), user(lost("a"), lost("b"))]

    def test_a_partly_answered_step_is_filled_up_behind_the_real_results(self) -> None:
        done = repaired(user("hi"), assistant(use("a"), use("b")), user(result("b"), "well?"))
        assert done[2] == user(result("b"), lost("a"), "well?")

    def test_the_placeholder_speaks_the_language_it_is_told(self) -> None:
        done = [user("hi"), assistant(use("a"))]
        sanitize_claude_messages(done, CHINESE)
        assert _results(done)[0]["content"] == CHINESE.lost_result

    def test_what_stands_before_the_first_question_goes(self) -> None:
        done = repaired(
            user(result("x")), assistant(use("a"), "so"), user(result("a")), user("hi"), assistant("yes")
        )
        assert done == [user("hi"), assistant("yes")]

    def test_text_beside_results_of_a_call_that_was_cut_off_stays(self) -> None:
        assert repaired(assistant(use("a")), user(result("a"), "stop that")) == [user("stop that")]

    def test_results_split_over_two_user_messages_are_joined(self) -> None:
        done = repaired(user("hi"), assistant(use("a"), use("b")), user(result("a")), user(result("b"), "more"))
        assert done == [user("hi"), assistant(use("a"), use("b")), user(result("a"), result("b")), user("more")]

    def test_text_before_results_moves_behind_them(self) -> None:
        done = repaired(user("hi"), assistant(use("a")), user("look:", result("a")))
        assert done[2] == user(result("a"), "look:")

    def test_of_two_results_for_one_id_the_first_stays(self) -> None:
        done = repaired(user("hi"), assistant(use("a")), user(result("a", "1"), result("a", "2")))
        assert done[2] == user(result("a", "1"))

    def test_a_real_result_takes_the_place_of_a_placeholder(self) -> None:
        placeholder = injected_tool_result("a", ENGLISH.lost_result)
        done = repaired(user("hi"), assistant(use("a")), user(placeholder, "well?"), user(result("a", "late")))
        assert done == [user("hi"), assistant(use("a")), user(result("a", "late")), user("well?")]

    def test_a_late_result_is_put_back_to_its_call_and_the_question_between_stays_one(self) -> None:
        question = user("still there?")
        done = repaired(user("hi"), assistant(use("a")), question, user(result("a")), assistant("yes"))
        assert done == [user("hi"), assistant(use("a")), user(result("a")), user("still there?"), assistant("yes")]
        assert done[3] is question
        assert len(identify_complete_turns(done)) == 2

    def test_a_late_result_crosses_an_answer_too(self) -> None:
        done = repaired(user("hi"), assistant(use("a")), user("hey"), assistant("hm"), user(result("a")))
        assert done == [user("hi"), assistant(use("a")), user(result("a")), user("hey"), assistant("hm")]

    def test_an_id_used_again_in_a_later_turn_keeps_both_results(self) -> None:
        one = [user("1"), assistant(use("call_0")), user(result("call_0", "one"))]
        two = [user("2"), assistant(use("call_0")), user(result("call_0", "two"))]
        done = repaired(*one, *two)
        assert done[:3] == [user("1"), assistant(use("call_0")), user(result("call_0", "one"))]
        assert done[3:] == [user("2"), assistant(use("call_0_2")), user(result("call_0_2", "two"))]

    def test_an_id_used_twice_in_one_message_keeps_both_results_in_their_order(self) -> None:
        done = repaired(
            user("1"),
            assistant(use("call_0", "search"), use("call_0", "read")),
            user(result("call_0", "found"), result("call_0", "text")),
        )
        assert done[1:] == [
            assistant(use("call_0", "search"), use("call_0_2", "read")),
            user(result("call_0", "found"), result("call_0_2", "text")),
        ]

    def test_a_new_id_avoids_every_id_that_comes_later(self) -> None:
        done = repaired(
            user("1"),
            assistant(use("c")),
            user(result("c", "1")),
            assistant(use("c")),
            user(result("c", "2")),
            assistant(use("c_2")),
            user(result("c_2", "3")),
        )
        assert [block["tool_use_id"] for block in _results(done)] == ["c", "c_3", "c_2"]
        assert [block["content"] for block in _results(done)] == ["1", "2", "3"]

    @pytest.mark.parametrize("bad_id", ["functions.search:0", "a b", "ü", "x" * 65])
    def test_an_id_that_the_provider_refuses_is_renamed_with_its_result(self, bad_id: str) -> None:
        done = repaired(user("hi"), assistant(use(bad_id)), user(result(bad_id, "kept")))
        assert _results(done)[0]["content"] == "kept"

    def test_a_call_without_an_id_gets_one_and_a_result_without_one_goes(self) -> None:
        nameless = {"type": "tool_use", "name": "search", "input": {}}
        answer = {"type": "tool_result", "content": "?"}
        done = repaired(user("hi"), assistant(nameless), user(answer, "so"))
        assert done == [user("hi"), assistant(use("call")), user(lost("call"), "so")]

    def test_a_call_without_a_name_goes_and_the_text_beside_it_stays(self) -> None:
        broken = {"type": "tool_use", "id": "a", "input": {}}
        done = repaired(user("hi"), assistant("let me look", broken), user(result("a")), user("ok"))
        assert done == [user("hi"), assistant("let me look"), user("ok")]

    def test_arguments_that_stayed_text_become_an_object(self) -> None:
        done = repaired(user("hi"), assistant({**use("a"), "input": '{"q": 1}'}, {**use("b"), "input": "{"}))
        assert [block["input"] for block in _raw_blocks(done[1])] == [{"q": 1}, {}]

    def test_two_calling_messages_in_a_row_are_each_answered_in_the_next_message(self) -> None:
        done = repaired(user("hi"), assistant(use("a")), assistant(use("b")), user(result("a"), result("b")))
        assert done == [user("hi"), assistant(use("a")), user(result("a")), assistant(use("b")), user(result("b"))]

    def test_empty_messages_and_blank_texts_go(self) -> None:
        done = repaired(
            user("hi", " "), user(), assistant(""), {"role": "assistant", "content": ""}, user("x", "")
        )
        assert done == [user("hi"), user("x")]

    def test_an_answer_of_thinking_alone_goes_and_thinking_before_a_call_stays(self) -> None:
        done = repaired(
            user("1"), assistant(THINKING), user("2"), assistant(THINKING, use("a")), user(result("a"))
        )
        assert done == [user("1"), user("2"), assistant(THINKING, use("a")), user(result("a"))]

    def test_a_failed_call_has_text_only_and_some(self) -> None:
        picture = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        done = repaired(
            user("hi"),
            assistant(use("a"), use("b")),
            user(
                {**result("a", [text_block("no"), picture]), "is_error": True},
                {**result("b", ""), "is_error": True},
            ),
        )
        assert done[2] == user({**result("a", [text_block("no")]), "is_error": True}, lost("b"))

    def test_one_dict_that_stands_twice_in_the_list_becomes_two_messages(self) -> None:
        step = [assistant(use("a")), user(result("a"))]
        done = repaired(user("hi"), *step, *step)
        assert done[3:] == [assistant(use("a_2")), user(result("a_2"))]

    def test_a_bare_string_among_the_blocks_becomes_a_text(self) -> None:
        assert repaired(cast("Message", {"role": "user", "content": ["hi", " "]})) == [user("hi")]

    def test_an_image_that_holds_nothing_goes(self) -> None:
        empty = {"type": "image", "source": {"type": "url", "url": ""}}
        partly = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}
        assert repaired(user(empty, partly, {"type": "image"}, "hi")) == [user("hi")]

    def test_a_block_whose_type_is_no_text_goes(self) -> None:
        assert repaired(cast("Message", {"content": [{"type": []}, {"type": {}, "text": "hi"}]})) == [user("hi")]

    def test_messages_that_are_nobodys_go(self) -> None:
        system = cast("Message", {"role": "system", "content": "be nice"})
        nothing = cast("Message", None)
        roleless = cast("Message", {"content": "hello"})
        assert repaired(system, nothing, user("hi"), roleless) == [
            user("hi"),
            {"role": "user", "content": "hello"},
        ]

    def test_text_in_a_block_of_an_unknown_kind_stays(self) -> None:
        odd = {"type": "input_text", "text": "hello"}
        assert repaired(user(odd, {"type": "video"})) == [user("hello")]


class TestRepairer:
    @given(st.lists(any_histories, max_size=5))
    def test_ends_where_the_full_pass_ends_however_the_list_grew(self, parts: list[list[Message]]) -> None:
        grown: list[Message] = []
        whole: list[Message] = []
        repairer = Repairer()
        for part in parts:
            grown += copy.deepcopy(part)
            whole += copy.deepcopy(part)
            assert repairer.repair(grown) == sanitize_claude_messages(whole)
            assert grown == whole

    @given(damaged_histories(), st.lists(st.integers(1, 3), max_size=12))
    def test_ends_where_the_full_pass_ends_when_called_after_every_few_messages(
        self, messages: list[Message], sizes: list[int]
    ) -> None:
        grown: list[Message] = []
        whole: list[Message] = []
        repairer = Repairer()
        for size in [*sizes, len(messages)]:
            part, messages = messages[:size], messages[size:]
            grown += copy.deepcopy(part)
            whole += copy.deepcopy(part)
            assert repairer.repair(grown) == sanitize_claude_messages(whole)
            assert grown == whole

    def test_sees_a_text_that_was_added_to_the_last_results(self) -> None:
        repairer = Repairer()
        messages = [user("hi"), assistant(use("a")), user(result("a"))]
        repairer.repair(messages)
        cast("list[Block]", messages[2]["content"]).insert(0, injected_text("nudge"))
        assert repairer.repair(messages) == 1
        assert anthropic_violations(messages) == []

    def test_puts_a_late_result_back_far_behind(self) -> None:
        repairer = Repairer()
        messages = [user("hi"), assistant(use("a")), user("hm")]
        for number in range(8):
            messages += [assistant(use(f"b{number}")), user(result(f"b{number}"))]
            repairer.repair(messages)
        messages.append(user(result("a", "late")))
        assert repairer.repair(messages) > 0
        assert _results(messages)[0] == result("a", "late")
        assert anthropic_violations(messages) == []
        assert repairer.repair(messages) == 0

    def test_looks_at_everything_again_when_told_to_forget(self) -> None:
        repairer = Repairer()
        messages = [user("hi"), assistant(use("a")), user(result("a")), assistant("x"), user("y"), assistant("z")]
        repairer.repair(messages)
        messages[2]["content"] = "gone"
        assert repairer.repair(messages) == 0
        repairer.forget()
        assert repairer.repair(messages) == 1
        assert anthropic_violations(messages) == []

    def test_notices_another_list_and_a_shorter_one(self) -> None:
        repairer = Repairer()
        first = [user("1"), assistant("x"), user("2"), assistant("y")]
        repairer.repair(first)
        second = [user("1"), assistant(use("a")), user("2"), assistant("y")]
        assert repairer.repair(second) == 1
        third = [user("1"), assistant(use("c")), *second[2:]]  # ends in the very message that was verified last
        assert repairer.repair(third) == 1
        assert anthropic_violations(third) == []
        del second[1:]
        second += [assistant(use("b")), user("3")]
        assert repairer.repair(second) == 1
        assert anthropic_violations(second) == []

    def test_touches_no_message_before_the_last_answer_again(self) -> None:
        class Watched(dict[str, Any]):
            reads = 0

            def get(self, *args: Any) -> Any:
                Watched.reads += 1
                return super().get(*args)

            def __getitem__(self, key: str) -> Any:
                Watched.reads += 1
                return super().__getitem__(key)

        repairer = Repairer()
        messages: list[Message] = []
        reads = []
        for number in range(200):
            step = [user(f"{number}"), assistant(use(f"a{number}")), user(result(f"a{number}")), assistant("done")]
            messages += [cast("Message", Watched(message)) for message in step]
            Watched.reads = 0
            repairer.repair(messages)
            reads.append(Watched.reads)
        assert reads[-1] <= max(reads[:4])


class TestCompressedTurn:
    @given(any_histories)
    def test_is_at_most_one_question_and_one_answer_in_plain_text(self, messages: list[Message]) -> None:
        sanitize_claude_messages(messages)
        for turn in identify_complete_turns(messages):
            before = copy.deepcopy(turn.messages)
            short = compress_turn_to_text_only(turn)
            assert [message["role"] for message in short.messages] in (["user", "assistant"], ["assistant"], [])
            assert all(block["type"] == "text" for message in short.messages for block in _raw_blocks(message))
            assert turn.messages == before
            assert compress_turn_to_text_only(short) is short

    @given(damaged_histories())
    def test_still_begins_with_the_question(self, messages: list[Message]) -> None:
        sanitize_claude_messages(messages)
        for turn in identify_complete_turns(messages):
            short = compress_turn_to_text_only(turn)
            assert anthropic_violations(short.messages) == [] or not is_real_user_query(turn.messages[0])
            if is_real_user_query(turn.messages[0]):
                assert identify_complete_turns(short.messages) == [short]

    def test_has_the_first_question_the_summary_and_the_last_answer(self) -> None:
        summary = injected_text("[Earlier conversation, 2 turns]\nasked: a")
        turn = Turn(
            [
                user(summary, "why?"),
                assistant(THINKING, "let me see", use("a")),
                user(result("a"), "quick!"),
                assistant("because"),
            ]
        )
        short = compress_turn_to_text_only(turn).messages
        assert short == [user(summary, "why?"), assistant("because")]
        assert is_injected(cast("Block", short[0]["content"][0]))

    def test_says_so_where_nothing_was_answered(self) -> None:
        short = compress_turn_to_text_only(Turn([user("why?"), assistant(use("a")), user(result("a"))]), CHINESE)
        assert short.messages == [user("why?"), assistant(CHINESE.not_answered)]
        assert is_injected(cast("Block", short.messages[1]["content"][0]))

    def test_stands_for_a_picture_by_a_word(self) -> None:
        picture = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        short = compress_turn_to_text_only(Turn([user(picture), assistant("a cat")]))
        assert short.messages == [user("[image]"), assistant("a cat")]
        assert is_real_user_query(short.messages[0])


_call_ids = st.sampled_from(["a", "b", "c", "", None])
_openai_messages = st.lists(
    st.builds(lambda i, c: {"role": "tool", "tool_call_id": i, "content": c}, _call_ids, st.text(max_size=2))
    | st.builds(lambda text: {"role": "user", "content": text}, st.sampled_from(["hi", "go on"]))
    | st.builds(
        lambda ids, text: {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids
            ],
        },
        st.lists(_call_ids, max_size=3),
        st.sampled_from(["x", None]),
    )
    | st.just({"role": "assistant", "content": "ok"})
    | st.just({"role": "assistant", "content": "ok", "tool_calls": [None, 3]})
    | st.just({"role": "assistant", "content": None, "tool_calls": None}),
    max_size=9,
)


class TestOpenAIHistory:
    @given(_openai_messages)
    def test_is_legal_afterwards_and_the_input_is_unchanged(self, messages: list[dict[str, object]]) -> None:
        before = copy.deepcopy(messages)
        done = drop_orphaned_tool_results_openai(messages)
        assert openai_violations(done) == []
        assert messages == before

    @given(_openai_messages)
    def test_is_left_alone_the_second_time(self, messages: list[dict[str, object]]) -> None:
        done = drop_orphaned_tool_results_openai(messages)
        again = drop_orphaned_tool_results_openai(done)
        assert len(again) == len(done)
        assert all(a is b for a, b in zip(again, done, strict=True))

    def test_drops_orphans_and_doubles_fills_gaps_and_moves_late_answers_back(self) -> None:
        calling: dict[str, object] = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a"}, {"id": "b"}],
        }
        question: dict[str, object] = {"role": "user", "content": "hm"}
        late: dict[str, object] = {"role": "tool", "tool_call_id": "b", "content": "late"}
        double: dict[str, object] = {"role": "tool", "tool_call_id": "b", "content": "double"}
        orphan: dict[str, object] = {"role": "tool", "tool_call_id": "x", "content": "?"}
        done = drop_orphaned_tool_results_openai([orphan, calling, question, late, double], CHINESE)
        filled = {"role": "tool", "tool_call_id": "a", "content": CHINESE.lost_result}
        assert done == [calling, late, filled, question]

    def test_lets_a_later_message_use_an_id_again(self) -> None:
        def step(text: str) -> list[dict[str, object]]:
            return [
                {"role": "assistant", "content": None, "tool_calls": [{"id": "call_0"}]},
                {"role": "tool", "tool_call_id": "call_0", "content": text},
            ]

        messages = [*step("one"), *step("two")]
        assert drop_orphaned_tool_results_openai(messages) == messages

    def test_gives_two_calls_with_one_id_an_answer_each(self) -> None:
        messages: list[dict[str, object]] = [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "a"}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "a", "content": "2"},
        ]
        done = drop_orphaned_tool_results_openai(messages)
        assert [message["content"] for message in done] == [None, "1", "2"]
        assert openai_violations(done) == []


def test_a_message_without_a_role_gets_one_and_counts_as_one_repair() -> None:
    asked = cast("Message", {"content": [{"type": "text", "text": "who am I?"}]})
    messages = [asked]
    assert sanitize_claude_messages(messages) == 1
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "who am I?"}]}]
    assert sanitize_claude_messages(messages) == 0


def test_a_message_without_a_role_is_the_assistants_where_it_calls_a_tool() -> None:
    calling = cast("Message", {"content": [use("a")]})
    assert repaired(user("hi"), calling, user(result("a"))) == [user("hi"), assistant(use("a")), user(result("a"))]


@pytest.mark.parametrize(
    "content", [["plain"], ["plain", {"type": "video"}], [{"type": "text", "text": "plain"}, 3]]
)
def test_what_a_result_may_not_hold_is_mended_or_goes_whether_others_go_or_not(content: list[object]) -> None:
    messages = [user("hi"), assistant(use("a")), user(result("a", content))]
    sanitize_claude_messages(messages)
    assert anthropic_violations(messages) == []
    assert "plain" in str(messages[2])
