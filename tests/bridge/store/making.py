"""What the store's tests put into a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count

from agent.messages import Message, assistant_message, text_block, user_message
from bridge.ports import ContextMark, FinishedRun, NewRequest, RequestState
from channels.base import Outgoing, Place, Sender

HERE = Place("test", "1")
ALICE = Sender("alice", "Alice", time_zone="Europe/Berlin")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_numbers = count(1)


def asked(
    text: str = "hi", place: Place = HERE, keys: Sequence[str] | None = None, at: datetime = NOON
) -> NewRequest:
    number = next(_numbers)
    return NewRequest(
        request_id=f"r{number}",
        event_keys=tuple(keys or (f"test:{number}",)),
        place=place,
        sender=ALICE,
        message=user_message(text_block(text)),
        received_at=at,
        message_ref=f"m{number}",
    )


def answered(
    *requests: NewRequest,
    messages: Sequence[Message] | None = None,
    text: str = "hello",
    reply: bool = True,
    mark: ContextMark | None = None,
    state: RequestState = RequestState.DONE,
) -> FinishedRun:
    """The end of a run for these requests; one assistant message by default."""
    place = requests[-1].place
    return FinishedRun(
        request_ids=tuple(request.request_id for request in requests),
        place=place,
        messages=[assistant_message(text_block(text))] if messages is None else messages,
        reply=Outgoing(place, text, reply_to=requests[-1].message_ref) if reply else None,
        mark=mark or ContextMark(),
        finished_at=NOON,
        state=state,
    )
