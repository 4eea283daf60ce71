"""What a session keeps in memory between two runs: its working copy of the conversation, read back when needed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from agent.messages import Message, blocks_of, text_of
from agent.summary import Summary, inject_summary
from agent.texts import Language, texts_for
from agent.turns import is_real_user_query
from bridge.ports import ContextMark, Store, StoredSession
from channels.base import Place


@dataclass(slots=True)
class Conversation:
    """`messages` is what the next run starts from; `query_ids` holds the stored id of each real user query in
    it, so that it is known where in the store the context begins. `written_summary` waits for the next run."""

    place: Place
    messages: list[Message] = field(default_factory=list)
    query_ids: list[int] = field(default_factory=list)
    summary: Summary | None = None
    written_summary: Summary | None = None
    language_sample: str = ""
    model: str = ""
    context_tokens: int = 0
    context_window: int = 0
    acted: Counter[str] = field(default_factory=Counter)
    last_used: float = field(default_factory=time.monotonic)

    def take_over(self, messages: list[Message], query_id: int) -> None:
        """After a run: the executor's list replaces ours, whatever it dropped or cleared (§6)."""
        self.messages = messages
        self.query_ids.append(query_id)
        queries = sum(is_real_user_query(message) for message in messages)
        self.query_ids = self.query_ids[-queries:] if queries else []

    def mark(self) -> ContextMark:
        start = self.query_ids[0] if self.query_ids else None
        if self.summary is None:
            return ContextMark(context_from=start)
        return ContextMark(start, self.summary.text, self.summary.turns)


class Conversations:
    """Conversations in memory, read from the store on first use and forgotten when idle."""

    def __init__(self, store: Store, language: Language, idle_evict: float) -> None:
        self._store = store
        self._language: Language = language
        self._idle_evict = idle_evict
        self._known: dict[str, Conversation] = {}

    def peek(self, place: Place) -> Conversation | None:
        return self._known.get(place.session_id)

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, place: Place) -> Conversation:
        """Raises bridge.errors.StoreError when it can't be read."""
        found = self._known.get(place.session_id)
        if found is None:
            stored = await self._store.session(place.session_id)
            found = self._known[place.session_id] = self._read(place, stored)
        found.last_used = time.monotonic()
        return found

    def forget(self, place: Place) -> None:
        """The next use reads it from the store again."""
        self._known.pop(place.session_id, None)

    def start_anew(self, place: Place) -> None:
        """An empty context; what the defences did stays counted."""
        old = self._known.get(place.session_id)
        if old is not None:
            self._known[place.session_id] = Conversation(
                place, language_sample=old.language_sample, model=old.model, acted=old.acted
            )

    def evict_idle(self, busy: set[str]) -> int:
        """Drops from memory what was not used for `idle_evict` seconds and is not busy now."""
        limit = time.monotonic() - self._idle_evict
        idle = [key for key, item in self._known.items() if item.last_used < limit and key not in busy]
        for key in idle:
            del self._known[key]
        return len(idle)

    def _read(self, place: Place, stored: StoredSession | None) -> Conversation:
        conversation = Conversation(place)
        if stored is None:
            return conversation
        for row in stored.messages:
            conversation.messages.append(row.message)
            if is_real_user_query(row.message):
                conversation.query_ids.append(row.id)
                conversation.language_sample = text_of(blocks_of(row.message))
        if stored.summary and conversation.messages:
            conversation.summary = Summary(stored.summary, stored.summary_turns)
            texts = texts_for(self._language, conversation.language_sample)
            inject_summary(conversation.messages, conversation.summary, texts)
        return conversation
