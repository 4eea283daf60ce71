"""Slack's native streaming: start, append, stop. It can only grow, and Slack may end it at any time."""

from __future__ import annotations

from contextlib import suppress

from channels.base import Place
from channels.slack.faults import SlackFault
from channels.slack.payload import Body, text_at
from channels.slack.render import harmless, parts_of
from channels.slack.wire import Wire


class NativeStream:
    """One streamed message in a thread. `ts` is its id once it was begun."""

    def __init__(self, wire: Wire, place: Place, recipient: str | None, team_id: str, timeout: float) -> None:
        self.ts: str | None = None
        self._wire = wire
        self._place = place
        self._recipient = recipient
        self._team_id = team_id
        self._timeout = timeout
        self._text = ""
        self._open = False

    async def show(self, text: str) -> bool:
        """Streams what is new; False when the text no longer starts with what is shown. Raises SlackFault."""
        stable = _stable(text)
        if not stable.startswith(self._text):
            return False
        new = stable[len(self._text) :]
        if not new.strip():
            return True
        body: Body = {"channel": self._place.chat, "markdown_text": new}
        if self.ts is None:
            await self._start(body)
        else:
            await self._wire.send("chat.appendStream", {**body, "ts": self.ts}, timeout=self._timeout)
        self._text = stable
        return True

    async def _start(self, body: Body) -> None:
        body["thread_ts"] = self._place.thread
        if self._recipient:
            body["recipient_user_id"] = self._recipient
            body["recipient_team_id"] = self._team_id
        answer = await self._wire.send("chat.startStream", body, timeout=self._timeout)
        self.ts = text_at(answer.data, "ts")
        self._open = True

    async def end(self) -> None:
        """Stops the stream. A fault is no matter: Slack ends it by itself, and an edit stops it, too."""
        if not self._open or self.ts is None:
            return
        self._open = False
        with suppress(SlackFault):
            await self._wire.send(
                "chat.stopStream", {"channel": self._place.chat, "ts": self.ts}, timeout=self._timeout
            )


def _stable(text: str) -> str:
    """The text as it is streamed, as far as later text can't change how it must be written.

    An open code span or a word at the end may still turn out to be something that has to be written otherwise.
    """
    head, _, _ = text.rpartition("\n")
    tail = text[len(head) :]
    if "`" in tail or "<" in tail or "@" in tail or "&" in tail:
        tail = ""
    return harmless(head + tail) if parts_of(head + tail) else ""
