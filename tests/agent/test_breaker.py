"""Defence 3, the ledger (four-defences §4)."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, dataclass
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.breaker import LoopBreaker, Verdict
from agent.messages import JsonObject
from agent.texts import CHINESE
from tests.agent.strategies import json_objects

Args: TypeAlias = JsonObject | str
Step: TypeAlias = tuple[str, Args, bool]


def go(breaker: LoopBreaker, name: str, args: Args, success: bool) -> Verdict:
    """One call as the executor makes it: refused calls are recorded as failures."""
    verdict = breaker.check(name, args)
    breaker.record(name, args, success and not verdict.should_stop)
    return verdict


def rules(breaker: LoopBreaker, steps: list[Step]) -> list[str]:
    return [go(breaker, *step).rule for step in steps]


class TestTheTable:
    def test_the_same_call_is_refused_after_five_in_a_row(self) -> None:
        assert rules(LoopBreaker(), [("f", {"a": 1}, True)] * 6) == [""] * 5 + ["repeat"]

    def test_five_in_a_row_count_whatever_their_success(self) -> None:
        steps: list[Step] = [("f", {}, True), ("f", {}, False), ("f", {}, True), ("f", {}, False), ("f", {}, True)]
        assert rules(LoopBreaker(), [*steps, ("f", {}, True)])[-1] == "repeat"

    def test_the_same_call_is_refused_after_three_failures_in_a_row(self) -> None:
        assert rules(LoopBreaker(), [("f", {}, False)] * 4) == ["", "", "", "failures"]

    def test_a_success_or_another_call_ends_a_row_of_failures(self) -> None:
        others: list[Step] = [("f", {}, True), ("f", {"b": 1}, False), ("g", {}, True)]
        for between in others:
            steps: list[Step] = [("f", {}, False), ("f", {}, False), between, ("f", {}, False), ("f", {}, False)]
            assert set(rules(LoopBreaker(), steps)) == {""}

    def test_a_tool_is_refused_after_six_failures_with_any_arguments(self) -> None:
        steps: list[Step] = [("f", {"n": n}, False) for n in range(7)]
        assert rules(LoopBreaker(), steps) == [""] * 6 + ["tool_failures"]

    def test_a_success_or_another_tool_ends_a_tools_row_of_failures(self) -> None:
        others: list[Step] = [("f", {"n": -1}, True), ("g", {}, False)]
        for between in others:
            steps: list[Step] = [("f", {"n": n}, False) for n in range(5)]
            steps.append(between)
            steps += [("f", {"m": n}, False) for n in range(3)]
            assert set(rules(LoopBreaker(), steps)) == {""}

    def test_eight_failures_of_a_tool_are_critical(self) -> None:
        breaker = LoopBreaker()
        for n in range(8):  # failures that nobody checked, as after a change of limits
            breaker.record("f", {"n": n}, False)
        verdict = breaker.check("f", {"n": 99})
        assert verdict.is_critical
        assert verdict.should_stop
        assert verdict.rule == "tool_critical"
        assert not breaker.check("g", {}).should_stop

    def test_critical_comes_before_every_other_rule(self) -> None:
        breaker = LoopBreaker()
        for _ in range(8):
            breaker.record("f", {}, False)
        assert breaker.check("f", {}).rule == "tool_critical"

    @pytest.mark.parametrize("length", [2, 3])
    def test_a_cycle_of_different_calls_is_refused_after_five_rounds(self, length: int) -> None:
        cycle: list[Step] = [(f"tool{n}", {"x": 1}, True) for n in range(length)]
        found = rules(LoopBreaker(), cycle * 6)
        assert found == [""] * 5 * length + ["cycle"] * length

    def test_a_call_outside_the_cycle_may_run(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("a", {}, True), ("b", {}, True)] * 5)
        assert not breaker.check("c", {}).should_stop
        assert not breaker.check("b", {}).should_stop

    def test_four_rounds_are_no_cycle_yet_and_a_cycle_of_four_is_none(self) -> None:
        assert set(rules(LoopBreaker(), [("a", {}, True), ("b", {}, True)] * 5)) == {""}
        four: list[Step] = [(name, {}, True) for name in "abcd"]
        assert set(rules(LoopBreaker(), four * 8)) == {""}

    def test_a_sequence_that_has_a_call_twice_is_no_cycle_of_different_calls(self) -> None:
        assert set(rules(LoopBreaker(), [("a", {}, True), ("a", {}, True), ("b", {}, True)] * 8)) == {""}

    def test_old_entries_leave_the_ledger(self) -> None:
        breaker = LoopBreaker()
        assert set(rules(breaker, [("f", {"n": n}, True) for n in range(500)])) == {""}


class TestRefusals:
    def test_a_loop_of_successes_does_not_make_the_next_different_call_critical(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {}, True)] * 9)  # five that ran, four refused
        assert breaker.check("f", {"other": 1}) == Verdict(False, "", False)

    @pytest.mark.parametrize(
        "loop",
        [
            [("f", {}, True)],
            [("f", {}, False)],
            [("a", {}, True), ("b", {}, True)],
            [("a", {}, True), ("b", {}, False), ("c", {}, True)],
        ],
    )
    def test_five_in_a_row_end_the_run(self, loop: list[Step]) -> None:
        breaker = LoopBreaker()
        refused = 0
        for step in loop * 20:
            verdict = go(breaker, *step)
            if verdict.is_critical:
                break
            refused += verdict.should_stop
        assert (refused, verdict.is_critical, verdict.rule) == (5, True, "refusals")
        assert verdict.reason

    def test_five_of_ever_other_arguments_end_the_run_too(self) -> None:
        breaker = LoopBreaker()
        found = [go(breaker, "f", {"n": n}, False) for n in range(12)]
        assert [verdict.rule for verdict in found] == [""] * 6 + ["tool_failures"] * 5 + ["refusals"]

    def test_a_call_that_ran_ends_their_row(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {}, True)] * 9)
        rules(breaker, [("g", {}, True)])
        rules(breaker, [("f", {}, True)] * 9)
        assert breaker.check("g", {}) == Verdict(False, "", False)

    def test_they_neither_add_to_nor_end_a_tools_row_for_other_arguments(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {"a": 1}, False)] * 5)  # three failures, two refusals
        steps: list[Step] = [("f", {"n": n}, False) for n in range(4)]
        assert rules(breaker, steps) == ["", "", "", "tool_failures"]

    def test_they_count_as_failures_of_that_exact_call(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {"n": n}, False) for n in range(6)])
        assert [go(breaker, "f", {"x": 1}, False).rule for _ in range(3)] == [
            "tool_failures",
            "tool_failures",
            "tool_critical",
        ]

    def test_a_refusal_and_two_real_failures_of_a_call_are_three_failures_of_it(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {"n": n}, False) for n in range(4)])
        steps: list[Step] = [("f", {"x": 1}, False)] * 4
        assert rules(breaker, steps) == ["", "", "tool_failures", "failures"]

    def test_several_calls_may_be_checked_before_they_are_recorded(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {"n": n}, False) for n in range(6)])
        for n in (10, 11):
            assert breaker.check("f", {"n": n}).should_stop
        for n in (10, 11):
            breaker.record("f", {"n": n}, False)
        assert breaker.check("f", {"n": 12}).rule == "tool_failures"  # still six, not eight

    def test_are_only_what_was_recorded_as_failed_right_after_the_check(self) -> None:
        breaker = LoopBreaker()
        for _ in range(5):
            rules(breaker, [("f", {}, True)] * 5)
            assert breaker.check("f", {}).should_stop
            breaker.record("f", {}, True)  # it was run all the same
        assert breaker.check("g", {}) == Verdict(False, "", False)

    def test_that_were_never_recorded_do_not_mark_a_later_failure(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {}, True)] * 5)
        assert breaker.check("f", {}).should_stop
        steps: list[Step] = [("g", {}, True), ("f", {}, False)]
        steps += [("f", {"n": n}, False) for n in range(6)]
        assert rules(breaker, steps)[-1] == "tool_failures"

    def test_stand_for_one_record_only(self) -> None:
        breaker = LoopBreaker()
        rules(breaker, [("f", {}, True)] * 5)
        assert breaker.check("f", {}).should_stop
        for _ in range(6):
            breaker.record("f", {}, False)
        assert breaker.check("f", {"n": 1}) == Verdict(False, "", False)  # five that failed, one refused
        breaker.record("f", {}, False)
        assert breaker.check("f", {"n": 1}).rule == "tool_failures"


class TestSameArguments:
    @given(json_objects)
    def test_are_found_whatever_the_order_of_keys(self, args: JsonObject) -> None:
        breaker = LoopBreaker()
        turned: JsonObject = dict(reversed(args.items()))
        for _ in range(5):
            breaker.record("f", args, True)
        assert breaker.check("f", turned).rule == "repeat"

    @given(json_objects, json_objects)
    def test_are_those_with_the_same_json_text(self, one: JsonObject, other: JsonObject) -> None:
        breaker = LoopBreaker()
        for _ in range(5):
            breaker.record("f", one, True)
        same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
        assert breaker.check("f", other).should_stop is same

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"n": 1}, {"n": 1.0}),
            ({"n": 1}, {"n": True}),
            ({"n": 0.0}, {"n": -0.0}),
            ({"n": None}, {}),
            ({"n": "1"}, {"n": 1}),
            ({"n": "é"}, {"n": "e\u0301"}),
            ({"n": "\ud800"}, {"n": "?"}),
            ({}, "{}"),
            ('{"a": ', '{"a":'),
        ],
    )
    def test_are_told_apart_where_the_json_differs(self, one: Args, other: Args) -> None:
        breaker = LoopBreaker()
        for _ in range(3):
            breaker.record("f", one, False)
        assert breaker.check("f", one).should_stop
        assert not breaker.check("f", other).should_stop

    def test_may_hold_what_json_does_not_know(self) -> None:
        breaker = LoopBreaker()
        assert rules(breaker, [("f", {"n": math.nan}, False)] * 4)[-1] == "failures"

    def test_are_the_raw_text_where_they_are_broken(self) -> None:
        assert rules(LoopBreaker(), [("f", '{"a": ', False)] * 4)[-1] == "failures"


class TestReasons:
    def test_name_the_tool_and_the_count_in_the_language_asked_for(self) -> None:
        breaker = LoopBreaker(CHINESE)
        assert rules(breaker, [("search", {}, False)] * 3) == ["", "", ""]
        reason = breaker.check("search", {}).reason
        assert reason == CHINESE.refused_failures.format(tool="search", count=3)

    def test_do_not_send_the_model_to_a_result_it_never_got(self) -> None:
        assert set(rules(LoopBreaker(), [("f", {}, False)] * 8)[3:]) == {"failures"}

    def test_of_a_critical_end_tell_what_the_refusals_told(self) -> None:
        breaker = LoopBreaker()
        found = [go(breaker, name, {}, True) for name in "ab" * 8]
        critical = next(verdict for verdict in found if verdict.is_critical)
        assert critical.reason == next(verdict.reason for verdict in found if verdict.rule == "cycle")

    def test_a_verdict_is_a_value(self) -> None:
        with pytest.raises(FrozenInstanceError):
            Verdict(False, "", False).rule = "x"  # type: ignore[misc]  # what is tested


class TestNudge:
    def test_is_due_after_three_successes_of_a_call_and_only_once(self) -> None:
        breaker = LoopBreaker()
        due = []
        for _ in range(6):
            breaker.record("f", {}, True)
            due.append(breaker.nudge_due("f", {}))
        assert due == [False, False, True, False, False, False]

    def test_is_due_once_for_each_call(self) -> None:
        breaker = LoopBreaker()
        calls: list[JsonObject] = [{"a": 1}, {"a": 2}]
        for args in calls:
            for _ in range(3):
                breaker.record("f", args, True)
            assert breaker.nudge_due("f", args)
        assert not breaker.nudge_due("g", {})

    def test_looks_at_the_last_ten_calls_only(self) -> None:
        for others, due in ((7, True), (8, False)):
            breaker = LoopBreaker()
            breaker.record("f", {}, True)
            for n in range(others):
                breaker.record("g", {"n": n}, True)
            for _ in range(2):
                breaker.record("f", {}, True)
            assert breaker.nudge_due("f", {}) is due

    def test_counts_no_failures(self) -> None:
        breaker = LoopBreaker()
        for success in (True, True, False, False):
            breaker.record("f", {}, success)
        assert not breaker.nudge_due("f", {})


@dataclass
class Naive:
    """The table once more, in the plainest way: lists, no hashes, everything counted anew."""

    entries: list[tuple[str, str, bool, bool]]

    def verdict(self, name: str, args: str) -> tuple[bool, bool]:
        tail = self.entries[-50:]
        refusals = run = failures = tool = 0
        while refusals < len(tail) and tail[-1 - refusals][3]:
            refusals += 1
        while run < len(tail) and tail[-1 - run][:2] == (name, args):
            run += 1
        while failures < run and not tail[-1 - failures][2]:
            failures += 1
        for entry in tail[::-1]:
            if entry[3] and entry[:2] != (name, args):
                continue
            if entry[0] != name or entry[2]:
                break
            tool += 1
        calls = [entry[:2] for entry in tail]
        cycle = any(
            len(set(calls[-size:])) == size
            and calls[-5 * size :] == calls[-size:] * 5
            and calls[-size] == (name, args)
            for size in (2, 3)
            if len(calls) >= 5 * size
        )
        critical = tool >= 8 or refusals >= 5
        return critical or run >= 5 or failures >= 3 or tool >= 6 or cycle, critical


_calls = st.tuples(st.sampled_from(["f", "g"]), st.sampled_from(["1", "2", "3"]))
_stretches = st.one_of(
    st.tuples(st.lists(_calls, min_size=1, max_size=3, unique=True), st.integers(1, 8)),
    st.tuples(st.lists(_calls, min_size=1, max_size=4), st.just(1)),
)


class TestAgainstAPlainModel:
    @given(st.lists(st.tuples(_stretches, st.sampled_from(["ok", "bad", "mixed"])), max_size=8))
    def test_every_verdict_is_the_models(
        self, stretches: list[tuple[tuple[list[tuple[str, str]], int], str]]
    ) -> None:
        breaker, naive = LoopBreaker(), Naive([])
        flip = 0
        for (calls, times), mood in stretches:
            for name, args in calls * times:
                flip += 1
                success = mood == "ok" or (mood == "mixed" and flip % 3 != 0)
                stop, critical = naive.verdict(name, args)
                verdict = go(breaker, name, {"q": args}, success)
                assert (verdict.should_stop, verdict.is_critical) == (stop, critical)
                assert bool(verdict.reason) == bool(verdict.rule) == stop
                naive.entries.append((name, args, success and not stop, stop))
