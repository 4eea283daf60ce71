"""What a channel and the bridge say to each other: small frozen values and two Protocols, free of any platform.

`Intake` is the bridge as a channel sees it; `Channel` is a platform as the bridge sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation is; the one value that every path (reply, error, reminder) carries.

    `chat` and `thread` are the platform's own ids as text: a Telegram chat id and message_thread_id, a Slack
    channel id and thread_ts. `kind` tells whether one person is there or several.
    """

    channel: str
    chat: str
    thread: str | None = None
    kind: Literal["direct", "group"] = "direct"

    @property
    def session_id(self) -> str:
        tail = f"/{self.thread}" if self.thread else ""
        return f"{self.channel}/{self.chat}{tail}"


@dataclass(frozen=True, slots=True)
class Sender:
    """A person on the platform; `guest` means that they are not a full member of the workspace (Slack)."""

    id: str
    name: str
    guest: bool = False
    time_zone: str | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message: its bytes for an image, its text where it is readable as text, else
    neither, and the model is only told that it was there."""

    kind: Literal["image", "text", "file", "voice"]
    name: str
    media_type: str
    data: bytes | None = None
    text: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class Inbound:
    """One message from a person.

    `event_keys` name the event for duplicate recognition; any one of them seen before means seen before (Slack
    sends one mention as two events with one channel and ts). `message_ref` is the platform's id of the message.
    `addressed` is False for group talk that is only context. `bare_commands` allows a lone word ("cancel",
    "stop") as a command, in a thread where slash commands do not work.
    """

    event_keys: tuple[str, ...]
    place: Place
    sender: Sender
    text: str
    sent_at: datetime
    message_ref: str | None = None
    attachments: tuple[Attachment, ...] = ()
    quoted: str | None = None
    context: tuple[str, ...] = ()
    bare_commands: bool = False


class Accepted(StrEnum):
    """What became of an inbound message. In each case the platform may be told that we have it."""

    STORED = "stored"
    COMMAND = "command"
    DUPLICATE = "duplicate"
    DENIED = "denied"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ToolLine:
    """One tool call as a person sees it, on one quiet line."""

    name: str
    args: str
    state: Literal["running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running reply at one moment: Markdown text so far, tool lines, and what it is waiting for, if
    anything. `version` grows with every change."""

    text: str
    tools: tuple[ToolLine, ...]
    status: str | None
    version: int


