"""The parts without I/O: the pacer, the offset ledger."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from channels.telegram.offsets import OffsetLedger
from channels.telegram.pace import Limits, Pacer


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


LIMITS = Limits()
CALLS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 5)), max_size=60)


def in_window(times: list[float], seconds: float) -> int:
    return max((sum(start <= at < start + seconds for at in times) for start in times), default=0)


@given(CALLS)
def test_no_window_ever_holds_more_calls_than_it_may(calls: list[tuple[str, bool, float]]) -> None:
    clock = FakeClock()
    pacer = Pacer(clock, LIMITS)
    sent: dict[str, list[float]] = {"a": [], "b": []}
    for chat, live, pause in calls:
        clock.now += pause
        clock.now += pacer.wait(chat, group=True, live=live) + 1e-6
        assert pacer.wait(chat, group=True, live=live) == 0
        pacer.sent(chat)
        sent[chat].append(clock.now)
    for times in sent.values():
        assert in_window(times, 59.9) <= 19
        assert in_window(times, 2.99) <= 3


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.floats(0, 100))
def test_a_named_wait_is_kept_to_its_end_whatever_comes_after(waits: list[float], passed: float) -> None:
    clock = FakeClock()
    pacer = Pacer(clock, LIMITS)
    for seconds in waits:
        pacer.hold("a", seconds)
    clock.now += passed
    assert abs(pacer.held("a") - max(0.0, max(waits) - passed)) < 1e-6
    assert pacer.wait("a", group=False, live=True) >= pacer.held("a")
    assert pacer.held("b") == pacer.wait("b", group=True, live=False) == 0


def test_live_showing_leaves_room_for_final_texts() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, LIMITS)
    for _ in range(14):
        clock.now += pacer.wait("a", group=True, live=True)
        pacer.sent("a")
    clock.now += 3
    assert pacer.wait("a", group=True, live=True) > 10
    assert pacer.wait("a", group=True, live=False) == 0


def test_all_chats_together_stay_under_the_limit_of_the_bot() -> None:
    clock = FakeClock()
    pacer = Pacer(clock, LIMITS)
    for number in range(28):
        assert pacer.wait(str(number), group=False, live=False) == 0
        pacer.sent(str(number))
    assert 0.9 < pacer.wait("next", group=False, live=False) <= 1
    assert 0.9 < pacer.wait("next", group=False, live=True) <= 1


class Server:
    """Telegram's queue: forgets what is below an offset."""

    def __init__(self, ids: list[int]) -> None:
        self.waiting = sorted(set(ids))

    def poll(self, offset: int | None, limit: int) -> list[int]:
        if offset is not None:
            self.waiting = [number for number in self.waiting if number >= offset]
        return self.waiting[:limit]


@given(st.lists(st.integers(1, 40), max_size=30), st.data())
def test_every_update_is_taken_once_and_none_is_forgotten_before_it_is_done(
    ids: list[int], data: st.DataObject
) -> None:
    ledger, server = OffsetLedger(), Server(ids)
    pending: list[int] = []
    taken: list[int] = []
    done: set[int] = set()
    for _ in range(200):
        offset = ledger.offset
        got = server.poll(offset, data.draw(st.integers(1, 10)))
        ledger.confirmed(offset)
        assert done.union(server.waiting) == set(ids)
        fresh = ledger.take(got)
        taken += fresh
        pending += fresh
        assert len(ledger) == len(pending)
        if not pending and not server.waiting:
            break
        for _ in range(data.draw(st.integers(0 if len(pending) < 5 else 1, 3))):
            if pending:
                finished = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
                ledger.done(finished)
                done.add(finished)
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(ids)


def test_nothing_is_asked_for_by_number_once_all_is_confirmed() -> None:
    ledger, offsets = OffsetLedger(), list[int | None]()
    assert ledger.take([5, 6]) == [5, 6]
    ledger.done(6)
    offsets.append(ledger.offset)
    ledger.done(5)
    offsets.append(ledger.offset)
    ledger.confirmed(7)
    offsets.append(ledger.offset)
    assert offsets == [5, 7, None]
    assert ledger.take([5]) == [5]
