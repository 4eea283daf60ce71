"""Messages on Slack: post, change, take away; and find one again whose posting was never confirmed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from channels.base import Place
from channels.slack.faults import GONE_MESSAGE, SlackFault
from channels.slack.payload import Body, map_at, maps_at, text_at
from channels.slack.wire import Wire

MARK = "steadybot_reply"
STREAMING = "streaming_state_conflict"
SEARCHED = 100  # newest messages looked at


def mark_of(*parts: str) -> str:
    """A short name for a message that is the same whenever the same message is sent again."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:24]


async def post(wire: Wire, place: Place, body: Body, mark: str, *, timeout: float | None = None) -> str:
    """Posts a message and returns its ts. `mark` goes along unseen, for `find`. Raises SlackFault."""
    answer = await wire.send(
        "chat.postMessage",
        {
            "channel": place.chat,
            **({"thread_ts": place.thread} if place.thread else {}),
            "unfurl_links": False,
            "metadata": {"event_type": MARK, "event_payload": {"mark": mark}},
            **body,
        },
        timeout=timeout,
    )
    return text_at(answer.data, "ts")


async def change(wire: Wire, place: Place, ts: str, body: Body, *, timeout: float | None = None) -> bool:
    """Makes the message show `body`; False when it can't be changed any more. Raises SlackFault."""
    request: Body = {"channel": place.chat, "ts": ts, **body}
    try:
        try:
            await wire.send("chat.update", request, timeout=timeout)
        except SlackFault as fault:
            if fault.code != STREAMING:
                raise
            await wire.send("chat.stopStream", {"channel": place.chat, "ts": ts}, timeout=timeout)
            await wire.send("chat.update", request, timeout=timeout)
    except SlackFault as fault:
        if fault.code in GONE_MESSAGE:
            return False
        raise
    return True


async def remove(wire: Wire, place: Place, ts: str, *, timeout: float | None = None) -> bool:
    """Takes the message away; False when that is not allowed or it is gone already. Raises SlackFault."""
    try:
        await wire.send("chat.delete", {"channel": place.chat, "ts": ts}, timeout=timeout)
    except SlackFault as fault:
        if fault.code in GONE_MESSAGE:
            return False
        raise
    return True


async def find(
    wire: Wire, place: Place, marks: Sequence[str], oldest: str, *, timeout: float | None = None
) -> dict[str, str]:
    """The ts of each mark's message that the place holds, newer than the ts `oldest`. Raises SlackFault."""
    where = {"channel": place.chat, "oldest": oldest, "limit": str(SEARCHED), "include_all_metadata": "true"}
    method = "conversations.history"
    if place.thread:
        method, where["ts"] = "conversations.replies", place.thread
    answer = await wire.ask(method, timeout=timeout, **where)
    found: dict[str, str] = {}
    for message in maps_at(answer.data, "messages"):
        metadata = map_at(message, "metadata")
        mark = text_at(metadata, "event_payload", "mark")
        if text_at(metadata, "event_type") == MARK and mark in marks:
            found.setdefault(mark, text_at(message, "ts"))
    return found
