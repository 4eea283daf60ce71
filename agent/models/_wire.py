"""What the model wires share: reading a stream to its end, tool arguments as text, split surrogate pairs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

import aiohttp
import httpx2

from agent.errors import StreamBroken
from agent.events import TextDelta, ThinkingDelta
from agent.messages import JsonObject
from agent.models._sse import SseDecoder
from agent.ports import BrokenInput

TAIL_TIMEOUT = 5.0
"""Seconds that a server may keep the stream open after the model has stopped; usage comes in this time."""

CONNECTIONS = httpx2.Limits(max_connections=10_000, keepalive_expiry=60.0)
"""More than a process may have files open: how many run at once is the bridge's to say, and a stream that waits
for a connection would look like a provider that is silent. An idle one is kept for as long as a tool may run."""

Delta: TypeAlias = "TextDelta | ThinkingDelta"
Wire: TypeAlias = dict[str, Any]
"""JSON as a provider sent it: of unknown shape until it is looked at."""

_WRONG_SHAPE = (AttributeError, KeyError, TypeError)


class Collector(Protocol):
    """Takes the events of one stream and keeps the answer that they make up. No I/O."""

    @property
    def stopped(self) -> bool:
        """Whether the provider has said why the model stopped."""

    def feed(self, event: Wire) -> Sequence[Delta]:
        """What the event adds to the answer for people to see.

        Raises the SDK's error where the event is one, StreamBroken, and `_WRONG_SHAPE` for an unknown shape.
        """


class Crowd:
    """How many streams are open in this process, and what follows for each: a pause between two reads, so that
    one wake-up brings what came in the meantime. A wake-up costs more than an event (docs/decisions/0005)."""

    FROM, FULL = 50, 1000
    LONGEST = 0.1

    def __init__(self) -> None:
        self.open = 0

    def pause(self) -> float:
        """Seconds: none up to `FROM` streams, growing to `LONGEST` at `FULL`."""
        share = (self.open - self.FROM) / (self.FULL - self.FROM)
        return self.LONGEST * min(max(share, 0.0), 1.0)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


CROWD = Crowd()
"""This process's: all models share one core."""


async def read_stream(
    chunks: AsyncIterator[bytes],
    answer: Collector,
    *,
    timeout: float,
    faults: tuple[type[Exception], ...],
    crowd: Crowd = CROWD,
) -> AsyncGenerator[Delta, None]:
    """Feeds the body of a stream to `answer` and yields its deltas, those of one read joined.

    `timeout` is the silence in seconds that the HTTP client's own read timeout ends (so no timer is made for a
    chunk); `faults` are the SDK's errors, as `answer` raises them. After the model has stopped only the usage
    comes: there a fault, or a server that holds the line, does no harm.

    Raises StreamBroken, and `faults` as they are.
    """
    reading = _Reading(answer, faults)
    with crowd.one_more(), _silent_faults(timeout):
        async for chunk in chunks:
            for delta in reading.feed(chunk):
                yield delta
            reading.raise_fault()
            if answer.stopped:
                break
            # The first text is never delayed, nor what comes while few are talking.
            if reading.shown and (pause := crowd.pause()):
                await asyncio.sleep(pause)
        if not answer.stopped:
            for delta in reading.end():
                yield delta
            reading.raise_fault()
        late: list[Delta] = []
        with suppress(TimeoutError, StreamBroken, httpx2.RequestError, aiohttp.ClientError, UnicodeDecodeError):
            async with asyncio.timeout(TAIL_TIMEOUT):
                async for chunk in chunks:
                    late.extend(reading.feed(chunk))
        for delta in late:
            yield delta
    if not answer.stopped:
        raise StreamBroken("the stream ended before the model had finished")


class _Reading:
    """From bytes to deltas. A fault is kept until what came before it was handed out."""

    def __init__(self, answer: Collector, faults: tuple[type[Exception], ...]) -> None:
        self.shown = False
        self._answer = answer
        self._decoder = SseDecoder()
        self._faults: tuple[type[Exception], ...] = (StreamBroken, *faults)
        self._fault: Exception | None = None

    def feed(self, chunk: bytes) -> list[Delta]:
        return self._take(self._decoder.feed(chunk))

    def end(self) -> list[Delta]:
        return self._take(self._decoder.end())

    def raise_fault(self) -> None:
        if self._fault is not None and not self._answer.stopped:
            raise self._fault

    def _take(self, events: list[tuple[str, str]]) -> list[Delta]:
        found: list[Delta] = []
        try:
            for name, data in events:
                if data and not data.startswith("[DONE]"):
                    found.extend(_fed(self._answer, name, data))
        except self._faults as fault:
            self._fault = fault
        self.shown = self.shown or bool(found)
        return _joined(found) if len(found) > 1 else found


def _fed(answer: Collector, name: str, data: str) -> Sequence[Delta]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        if name != "error":
            raise StreamBroken("a chunk of the stream is not JSON") from error
        event = {"error": {"message": data}}
    try:
        event.setdefault("type", name)
        return answer.feed(event)
    except _WRONG_SHAPE as error:
        raise StreamBroken(f"an event of the stream has an unknown shape: {data[:200]}") from error


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    return [kind("".join(delta.text for delta in group)) for kind, group in groupby(deltas, type)]


@contextmanager
def _silent_faults(timeout: float) -> Iterator[None]:
    """Faults of the way to the provider, as the HTTP libraries raise them."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise StreamBroken(f"nothing arrived for {timeout:g} s") from error
    except (httpx2.RequestError, aiohttp.ClientError) as error:
        raise StreamBroken(f"the connection broke: {error}") from error
    except UnicodeDecodeError as error:
        raise StreamBroken("a chunk of the stream is not UTF-8") from error


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


def count(value: object) -> int:
    """A number of tokens as a provider sent it; 0 for what is none."""
    return value if isinstance(value, int) else 0


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
