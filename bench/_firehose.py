"""A model provider that does nothing but stream, at a given pace, to a thousand clients at once.

`python -m bench._firehose --port 0 --chunks 400 --interval 0.025` prints its URL. Every chunk's text is the time at
which it was written (CLOCK_MONOTONIC, one clock for all processes of a machine), so the reader knows how old it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import cast

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"connection: keep-alive\r\n\r\n"
)


def framed(event: dict[str, object]) -> bytes:
    data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


START = framed(
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        },
    }
) + framed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
END = (
    framed({"type": "content_block_stop", "index": 0})
    + framed(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        }
    )
    + framed({"type": "message_stop"})
    + b"0\r\n\r\n"
)


class Client(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, hose: Firehose) -> None:
        self.hose = hose
        self.left = 0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.hose.streaming.discard(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        if len(body) < length:
            return
        self._buffer = body[length:]
        self.left = self.hose.chunks
        self.transport.write(HEAD + START)
        self.hose.streaming.add(self)


class Firehose:
    """Writes one chunk to every streaming client at each tick; at most one tick behind, never more at once."""

    def __init__(self, chunks: int, interval: float) -> None:
        self.chunks = chunks
        self.interval = interval
        self.streaming: set[Client] = set()

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self.interval
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            text = f" {time.monotonic():.4f}"
            chunk = framed(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            )
            for client in list(self.streaming):
                client.left -= 1
                if client.left > 0:
                    client.transport.write(chunk)
                else:
                    client.transport.write(chunk + END)
                    self.streaming.discard(client)


async def main(port: int, chunks: int, interval: float) -> None:
    hose = Firehose(chunks, interval)
    server = await asyncio.get_running_loop().create_server(lambda: Client(hose), "127.0.0.1", port, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await hose.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--interval", type=float, default=0.025)
    options = parser.parse_args()
    asyncio.run(main(options.port, options.chunks, options.interval))
