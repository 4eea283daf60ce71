"""Each method of bridge.ports.Store on a real file."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import Message, assistant_message, text_block, text_of, tool_result, user_message
from bridge.errors import StoreError, StoreUnusable
from bridge.lock import LOCK_FILE, DirectoryLock
from bridge.ports import ContextMark, ModelFact, RequestState, Store, StoredMessage, StoredSession
from bridge.store._reads import in_answer_order
from bridge.store._rows import json_text, message_value
from bridge.store.sqlite import SqliteStore
from channels.base import OutFile, Outgoing, Place
from tests.bridge.store.making import ALICE, HERE, NOON, answered, asked

ELSEWHERE = Place("test", "2", "topic", "group")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path)
    yield opened
    await opened.close()


def texts(messages: Sequence[StoredMessage] | StoredSession | None) -> list[str]:
    assert messages is not None
    rows = messages.messages if isinstance(messages, StoredSession) else messages
    return [content if isinstance(content := row.message["content"], str) else text_of(content) for row in rows]


async def test_it_is_a_store(store: SqliteStore) -> None:
    as_port: Store = store
    assert as_port is store


async def test_an_accepted_request_is_unfinished_with_all_that_is_needed_to_run_it(store: SqliteStore) -> None:
    new = asked("hello", ELSEWHERE)
    message_id = await store.accept(new)
    (request,) = await store.unfinished()
    assert (request.request_id, request.place, request.sender) == (new.request_id, ELSEWHERE, ALICE)
    assert (request.message, request.message_id, request.message_ref) == (new.message, message_id, new.message_ref)
    assert (request.state, request.received_at) == (RequestState.QUEUED, NOON)
    assert (request.attempts, request.effects, request.posted) == (0, 0, ())


@pytest.mark.parametrize("again", [["a"], ["b"], ["a", "b"], ["c", "b"], ["b", "c"]])
async def test_an_event_is_known_by_any_of_its_names(store: SqliteStore, again: list[str]) -> None:
    assert await store.accept(asked(keys=["a", "b"])) is not None
    assert await store.accept(asked("twice", keys=again)) is None
    assert not await store.accept_event(again, NOON)
    assert await store.accept_answered(again, NOON, Outgoing(HERE, "x")) is None
    assert texts(await store.history(HERE.session_id)) == ["hi"]
    assert await store.outbox() == []
    # A refused event leaves none of its names behind.
    assert await store.accept_event(["c"], NOON)


async def test_one_name_given_twice_in_one_event_is_one_event(store: SqliteStore) -> None:
    assert await store.accept(asked(keys=["a", "a"])) is not None


async def test_a_commands_event_is_taken_once(store: SqliteStore) -> None:
    assert await store.accept_event(["c", "d"], NOON)
    assert not await store.accept_event(["d"], NOON)
    assert await store.accept(asked(keys=["c"])) is None
    assert await store.unfinished() == []


async def test_an_events_answer_is_in_the_outbox_with_it(store: SqliteStore) -> None:
    reply = Outgoing(HERE, "nothing is running", reply_to="m9")
    row = await store.accept_answered(["k"], NOON, reply)
    assert row is not None
    assert await store.outbox() == [row]
    assert (row.outgoing, row.request_id, row.attempts, row.not_before) == (reply, None, 0, NOON)


async def test_starts_effects_and_posted_messages_are_kept(store: SqliteStore) -> None:
    one, two = asked(), asked()
    await store.accept(one)
    await store.accept(two)
    await store.start([one.request_id, two.request_id])
    await store.start([one.request_id])
    await store.count_effect(one.request_id)
    await store.count_effect(one.request_id)
    await store.note_posted(one.request_id, ["p1"])
    await store.note_posted(one.request_id, ["p1", "p2"])
    first, second = await store.unfinished()
    assert (first.state, first.attempts, first.effects) == (RequestState.RUNNING, 2, 2)
    assert first.posted == ("p1", "p2")
    assert (second.state, second.attempts, second.effects) == (RequestState.RUNNING, 1, 0)


async def test_a_run_ends_once(store: SqliteStore) -> None:
    new = asked()
    await store.accept(new)
    row = await store.finish(answered(new))
    assert row is not None
    assert row.request_id == new.request_id
    assert await store.finish(answered(new, text="again")) is None
    await store.start([new.request_id])
    assert await store.unfinished() == []
    assert texts(await store.history(HERE.session_id)) == ["hi", "hello"]
    assert await store.outbox() == [row]


async def test_requests_that_were_answered_together_end_together(store: SqliteStore) -> None:
    requests = [asked("a"), asked("b")]
    for request in requests:
        await store.accept(request)
    await store.finish(answered(*requests))
    assert await store.unfinished() == []
    assert len(await store.outbox()) == 1


async def test_a_run_without_a_reply_leaves_the_outbox_alone(store: SqliteStore) -> None:
    new = asked()
    await store.accept(new)
    assert await store.finish(answered(new, reply=False)) is None
    assert await store.unfinished() == []
    assert await store.outbox() == []


@pytest.mark.parametrize("state", [RequestState.DONE, RequestState.FAILED])
async def test_a_state_that_ends_a_request_ends_it(store: SqliteStore, state: RequestState) -> None:
    one, two = asked(), asked()
    await store.accept(one)
    await store.accept(two)
    await store.set_state([one.request_id], state)
    await store.finish(answered(two, state=state))
    assert await store.unfinished() == []
    assert await store.finish(answered(one)) is None


async def test_a_session_comes_back_without_tool_and_thinking_blocks(store: SqliteStore) -> None:
    new = asked("look it up")
    await store.accept(new)
    run: list[Message] = [
        assistant_message(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            text_block("Let me see."),
            {"type": "tool_use", "id": "t", "name": "echo", "input": {}},
        ),
        user_message(tool_result("t", "found")),
        assistant_message(text_block("It is x.")),
    ]
    await store.finish(answered(new, messages=run))
    session = await store.session(HERE.session_id)
    assert session is not None
    assert [row.message for row in session.messages] == [
        new.message,
        assistant_message(text_block("Let me see.")),
        assistant_message(text_block("It is x.")),
    ]
    history = await store.history(HERE.session_id)
    assert [row.message for row in history] == [new.message, *run]
    assert [row.origin for row in history] == ["user", "run", "run", "run"]
    assert {row.request_id for row in history} == {new.request_id}


async def test_an_unanswered_request_is_not_in_its_session_yet(store: SqliteStore) -> None:
    one, two = asked("one"), asked("two")
    await store.accept(one)
    await store.finish(answered(one))
    await store.accept(two)
    assert texts(await store.session(HERE.session_id)) == ["one", "hello"]
    await store.start([two.request_id])
    assert texts(await store.session(HERE.session_id)) == ["one", "hello"]
    await store.set_state([two.request_id], RequestState.FAILED)
    assert texts(await store.session(HERE.session_id)) == ["one", "hello", "two"]


async def test_what_was_asked_during_a_run_comes_back_after_that_runs_answer(store: SqliteStore) -> None:
    one, two, three, four = (asked(text) for text in ("1", "2", "3", "4"))
    for request in (one, two, three):
        await store.accept(request)
    await store.finish(answered(one, text="a1"))
    await store.accept(four)
    await store.finish(answered(two, three, text="a23"))
    await store.finish(answered(four, text="a4"))
    assert texts(await store.session(HERE.session_id)) == ["1", "a1", "2", "3", "a23", "4", "a4"]


async def test_a_context_does_not_start_with_the_answer_to_what_is_before_it(store: SqliteStore) -> None:
    one, two = asked("1"), asked("2")
    await store.accept(one)
    start = await store.accept(two)
    await store.finish(answered(one, text="a1"))
    await store.finish(answered(two, text="a2", mark=ContextMark(start, "about 1", 1)))
    session = await store.session(HERE.session_id)
    assert texts(session) == ["2", "a2"]
    assert len(await store.history(HERE.session_id)) == 4


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_an_order_of_answers_loses_no_answered_message(sizes: list[int], data: st.DataObject) -> None:
    """However questions and answers lie between each other, each answer stands right after what it answers."""
    rows: list[StoredMessage] = []
    waiting: list[str] = []

    def add(origin: str, request_id: str) -> None:
        message = user_message(text_block("q")) if origin == "user" else assistant_message(text_block("a"))
        rows.append(StoredMessage(len(rows) + 1, origin, message, NOON, request_id))

    for number, steps in enumerate(sizes):
        add("user", f"r{number}")
        waiting.append(f"r{number}")
        if data.draw(st.booleans()):
            taken, waiting = waiting[: (n := data.draw(st.integers(1, len(waiting))))], waiting[n:]
            for _ in range(steps):
                add("run", taken[-1])
    ordered = in_answer_order(rows)
    assert sorted(row.id for row in ordered) == [row.id for row in rows]
    assert [r.id for r in ordered if r.origin == "user"] == [r.id for r in rows if r.origin == "user"]
    for before, row in itertools.pairwise(ordered):
        if row.origin == "run":
            assert before.request_id == row.request_id


async def test_a_mark_sets_where_the_context_starts_and_its_summary(store: SqliteStore) -> None:
    one, two = asked("one"), asked("two")
    await store.accept(one)
    await store.finish(answered(one))
    start = await store.accept(two)
    await store.finish(answered(two, text="bye", mark=ContextMark(start, "one was asked", 1)))
    session = await store.session(HERE.session_id)
    assert session is not None
    assert texts(session) == ["two", "bye"]
    assert (session.summary, session.summary_turns) == ("one was asked", 1)
    three = asked("three")
    await store.accept(three)
    await store.finish(answered(three, text="!"))  # no mark: it stays
    assert texts(await store.session(HERE.session_id)) == ["two", "bye", "three", "!"]


async def test_a_written_summary_replaces_only_one_of_the_same_turns(store: SqliteStore) -> None:
    new = asked()
    start = await store.accept(new)
    await store.finish(answered(new, mark=ContextMark(start, "digest", 3)))
    await store.set_summary(HERE.session_id, "too late", 2)
    session = await store.session(HERE.session_id)
    assert session is not None
    assert session.summary == "digest"
    await store.set_summary(HERE.session_id, "written", 3)
    session = await store.session(HERE.session_id)
    assert session is not None
    assert (session.summary, session.summary_turns) == ("written", 3)


async def test_a_new_context_is_empty_and_the_history_stays(store: SqliteStore) -> None:
    one, other = asked("one"), asked("other", ELSEWHERE)
    start = await store.accept(one)
    await store.finish(answered(one, mark=ContextMark(start, "digest", 3)))
    await store.accept(other)
    await store.finish(answered(other))
    await store.new_context(HERE.session_id)
    session = await store.session(HERE.session_id)
    assert session == StoredSession(HERE, [], "", 0)
    assert texts(await store.history(HERE.session_id)) == ["one", "hello"]
    assert texts(await store.session(ELSEWHERE.session_id)) == ["other", "hello"]
    two = asked("two")
    await store.accept(two)
    await store.finish(answered(two))
    assert texts(await store.session(HERE.session_id)) == ["two", "hello"]


async def test_a_place_is_known_once_something_was_said_there(store: SqliteStore) -> None:
    assert not await store.knows(HERE.session_id)
    assert await store.session(HERE.session_id) is None
    assert await store.history(HERE.session_id) == []
    await store.accept(asked())
    assert await store.knows(HERE.session_id)
    assert not await store.knows(ELSEWHERE.session_id)


async def test_sessions_are_listed_with_the_latest_first(store: SqliteStore) -> None:
    await store.accept(asked(at=NOON))
    await store.accept(asked(place=ELSEWHERE, at=NOON + timedelta(hours=1)))
    # A clock that goes back does not take a session back in time.
    await store.accept(asked(at=NOON - timedelta(days=400)))
    first, second = await store.sessions()
    assert (first.place, first.messages, first.last_at) == (ELSEWHERE, 1, NOON + timedelta(hours=1))
    assert (second.place, second.messages, second.last_at) == (HERE, 2, NOON)


async def test_requests_keep_the_order_in_which_they_came_when_the_clock_goes_back(store: SqliteStore) -> None:
    requests = [asked(at=NOON - timedelta(days=n)) for n in range(5)]
    for request in requests:
        await store.accept(request)
    assert [r.request_id for r in await store.unfinished()] == [r.request_id for r in requests]


async def test_times_come_back_as_the_same_moment_whatever_their_zone(store: SqliteStore) -> None:
    at = datetime(2026, 1, 1, 20, 0, 0, 123456, tzinfo=timezone(timedelta(hours=8)))
    await store.accept(asked(at=at))
    (request,) = await store.unfinished()
    assert request.received_at == at


async def test_a_reply_goes_from_the_outbox_when_it_was_sent(store: SqliteStore) -> None:
    files = (OutFile("code.py", "text/plain", bytes(range(256))),)
    outgoing = Outgoing(HERE, "see the file", ("live-1",), reply_to="m1", files=files)
    row = await store.enqueue(outgoing, NOON)
    other = await store.enqueue(Outgoing(ELSEWHERE, "second"), NOON)
    assert await store.outbox() == [row, other]
    due = NOON + timedelta(seconds=30)
    await store.retry(row.id, due, ["p1", "p2"], uncertain=True)
    tried, untouched = await store.outbox()
    assert (tried.attempts, tried.not_before, tried.created_at) == (1, due, NOON)
    assert tried.outgoing == Outgoing(HERE, "see the file", ("p1", "p2"), True, "m1", files)
    assert untouched == other
    await store.sent(row.id, ["p1", "p2", "p3"], due)
    assert await store.outbox() == [other]
    await store.give_up(other.id, "blocked")
    assert await store.outbox() == []


async def test_people_are_let_in_and_put_out(store: SqliteStore) -> None:
    await store.allow("telegram", "7", NOON)
    await store.allow("telegram", "7", NOON)
    assert await store.allowed("telegram") == {"7"}
    assert await store.allowed("slack") == frozenset()
    assert await store.disallow("telegram", "7")
    assert not await store.disallow("telegram", "7")
    assert await store.allowed("telegram") == frozenset()


async def test_a_pairing_code_is_one_for_a_person_and_works_once_within_a_day(store: SqliteStore) -> None:
    assert await store.pairing_code("telegram", "7", "AAAA", NOON) == ("AAAA", True)
    assert await store.pairing_code("telegram", "7", "BBBB", NOON + timedelta(hours=23)) == ("AAAA", False)
    assert await store.redeem("telegram", "BBBB", NOON) is None
    assert await store.redeem("slack", "AAAA", NOON) is None
    assert await store.redeem("telegram", "AAAA", NOON + timedelta(hours=25)) is None
    assert await store.pairing_code("telegram", "7", "CCCC", NOON + timedelta(hours=25)) == ("CCCC", True)
    assert await store.redeem("telegram", "CCCC", NOON + timedelta(hours=26)) == "7"
    assert await store.redeem("telegram", "CCCC", NOON + timedelta(hours=26)) is None
    assert await store.allowed("telegram") == {"7"}


async def test_two_people_can_not_get_one_code(store: SqliteStore) -> None:
    await store.pairing_code("telegram", "7", "AAAA", NOON)
    with pytest.raises(StoreError):
        await store.pairing_code("telegram", "8", "AAAA", NOON)
    assert await store.redeem("telegram", "AAAA", NOON) == "7"


async def test_counters_and_model_facts_are_kept(path: Path, store: SqliteStore) -> None:
    await store.count("denied.test")
    await store.count("denied.test", 4)
    await store.save_model_fact("m", ModelFact(1.5))
    await store.save_model_fact("m", ModelFact(1.25, 100_000))
    await store.close()
    again = await SqliteStore.open(path)
    assert await again.counters() == {"denied.test": 5}
    assert await again.model_facts() == {"m": ModelFact(1.25, 100_000)}
    await again.close()


async def test_a_backup_made_while_writing_is_whole_and_opens(tmp_path: Path, store: SqliteStore) -> None:
    target = tmp_path / "copies" / "backup.sqlite3"
    target.parent.mkdir()
    for _ in range(50):
        await store.accept(asked("before"))
    writes = [asyncio.create_task(store.accept(asked("meanwhile"))) for _ in range(100)]
    await store.backup(str(target))
    assert all(await asyncio.gather(*writes))
    assert [item.name for item in target.parent.iterdir()] == [target.name]
    copy = await SqliteStore.open(target)
    kept = texts(await copy.history(HERE.session_id))
    assert kept == ["before"] * 50 + ["meanwhile"] * (len(kept) - 50)
    assert len(await copy.unfinished()) == len(kept)
    await copy.close()


async def test_a_backup_writes_over_nothing_and_says_where_it_can_not_write(
    tmp_path: Path, store: SqliteStore
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("precious")
    with pytest.raises(StoreError, match="taken: exists already"):
        await store.backup(str(taken))
    assert taken.read_text() == "precious"
    with pytest.raises(StoreError, match="can't be opened; look at its directory"):
        await store.backup(str(tmp_path / "missing" / "backup"))


LONE = "half a pair \ud83d, a NUL \x00, and 好"


async def test_text_that_utf_8_does_not_know_is_kept_all_the_same(store: SqliteStore) -> None:
    new = asked(LONE)
    start = await store.accept(new)
    row = await store.finish(answered(new, text=LONE, mark=ContextMark(start, LONE, 1)))
    assert row is not None
    assert texts(await store.session(HERE.session_id)) == [LONE, LONE]
    await store.retry(row.id, NOON, ["p"], uncertain=False)
    assert [found.outgoing.text for found in await store.outbox()] == [LONE]
    await store.set_summary(HERE.session_id, LONE, 1)
    await store.give_up(row.id, LONE)


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    message = user_message(text_block(text))
    stored = json_text(message)
    stored.encode("utf-8")
    assert message_value(stored) == message


async def test_a_newer_file_is_refused_and_left_as_it_is(path: Path, store: SqliteStore) -> None:
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = await asyncio.to_thread(path.read_bytes)
    with pytest.raises(StoreUnusable, match=r"made by a newer steadybot \(version 99"):
        await SqliteStore.open(path)
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_each_commit_is_flushed_and_readers_do_not_block(store: SqliteStore) -> None:
    def pragma(db: sqlite3.Connection, name: str) -> object:
        return db.execute(f"PRAGMA {name}").fetchone()[0]

    found = {
        name: await store._writer.write(lambda db, name=name: pragma(db, name))  # type: ignore[misc]  # bound now
        for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
    }
    assert found == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 5000, "synchronous": 2}


def test_a_directory_is_used_by_one(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path / "new" / "data"):
        with (
            pytest.raises(StoreUnusable, match=r"in use by another steadybot \(process \d+\)"),
            DirectoryLock(tmp_path / "new" / "data"),
        ):
            pass
        assert (tmp_path / "new" / "data" / LOCK_FILE).exists()
    with DirectoryLock(tmp_path / "new" / "data"):
        pass


def test_a_directory_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match="can't be used"), DirectoryLock(tmp_path / "file"):
        pass
