"""What the bridge needs from below, as Protocols: a store, and a signal that stops a run wherever it is.

One process with SQLite implements them now; several workers on a distributed engine can later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from agent.messages import Message
from channels.base import Outgoing, Place, Sender


class RequestState(StrEnum):
    """A request's way: queued, running, then done, or failed (the provider, or after too many tries)."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A message to be accepted. `message` is the user message exactly as the agent will get it."""

    request_id: str
    event_keys: tuple[str, ...]
    place: Place
    sender: Sender
    message: Message
    received_at: datetime
    message_ref: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """An inbox row with what is needed to run it (again). `message_id` is the row of its user message,
    `attempts` how often it was started, `effects` how many tool calls with effects were started in it,
    `posted` the platform's ids of messages that show its reply so far."""

    request_id: str
    place: Place
    sender: Sender
    message: Message
    message_id: int
    state: RequestState
    received_at: datetime
    message_ref: str | None = None
    attempts: int = 0
    effects: int = 0
    posted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A row of `messages`: `id` grows with time; `origin` is "user" for what a person sent, else "run"."""

    id: int
    origin: str
    message: Message
    created_at: datetime
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it is read back. `messages` start where the context starts (`context_from`: a message id),
    tool and thinking blocks stripped, unanswered requests (queued or running) left out; `summary` and
    `summary_turns` stand for what is before them."""

    place: Place
    messages: Sequence[StoredMessage]
    summary: str = ""
    summary_turns: int = 0


@dataclass(frozen=True, slots=True)
class ContextMark:
    """Where a session's context starts after a run, and the summary of what is before. `context_from` is the
    id of the first stored message that is still in the context; None leaves it."""

    context_from: int | None = None
    summary: str = ""
    summary_turns: int = 0


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What the end of a run stores, in one transaction: the run's new messages without their head (which is
    stored already), the reply in the outbox, the requests done."""

    request_ids: tuple[str, ...]
    place: Place
    messages: Sequence[Message]
    reply: Outgoing | None
    mark: ContextMark
    finished_at: datetime
    state: RequestState = RequestState.DONE


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A reply that must arrive; `attempts` counts tries, `not_before` is when the next one is due."""

    id: int
    request_id: str | None
    outgoing: Outgoing
    attempts: int
    not_before: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One line of `steadybot sessions`."""

    place: Place
    messages: int
    created_at: datetime
    last_at: datetime


class Store(Protocol):
    """Durable state. Every method is one transaction; those that write return after the commit.

    Each raises bridge.errors.StoreError when it could not be done, and then nothing was written.
    """

    async def accept(self, request: NewRequest) -> int | None:
        """Inbox row and user message; the message's id, or None when any of its event keys was seen before
        (then nothing is written)."""

    async def accept_event(self, event_keys: Sequence[str], at: datetime) -> bool:
        """Marks an event as seen that starts no run (a command); False when it was seen before."""

    async def accept_answered(self, event_keys: Sequence[str], at: datetime, reply: Outgoing) -> OutboxRow | None:
        """As `accept_event`, with the answer in the outbox; None when it was seen before."""

    async def start(self, request_ids: Sequence[str]) -> None:
        """Marks requests as running and counts the attempt."""

    async def count_effect(self, request_id: str) -> None:
        """Written before a tool call with effects starts."""

    async def note_posted(self, request_id: str, posted: Sequence[str]) -> None: ...

    async def finish(self, run: FinishedRun) -> OutboxRow | None:
        """Stores the end of a run exactly once: a second call for requests that are done changes nothing and
        returns None. Returns the outbox row if there is a reply."""

    async def set_state(self, request_ids: Sequence[str], state: RequestState) -> None: ...

    async def unfinished(self) -> Sequence[Request]:
        """Requests queued or running, oldest first; read at start for recovery."""

    async def session(self, session_id: str) -> StoredSession | None: ...

    async def knows(self, session_id: str) -> bool: ...

    async def new_context(self, session_id: str) -> None:
        """The next run starts with an empty context; the history stays."""

    async def set_summary(self, session_id: str, summary: str, turns: int) -> None: ...

    async def history(self, session_id: str) -> Sequence[StoredMessage]:
        """The whole history, tool blocks included, for export."""

    async def sessions(self) -> Sequence[SessionInfo]: ...

    async def purge_before(self, at: datetime) -> int:
        """Deletes what is older, whoever's it is: messages (how many is returned), summaries, ended requests,
        replies that were sent or given up. What is unfinished stays."""

    async def enqueue(self, outgoing: Outgoing, at: datetime) -> OutboxRow:
        """Puts a message into the outbox that belongs to no run (a notice, a reminder)."""

    async def outbox(self) -> Sequence[OutboxRow]:
        """All replies that were not sent, oldest first."""

    async def sent(self, row_id: int, posted: Sequence[str], at: datetime) -> None: ...

    async def retry(
        self, row_id: int, not_before: datetime, posted: Sequence[str], *, uncertain: bool
    ) -> None: ...

    async def give_up(self, row_id: int, why: str) -> None: ...

    async def allow(self, channel: str, user_id: str, at: datetime) -> None: ...

    async def disallow(self, channel: str, user_id: str) -> bool: ...

    async def allowed(self, channel: str) -> frozenset[str]: ...

    async def pairing_code(self, channel: str, user_id: str, fresh: str, at: datetime) -> tuple[str, bool]:
        """This person's code and whether it is new; `fresh` becomes the code where there is none (or an old one
        ran out, after a day)."""

    async def redeem(self, channel: str, code: str, at: datetime) -> str | None:
        """The user id behind a code, who is allowed from now on; None: no such code."""

    async def count(self, name: str, by: int = 1) -> None:
        """A durable counter (denied messages)."""

    async def counters(self) -> Mapping[str, int]: ...

    async def model_facts(self) -> Mapping[str, ModelFact]: ...

    async def save_model_fact(self, model: str, fact: ModelFact) -> None: ...

    async def backup(self, target: str) -> None:
        """A consistent copy while the bot runs. Raises StoreError when the target exists or can't be written."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFact:
    """What was learned of one model (agent.ports.ModelFacts): token ratio, and input limit in tokens."""

    ratio: float = 1.0
    limit: int | None = None


class CancelSignal(Protocol):
    """Stops requests wherever they run. In one process this is the CancelTokenRegistry itself."""

    def cancel(self, request_id: str) -> bool: ...

    def cancel_session(self, session_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What /status shows of a session."""

    running: int = 0
    queued: int = 0
    context_tokens: int = 0
    context_window: int = 0
    model: str = ""
    acted: Mapping[str, int] = field(default_factory=dict)
