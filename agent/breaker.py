"""Defence 3: a ledger of a run's tool calls, and when a call is refused or the run ended (four-defences §4)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile

from agent.messages import JsonObject
from agent.texts import ENGLISH, Texts

LEDGER_CALLS = 50
REPEAT_LIMIT = 5
FAILURE_LIMIT = 3
TOOL_FAILURE_LIMIT = 6
TOOL_CRITICAL_LIMIT = 8
REFUSAL_LIMIT = 5
CYCLE_LENGTHS = (2, 3)
CYCLE_LIMIT = 5
NUDGE_WINDOW = 10
NUDGE_SUCCESSES = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call may run. `reason` is for the model, as the call's error result; `rule` is for the log:
    repeat, failures, tool_failures, cycle, or (critical) tool_critical, refusals; empty where it may run."""

    should_stop: bool
    reason: str
    is_critical: bool
    rule: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    args_hash: bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    call: _Call
    success: bool
    refused: bool


class LoopBreaker:
    """The ledger of one run: `check` before each call, `record` after it, whether it ran or was refused.

    All counts are of the unbroken tail of the last 50 entries. An entry is a **refusal** where `record` gets
    `success=False` for the call that `check` refused last; it stands for a call that never ran, so it

    - counts as that exact call (same tool, same arguments), and as a failure of it;
    - is passed over when the failures of a tool are counted for a call with other arguments, or for another
      tool: it neither adds to that row nor ends it;
    - is a step of a cycle as if it had run, else a refused cycle would look broken and begin anew.

    Five refusals in a row, of whatever calls and by whatever rule, make the next check critical. Any call that
    runs ends that row.
    """

    def __init__(self, texts: Texts = ENGLISH) -> None:
        self._texts = texts
        self._ledger: deque[_Entry] = deque(maxlen=LEDGER_CALLS)
        self._refused: set[_Call] = set()
        self._nudged: set[_Call] = set()
        self._last_reason = ""

    def check(self, name: str, args: JsonObject | str) -> Verdict:
        """What is to be done with this call; a str is the raw text of arguments that are no JSON object.

        A critical verdict comes first. Of the others, real failures are named before mere repetition, so that
        the model is not sent to a result that it never got.
        """
        call = _call(name, args)
        verdict = self._critical(call) or self._refusal(call) or Verdict(False, "", False)
        if verdict.should_stop:
            self._refused.add(call)
            self._last_reason = verdict.reason
        else:
            self._refused.discard(call)
        return verdict

    def record(self, name: str, args: JsonObject | str, success: bool) -> None:
        """Enters a call into the ledger; a refused one with `success=False`, directly after its check."""
        call = _call(name, args)
        refused = call in self._refused and not success
        self._refused.discard(call)
        self._ledger.append(_Entry(call, success, refused))

    def nudge_due(self, name: str, args: JsonObject | str) -> bool:
        """Whether this call succeeded 3 times within the last 10 entries; true once in a run for each call."""
        call = _call(name, args)
        if call in self._nudged:
            return False
        recent = islice(reversed(self._ledger), NUDGE_WINDOW)
        due = sum(entry.success for entry in recent if entry.call == call) >= NUDGE_SUCCESSES
        if due:
            self._nudged.add(call)
        return due

    def _critical(self, call: _Call) -> Verdict | None:
        refusals = _count(takewhile(lambda entry: entry.refused, reversed(self._ledger)))
        if refusals >= REFUSAL_LIMIT:
            return Verdict(True, self._last_reason, True, "refusals")
        failures = self._tool_failures(call)
        if failures >= TOOL_CRITICAL_LIMIT:
            reason = self._texts.refused_tool.format(tool=call.tool, count=failures)
            return Verdict(True, reason, True, "tool_critical")
        return None

    def _refusal(self, call: _Call) -> Verdict | None:
        run = list(takewhile(lambda entry: entry.call == call, reversed(self._ledger)))
        failures = _count(takewhile(lambda entry: not entry.success, run))
        ran_and_failed = _count(takewhile(lambda entry: not entry.success, (e for e in run if not e.refused)))
        texts = self._texts
        if ran_and_failed >= FAILURE_LIMIT:
            reason = texts.refused_failures.format(tool=call.tool, count=ran_and_failed)
            return Verdict(True, reason, False, "failures")
        if len(run) >= REPEAT_LIMIT:
            return Verdict(True, texts.refused_repeat.format(tool=call.tool, count=len(run)), False, "repeat")
        if failures >= FAILURE_LIMIT:
            reason = texts.refused_failures.format(tool=call.tool, count=failures)
            return Verdict(True, reason, False, "failures")
        if (count := self._tool_failures(call)) >= TOOL_FAILURE_LIMIT:
            reason = texts.refused_tool.format(tool=call.tool, count=count)
            return Verdict(True, reason, False, "tool_failures")
        if length := self._cycle_length(call):
            reason = texts.refused_cycle.format(length=length, count=CYCLE_LIMIT)
            return Verdict(True, reason, False, "cycle")
        return None

    def _tool_failures(self, call: _Call) -> int:
        count = 0
        for entry in reversed(self._ledger):
            if entry.refused and entry.call != call:
                continue
            if entry.success or entry.call.tool != call.tool:
                break
            count += 1
        return count

    def _cycle_length(self, call: _Call) -> int:
        """The length of the cycle that this call would go on with, 0 where there is none."""
        for length in CYCLE_LENGTHS:
            tail = [entry.call for entry in islice(reversed(self._ledger), length * CYCLE_LIMIT)]
            cycle = tail[:length]
            if len(set(cycle)) == length and cycle[-1] == call and tail == cycle * CYCLE_LIMIT:
                return length
        return 0


def _count(entries: Iterator[_Entry]) -> int:
    return sum(1 for _ in entries)


def _call(name: str, args: JsonObject | str) -> _Call:
    """Arguments are the same where their canonical JSON is: keys sorted, 1 and 1.0 and true told apart."""
    if isinstance(args, str):
        text = "raw " + args
    else:
        text = "json " + json.dumps(args, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return _Call(name, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
