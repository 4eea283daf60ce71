"""Commands, the same on every platform. They never wait behind a run."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bridge.conversation import Conversation, Conversations
from bridge.export import MEDIA_TYPES, export, file_name
from bridge.ports import CancelSignal, Store
from bridge.sessions import SessionLines
from bridge.texts import BridgeTexts
from channels.base import CommandInfo, Inbound, OutFile, Place

ALIASES = {"stop": "cancel", "start": "help"}
"""Other names of commands; /start is what Telegram sends when a person opens the bot."""

BARE = frozenset({"cancel", "stop"})
"""Words that are a command when they stand alone, where slash commands don't reach (a thread in Slack)."""

NAMES = ("cancel", "new", "status", "history", "help")

_PATTERN = re.compile(r"\s*/([A-Za-z]+)(?:@\w+)?(?:\s+(.*))?\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """A recognised command: its own name (no alias) and the text behind it."""

    name: str
    args: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command says, and the files that come with it."""

    text: str
    files: tuple[OutFile, ...] = ()


def parse_command(text: str, *, bare: bool = False) -> Command | None:
    """The command that this text is, if it is one; a word like "cancel" inside normal talk is none."""
    if bare and (word := text.strip().lower()) in BARE:
        return Command(ALIASES.get(word, word))
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    name = match[1].lower()
    name = ALIASES.get(name, name)
    return Command(name, (match[2] or "").strip()) if name in NAMES else None


def menu(texts: BridgeTexts) -> list[CommandInfo]:
    """For a platform's command menu."""
    return [CommandInfo(name, texts.commands[name]) for name in NAMES]


class Commands:
    """Carries commands out and gives the answer for the user."""

    def __init__(
        self,
        store: Store,
        lines: SessionLines,
        cancels: CancelSignal,
        conversations: Conversations,
        measure: Callable[[Conversation], None],
    ) -> None:
        """`measure` fills in the model and the context's size where no run has yet (AgentBridge.measure)."""
        self._store = store
        self._lines = lines
        self._cancels = cancels
        self._conversations = conversations
        self._measure = measure

    def cancel(self, inbound: Inbound) -> int:
        """How many requests were stopped. Synchronous, since nothing may come before it: the stop is on its way
        when this returns."""
        stopped = self._cancels.cancel_session(inbound.place.session_id)
        if not stopped and inbound.place.kind == "group" and inbound.place.thread is None:
            stopped = self._cancel_own(inbound)
        return stopped

    def sample(self, place: Place) -> str:
        """What was last asked in this conversation, which tells its language; empty if it is not in memory."""
        conversation = self._conversations.peek(place)
        return conversation.language_sample if conversation is not None else ""

    async def sample_read(self, place: Place) -> str:
        """The same, read from the store where it must be. Raises bridge.errors.StoreError."""
        return (await self._conversations.get(place)).language_sample

    async def carry_out(self, command: Command, inbound: Inbound, texts: BridgeTexts) -> Answer:
        match command.name:
            case "new":
                self._cancels.cancel_session(inbound.place.session_id)
                await self._store.new_context(inbound.place.session_id)
                self._conversations.start_anew(inbound.place)
                return Answer(texts.new_context)
            case "status":
                return Answer(await self._status(inbound.place, texts))
            case "history":
                return await self._history(inbound.place, texts)
            case _:
                lines = [f"- `/{name}` – {texts.commands[name]}" for name in NAMES]
                return Answer("\n".join([texts.help_heading, "", *lines]))

    async def _history(self, place: Place, texts: BridgeTexts) -> Answer:
        history = await self._store.history(place.session_id)
        # In a thread: some conversations are as long as books, and others are being answered meanwhile.
        text = await asyncio.to_thread(export, place.session_id, history, "md")
        file = OutFile(file_name(place.session_id, "md"), MEDIA_TYPES["md"], text.encode("utf-8"))
        return Answer(texts.history.format(count=len(history)), (file,))

    def _cancel_own(self, inbound: Inbound) -> int:
        """A slash command carries no thread: it stops what this person started anywhere in this channel."""
        place = inbound.place
        own = [
            request.request_id
            for request in self._lines.requests()
            if request.sender.id == inbound.sender.id
            and (request.place.channel, request.place.chat) == (place.channel, place.chat)
        ]
        return sum(self._cancels.cancel(request_id) for request_id in own)

    async def _status(self, place: Place, texts: BridgeTexts) -> str:
        conversation = await self._conversations.get(place)
        self._measure(conversation)
        running, queued = self._lines.counts(place)
        tokens, window = conversation.context_tokens, conversation.context_window
        lines = [
            texts.status_model.format(model=conversation.model),
            texts.status_context.format(tokens=tokens, window=window, share=tokens / window),
            texts.status_requests.format(running=running, queued=queued),
            texts.status_defences.format(acted=in_words(conversation.acted, texts) or texts.status_quiet),
        ]
        return "\n".join(f"- {line}" for line in lines)


def cancelled(stopped: int, texts: BridgeTexts) -> str:
    """The answer to /cancel."""
    if not stopped:
        return texts.nothing_running
    return texts.cancelled_one if stopped == 1 else texts.cancelled_many.format(count=stopped)


def in_words(acted: Counter[str], texts: BridgeTexts) -> str:
    """What the defences did, for a person; an event without words of its own goes by its name in the log."""
    words: Counter[str] = Counter()
    for event, count in acted.items():
        words[texts.acted.get(event, event)] += count
    return texts.comma.join(f"{what} ×{count}" for what, count in sorted(words.items()))
