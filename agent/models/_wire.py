"""What the model wires share: reading a stream to its end, tool arguments as text, split surrogate pairs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeAlias, TypeVar
from uuid import uuid4

import httpx2

from agent.errors import StreamBroken
from agent.events import TextDelta, ThinkingDelta
from agent.messages import JsonObject
from agent.ports import BrokenInput

TAIL_TIMEOUT = 5.0
"""Seconds that a server may keep the stream open after the model has stopped; usage comes in this time."""

Delta: TypeAlias = "TextDelta | ThinkingDelta"
EventT_contra = TypeVar("EventT_contra", contravariant=True)
EventT = TypeVar("EventT")


class Collector(Protocol[EventT_contra]):
    """Takes the events of one stream and keeps the answer that they make up. No I/O."""

    @property
    def stopped(self) -> bool:
        """Whether the provider has said why the model stopped."""

    def feed(self, event: EventT_contra) -> Sequence[Delta]:
        """What the event adds to the answer for people to see."""


async def read_stream(
    events: AsyncIterator[EventT],
    answer: Collector[EventT],
    *,
    timeout: float,
    faults: tuple[type[Exception], ...] = (),
    stalls: tuple[type[Exception], ...] = (),
) -> AsyncGenerator[Delta, None]:
    """Feeds a stream to `answer` and yields its deltas.

    `timeout` is the silence in seconds that the HTTP client's own read timeout ends (so no timer is made for a
    chunk); `faults` are the SDK's errors, `stalls` those that it makes of a read timeout. After the model has
    stopped only the usage comes: there a fault, or a server that holds the line, does no harm.

    Raises StreamBroken, and the SDK's errors as they are.
    """
    with _silent_faults(timeout, stalls):
        async for event in events:
            for delta in _fed(answer, event):
                yield delta
            if answer.stopped:
                break
        late: list[Delta] = []
        with suppress(TimeoutError, StreamBroken, httpx2.RequestError, json.JSONDecodeError, *faults):
            async with asyncio.timeout(TAIL_TIMEOUT):
                async for event in events:
                    late.extend(_fed(answer, event))
        for delta in late:
            yield delta
    if not answer.stopped:
        raise StreamBroken("the stream ended before the model had finished")


def _fed(answer: Collector[EventT], event: EventT) -> Sequence[Delta]:
    try:
        return answer.feed(event)
    except (AttributeError, TypeError) as error:
        # The SDKs don't validate: an event that is JSON of another shape than the API's shows here.
        raise StreamBroken(f"an event of the stream has an unknown shape: {str(event)[:200]}") from error


@contextmanager
def _silent_faults(timeout: float, stalls: tuple[type[Exception], ...]) -> Iterator[None]:
    """Faults that an SDK lets through as its HTTP library's or JSON parser's."""
    stalled: tuple[type[Exception], ...] = (httpx2.TimeoutException, *stalls)
    try:
        yield
    except stalled as error:
        raise StreamBroken(f"nothing arrived for {timeout:g} s") from error
    except httpx2.RequestError as error:
        raise StreamBroken(f"the connection broke: {error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StreamBroken("a chunk of the stream is not JSON") from error


def tool_input(raw: str, *, cut_off: bool) -> JsonObject | BrokenInput:
    """Tool arguments from their raw text; none at all means {}. `cut_off`: the output limit ended this call."""
    if not raw.strip() and not cut_off:
        return {}
    parsed = json_object(raw)
    if parsed is None:
        return BrokenInput(raw, "cut_off" if cut_off else "invalid_json")
    return parsed


def json_object(raw: str) -> JsonObject | None:
    """The text as a JSON object that can be sent and stored again; None where it is none.

    NaN and infinity are no JSON, though Python reads them. Lone surrogates become U+FFFD.
    """
    try:
        value = json.loads(raw)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    whole = _without_lone_surrogates(text)
    return value if whole is text else json.loads(whole)


def unique_id(found: str | None, taken: set[str]) -> str:
    """The id of a tool call, or a new one where the server gave none or gave it to another call of the answer;
    put into `taken`. Some servers leave ids out, some call every call `call_0`."""
    call_id = found if found and found not in taken else f"call_{uuid4().hex[:24]}"
    taken.add(call_id)
    return call_id


class TextJoiner:
    """Makes whole characters of the UTF-16 halves that some servers split over two deltas.

    A half without its other half becomes U+FFFD: it could be neither stored nor sent.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        if text.isascii() and not self._held:
            return text
        text = self._held + text
        self._held = ""
        if "\ud800" <= text[-1:] <= "\udbff":
            self._held = text[-1]
            text = text[:-1]
        return _without_lone_surrogates(text)

    def end(self) -> str:
        """What is left when nothing more comes."""
        held, self._held = self._held, ""
        return _without_lone_surrogates(held)


def _without_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
