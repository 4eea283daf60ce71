"""Server-sent events, cut anywhere and ended in any way, are the events that were meant."""

from __future__ import annotations

from itertools import pairwise

import pytest
from anthropic._streaming import SSEDecoder as SdkDecoder
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import StreamBroken
from agent.models import _sse
from agent.models._sse import SseDecoder

line_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=8)
names = st.one_of(st.just(""), st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=4))
events = st.tuples(names, st.lists(line_text, min_size=1, max_size=3))
noise = st.sampled_from([": life", ":", "id: 7", "retry: 10", "retry: x", "odd", "odd: value", "DATA: no"])


def written(found: tuple[str, list[str]], before: list[str]) -> list[str]:
    name, lines = found
    return [*before, *([f"event: {name}"] if name else []), *(f"data: {line}" for line in lines), ""]


streams = st.tuples(
    st.lists(st.tuples(events, st.lists(noise, max_size=2)), max_size=5), st.sampled_from(["\n", "\r", "\r\n"])
)


def meant(stream: list[tuple[tuple[str, list[str]], list[str]]]) -> list[tuple[str, str]]:
    return [(name, "\n".join(lines)) for (name, lines), _ in stream]


def raw(stream: list[tuple[tuple[str, list[str]], list[str]]], ending: str) -> bytes:
    return "".join(line + ending for event, before in stream for line in written(event, before)).encode()


@given(streams, st.booleans(), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(
    made: tuple[list[tuple[tuple[str, list[str]], list[str]]], str], marked: bool, data: st.DataObject
) -> None:
    stream, ending = made
    body = b"\xef\xbb\xbf" * marked + raw(stream, ending)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    decoder = SseDecoder()
    found = [e for start, end in pairwise([0, *cuts, len(body)]) for e in decoder.feed(body[start:end])]
    assert found + decoder.end() == meant(stream)


@given(streams)
def test_a_byte_at_a_time_gives_the_same_events(
    made: tuple[list[tuple[tuple[str, list[str]], list[str]]], str],
) -> None:
    stream, ending = made
    decoder = SseDecoder()
    assert [e for byte in raw(stream, ending) for e in decoder.feed(bytes([byte]))] == meant(stream)
    assert decoder.end() == []


@given(st.lists(st.sampled_from([b"data", b"event", b"id", b":", b" ", b"\n", b"\r", b"x", "☀".encode()])))
def test_whatever_lines_come_the_sdk_reads_the_same(pieces: list[bytes]) -> None:
    body = b"".join(pieces) + b"\n\n"
    decoder = SseDecoder()
    ours = decoder.feed(body) + decoder.end()
    theirs = [(found.event or "", found.data) for found in SdkDecoder().iter_bytes(iter([body]))]
    assert [event for event in ours if event[1]] == [event for event in theirs if event[1]]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_the_last_event_needs_no_empty_line(end: bytes) -> None:
    decoder = SseDecoder()
    found = decoder.feed(b"event: a\ndata: 1\n\nevent: b\ndata: 2" + end)
    assert found + decoder.end() == [("a", "1"), ("b", "2")]


def test_an_event_without_data_is_passed_over_and_its_name_with_it() -> None:
    assert SseDecoder().feed(b"event: gone\n\ndata: here\n\n") == [("", "here")]


def test_line_breaks_of_text_are_none_of_the_stream() -> None:
    text = "a\u2028b\x0bc\x85d"
    assert SseDecoder().feed(f"data: {text}\n\n".encode()) == [("", text)]


@pytest.mark.parametrize("piece", [b"x" * 40, b"data: " + b"x" * 40 + b"\n"])
def test_an_event_without_end_is_given_up(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sse, "MAX_EVENT_BYTES", 100)
    decoder = SseDecoder()
    decoder.feed(piece + piece)
    with pytest.raises(StreamBroken, match="longer than 100 bytes"):
        decoder.feed(piece)


def test_many_events_of_a_read_may_be_longer_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sse, "MAX_EVENT_BYTES", 10)
    assert len(SseDecoder().feed(b"data: 12345\n\n" * 50)) == 50
