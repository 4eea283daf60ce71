"""The store against a plain model of it, through any series of writes, reopenings and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from agent.messages import assistant_message, text_block
from bridge.ports import ContextMark, FinishedRun, NewRequest, OutboxRow, Request, RequestState
from bridge.store.sqlite import SqliteStore
from channels.base import Outgoing, Place
from tests.bridge.store.making import NOON, answered, asked

T = TypeVar("T")

PLACES = [Place("test", "1"), Place("test", "2", "topic", "group"), Place("other", "1")]
KEYS = [f"k{n}" for n in range(12)]

places = st.sampled_from(PLACES)
keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)
said = st.text(max_size=8)
ids = st.lists(st.sampled_from(["p1", "p2", "p3"]), max_size=2)


@dataclass
class Model:
    """What the store should hold, in the plainest way."""

    events: set[str] = field(default_factory=set)
    requests: dict[str, Request] = field(default_factory=dict)
    history: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Session to (origin, text), in the order of the writes."""
    context: dict[str, tuple[str, int]] = field(default_factory=dict)
    outbox: dict[int, OutboxRow] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    allowed: set[str] = field(default_factory=set)

    def accept(self, new: NewRequest, message_id: int | None) -> None:
        assert (message_id is None) == bool(self.events & set(new.event_keys))
        if message_id is None:
            return
        self.events.update(new.event_keys)
        self.requests[new.request_id] = Request(
            new.request_id,
            new.place,
            new.sender,
            new.message,
            message_id,
            RequestState.QUEUED,
            new.received_at,
            new.message_ref,
        )
        content = new.message["content"]
        assert not isinstance(content, str)
        assert content[0]["type"] == "text"
        self._say(new.place, "user", content[0]["text"])

    def finish(self, run: FinishedRun, text: str, row: OutboxRow | None) -> None:
        live = [request_id for request_id in run.request_ids if request_id in self.requests]
        assert (row is not None) == (bool(live) and run.reply is not None)
        if not live:
            return
        for request_id in live:
            del self.requests[request_id]
        self._say(run.place, "run", text)
        if run.mark.context_from is not None:
            self.context[run.place.session_id] = (run.mark.summary, run.mark.summary_turns)
        if row is not None:
            self.outbox[row.id] = row

    def _say(self, place: Place, origin: str, text: str) -> None:
        self.history.setdefault(place.session_id, []).append((origin, text))
        self.context.setdefault(place.session_id, ("", 0))