class LiveView:
    """The running reply: the bridge writes, the channel reads at its own pace, the newest state wins.

    There is no queue between the two, so a slow platform delays neither the model nor other chats. `changed` is
    set on every write; the reader clears it before it takes a snapshot.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._parts: list[str] = []
        self._tools: dict[str, ToolLine] = {}
        self._status: str | None = None
        self._version = 0

    def append(self, text: str) -> None:
        self._parts.append(text)
        self._status = None
        self._touch()

    def replace(self, text: str) -> None:
        self._parts = [text] if text else []
        self._touch()

    def tool(self, tool_use_id: str, line: ToolLine) -> None:
        self._tools[tool_use_id] = line
        self._touch()

    def tool_done(self, tool_use_id: str, *, failed: bool) -> None:
        line = self._tools[tool_use_id]
        self.tool(tool_use_id, ToolLine(line.name, line.args, "failed" if failed else "done"))

    def status(self, text: str | None) -> None:
        self._status = text
        self._touch()

    def snapshot(self) -> Snapshot:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        text = self._parts[0] if self._parts else ""
        return Snapshot(text, tuple(self._tools.values()), self._status, self._version)

    def _touch(self) -> None:
        self._version += 1
        self.changed.set()


@dataclass(frozen=True, slots=True)
class OutFile:
    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A final text that must arrive. `text` is Markdown. `posted` are the platform's ids of messages that
    already show (a part of) it, in order: they are edited before anything new is sent. `uncertain` means that
    an earlier try ended with its result unknown. `reply_to` is the id of the message that is answered."""

    place: Place
    text: str
    posted: tuple[str, ...] = ()
    uncertain: bool = False
    reply_to: str | None = None
    files: tuple[OutFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What a channel needs to show a running reply. `asker` is the sender's id (Slack's streaming wants it)."""

    request_id: str
    place: Place
    view: LiveView
    posted: tuple[str, ...] = ()
    reply_to: str | None = None
    asker: str | None = None
    note_posted: PostedNote | None = None


class PostedNote(Protocol):
    async def __call__(self, posted: Sequence[str]) -> None:
        """Stores which messages show the reply so far, so that a restart edits them and posts no second one."""


class ReplyStream(Protocol):
    """A running reply on a platform; one owner of the visible message."""

    async def stop(self) -> tuple[str, ...]:
        """Ends the live showing after the update under way, and returns the ids of the messages it posted.

        The final text is not shown by this: it comes by `Channel.deliver`, with these ids as `posted`.
        """


class ChannelError(Exception):
    """A platform said no. The text is one clear line for the log, with the mend, and holds no secret."""


class ChannelSetupError(ChannelError):
    """The channel can't start (wrong token, missing scope), or can't go on (a second poller)."""


class TryLater(ChannelError):
    """The platform or the network can't take it now; `after` in seconds where the platform named a time.

    `uncertain` means that the message may have arrived all the same.
    """

    def __init__(self, text: str, after: float | None = None, *, uncertain: bool = False) -> None:
        super().__init__(text)
        self.after = after
        self.uncertain = uncertain


class Undeliverable(ChannelError):
    """It will never arrive there: the bot is blocked or kicked, the chat or topic is gone."""


class CancelReply(StrEnum):
    """What a press on the Cancel button did."""

    STOPPED = "stopped"
    NOTHING_RUNNING = "nothing_running"
    NOT_ALLOWED = "not_allowed"


class Intake(Protocol):
    """The bridge, as a channel sees it."""

    async def accept(self, inbound: Inbound) -> Accepted:
        """Returns after the message is committed; only then may the platform be told that we have it.

        Raises bridge.errors.StoreError when it could not be stored: the platform must then not be told.
        """

    async def cancel(self, request_id: str, place: Place, sender: Sender) -> CancelReply:
        """Stops the request that this reply belongs to, for a press on its button."""

    def is_running(self, place: Place) -> bool:
        """Whether a request of this place runs or waits."""

    async def knows(self, place: Place) -> bool:
        """Whether there is a session at this place (for Slack: whether the bot was ever in this thread)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `steadybot check`: what was looked at, whether it is right, and if not the mend."""

    ok: bool
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command for the platform's menu: name without the slash, and one line on what it does."""

    name: str
    description: str


class Channel(Protocol):
    """A platform. Life: `start`, then `run` until cancelled; `reply` and `deliver` from `start` to `aclose`."""

    @property
    def name(self) -> str: ...

    async def start(self, commands: Sequence[CommandInfo]) -> None:
        """Connects and learns who we are. Raises ChannelSetupError."""

    async def run(self, intake: Intake) -> None:
        """Takes events in until cancelled; returns by itself only when the person left (console).

        Raises ChannelSetupError when it can't go on; other channels are not touched by that.
        """

    def reply(self, context: ReplyContext) -> AbstractAsyncContextManager[ReplyStream]:
        """Shows a running reply: typing, live text, tool lines, a Cancel button. Never raises for a platform's
        fault: what could not be shown live is shown by `deliver`."""

    async def deliver(self, outgoing: Outgoing) -> tuple[str, ...]:
        """Shows the final text whole, and returns the platform's ids of the messages that show it.

        Raises TryLater or Undeliverable.
        """

    async def check(self) -> Sequence[Finding]:
        """Asks the platform whether the keys work and what is missing; used without `start`."""

    async def aclose(self) -> None: ...
