"""Server-sent events from bytes (WHATWG HTML, "Server-sent events"). No I/O.

The SDKs' own decoders take a line at a time through several generators; this one takes whatever has arrived.
"""

from __future__ import annotations

from agent.errors import StreamBroken

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""An event that goes on for longer is no event; the largest that providers send hold an image."""

_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """`feed` takes bytes as they arrive, cut anywhere, and gives each event that is whole as (name, data).

    An event without an `event` line has the name "". Comments, `id` and `retry` are passed over; so are events
    that have no data. Raises UnicodeDecodeError, and StreamBroken for an event over `MAX_EVENT_BYTES`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._after_cr = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if self._rest:
            data = self._rest + data
        if not self._started:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            self._started = True
            data = data.removeprefix(_BOM)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:]
        self._after_cr = data[end - 1 : end] == b"\r"
        return self._events(data[:end])

    def end(self) -> list[tuple[str, str]]:
        """The event that was not followed by an empty line, where there is one; to be called once."""
        rest, self._rest = self._rest, b""
        return self._events(rest.removeprefix(b"" if self._started else _BOM) + b"\n\n")

    def _events(self, lines: bytes) -> list[tuple[str, str]]:
        """Bytes are split before they are decoded: text has line breaks of its own, which are none here."""
        events: list[tuple[str, str]] = []
        for line in lines.splitlines():
            if not line:
                if self._data:
                    events.append((self._name, "\n".join(self._data)))
                self._name, self._data, self._size = "", [], 0
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._size += len(value)
                self._data.append(value.decode())
            elif name == b"event":
                self._name = value.decode()
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise StreamBroken(f"an event of the stream is longer than {MAX_EVENT_BYTES} bytes")
        return events