class StoreMachine(RuleBasedStateMachine):
    accepted: Bundle[NewRequest] = Bundle("accepted")
    replies: Bundle[int] = Bundle("replies")

    @initialize()
    def open(self) -> None:
        self.model = Model()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.generation = 0
        self.store = self._run(SqliteStore.open(self._path()))

    def _path(self) -> Path:
        return self.folder / str(self.generation) / "store.sqlite3" if self.generation else self.folder / "s"

    def _run(self, coroutine: Coroutine[object, object, T]) -> T:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self._run(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    @rule(target=accepted, place=places, text=said, event=keys)
    def accept(self, place: Place, text: str, event: list[str]) -> NewRequest:
        new = asked(text, place, event)
        self.model.accept(new, self._run(self.store.accept(new)))
        return new

    @rule(target=accepted, news=st.lists(st.tuples(places, said, keys), min_size=2, max_size=6))
    def accept_at_once(self, news: list[tuple[Place, str, list[str]]]) -> MultipleResults[NewRequest]:
        requests = [asked(text, place, event) for place, text, event in news]

        async def together() -> list[int | None]:
            return await asyncio.gather(*(self.store.accept(request) for request in requests))

        before = self.store.commits
        found = self._run(together())
        assert self.store.commits - before <= 2
        for new, message_id in zip(requests, found, strict=True):
            self.model.accept(new, message_id)
        return multiple(*requests)

    @rule(event=keys)
    def take_event(self, event: list[str]) -> None:
        assert self._run(self.store.accept_event(event, NOON)) == (not self.model.events & set(event))
        if not self.model.events & set(event):
            self.model.events.update(event)

    @rule(target=replies, event=keys, place=places, text=said)
    def answer_event(self, event: list[str], place: Place, text: str) -> int | MultipleResults[int]:
        row = self._run(self.store.accept_answered(event, NOON, Outgoing(place, text)))
        assert (row is None) == bool(self.model.events & set(event))
        if row is None:
            return multiple()
        self.model.events.update(event)
        self.model.outbox[row.id] = row
        return row.id

    @rule(new=accepted)
    def start(self, new: NewRequest) -> None:
        self._run(self.store.start([new.request_id]))
        self._change(new, lambda r: replace(r, state=RequestState.RUNNING, attempts=r.attempts + 1))

    @rule(new=accepted, posted=ids)
    def show(self, new: NewRequest, posted: list[str]) -> None:
        self._run(self.store.count_effect(new.request_id))
        self._run(self.store.note_posted(new.request_id, posted))
        self._change(new, lambda r: replace(r, effects=r.effects + 1, posted=tuple(posted)))

    def _change(self, new: NewRequest, change: Callable[[Request], Request]) -> None:
        found = self.model.requests.get(new.request_id)
        if found is not None:
            self.model.requests[new.request_id] = change(found)

    @rule(target=replies, new=accepted, text=said, reply=st.booleans(), marked=st.booleans())
    def finish(self, new: NewRequest, text: str, reply: bool, marked: bool) -> int | MultipleResults[int]:
        request = self.model.requests.get(new.request_id)
        mark = ContextMark(request.message_id, text, 2) if marked and request else ContextMark()
        # An empty text is a message all the same; the store does not judge.
        run = answered(new, messages=[assistant_message(text_block(text))], text=text, reply=reply, mark=mark)
        row = self._run(self.store.finish(run))
        self.model.finish(run, text, row)
        return multiple() if row is None else row.id

    @rule(new=accepted)
    def fail(self, new: NewRequest) -> None:
        self._run(self.store.set_state([new.request_id], RequestState.FAILED))
        self.model.requests.pop(new.request_id, None)

    @rule(place=places)
    def new_context(self, place: Place) -> None:
        self._run(self.store.new_context(place.session_id))
        if place.session_id in self.model.context:
            self.model.context[place.session_id] = ("", 0)
            session = self._run(self.store.session(place.session_id))
            assert session is not None
            assert session.messages == []

    @rule(row_id=replies, posted=ids, uncertain=st.booleans())
    def retry(self, row_id: int, posted: list[str], uncertain: bool) -> None:
        due = NOON + timedelta(seconds=row_id)
        self._run(self.store.retry(row_id, due, posted, uncertain=uncertain))
        row = self.model.outbox.get(row_id)
        if row is not None:
            outgoing = replace(row.outgoing, posted=tuple(posted), uncertain=uncertain)
            self.model.outbox[row_id] = replace(row, attempts=row.attempts + 1, not_before=due, outgoing=outgoing)

    @rule(row_id=consumes(replies), arrived=st.booleans())
    def settle(self, row_id: int, arrived: bool) -> None:
        self._run(self.store.sent(row_id, ["p"], NOON) if arrived else self.store.give_up(row_id, "gone"))
        self.model.outbox.pop(row_id, None)

    @rule(name=st.sampled_from(["a", "b"]), by=st.integers(1, 5))
    def count(self, name: str, by: int) -> None:
        self._run(self.store.count(name, by))
        self.model.counters[name] = self.model.counters.get(name, 0) + by

    @rule(user=st.sampled_from(["1", "2"]), inside=st.booleans())
    def let(self, user: str, inside: bool) -> None:
        if inside:
            self._run(self.store.allow("test", user, NOON))
            self.model.allowed.add(user)
        else:
            assert self._run(self.store.disallow("test", user)) == (user in self.model.allowed)
            self.model.allowed.discard(user)

    @rule()
    def reopen(self) -> None:
        self._run(self.store.close())
        self.store = self._run(SqliteStore.open(self._path()))

    @rule()
    def crash(self) -> None:
        """The files as they are now, nothing closed, are what the next process finds."""
        old = self._path()
        self.generation += 1
        self._path().parent.mkdir()
        for suffix in ("", "-wal"):
            source = old.with_name(old.name + suffix)
            if source.exists():
                shutil.copy(source, self._path().with_name(self._path().name + suffix))
        self._run(self.store.close())
        self.store = self._run(SqliteStore.open(self._path()))

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        model = self.model
        unfinished = sorted(model.requests.values(), key=lambda request: request.message_id)
        assert self._run(self.store.unfinished()) == unfinished
        assert self._run(self.store.outbox()) == [model.outbox[row_id] for row_id in sorted(model.outbox)]
        assert self._run(self.store.counters()) == model.counters
        assert self._run(self.store.allowed("test")) == model.allowed
        listed = {info.place.session_id: info.messages for info in self._run(self.store.sessions())}
        assert listed == {session_id: len(said) for session_id, said in model.history.items()}

    @invariant()
    def each_conversation_is_whole(self) -> None:
        for session_id, told in self.model.history.items():
            rows = self._run(self.store.history(session_id))
            assert [(row.origin, row.message["content"][0]["text"]) for row in rows] == told  # type: ignore[index, typeddict-item]  # each is one text block here
            session = self._run(self.store.session(session_id))
            assert session is not None
            assert (session.summary, session.summary_turns) == self.model.context[session_id]
            open_ids = {request.message_id for request in self.model.requests.values()}
            read = [row.id for row in session.messages]
            assert len(set(read)) == len(read)
            assert set(read) <= {row.id for row in rows} - open_ids


# Lower than the profile's: each step of each example reads the whole store from a real file.
StoreMachine.TestCase.settings = settings(
    max_examples=max(25, settings().max_examples // 100), stateful_step_count=25
)
test_the_store = StoreMachine.TestCase
