"""The second stage of a summary: a model writes it anew in the background, and the next run starts with it (§2).

The reply never waits for this. Until it is there, or if it fails, the deterministic digest stands.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import structlog

from agent.events import TextDelta
from agent.messages import text_block, user_message
from agent.ports import Model, ModelRequest
from agent.summary import Summary, find_summary, replace_summary, summary_request
from agent.texts import Language, Texts, texts_for
from bridge.conversation import Conversation
from bridge.errors import StoreError
from bridge.ports import Store

log = structlog.get_logger()

TIME_LIMIT = 120.0
"""Seconds for one summary."""

AT_ONCE = 4
"""Summaries that are written at the same time, over all sessions."""


class Summaries:
    """Owns the summaries under way. `model` None: the digests stay."""

    def __init__(self, model: Model | None, store: Store, language: Language) -> None:
        self._model = model
        self._store = store
        self._language: Language = language
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    def begin(self, conversation: Conversation) -> None:
        """Has the conversation's summary written anew; a newer one of the same session takes an older's place."""
        if self._model is None or conversation.summary is None:
            return
        key = conversation.place.session_id
        if (older := self._tasks.pop(key, None)) is not None:
            older.cancel()
        texts = texts_for(self._language, conversation.language_sample)
        work = self._write(self._model, conversation, conversation.summary, texts)
        task = self._tasks[key] = asyncio.create_task(work, name=f"summary {key}")
        task.add_done_callback(lambda done: self._forget(key, done))

    def apply(self, conversation: Conversation) -> None:
        """Before a run: the written summary takes the digest's place, if it stands for the same turns."""
        written, conversation.written_summary = conversation.written_summary, None
        current = conversation.summary
        if written is None or current is None or written.turns != current.turns:
            return
        texts = texts_for(self._language, conversation.language_sample)
        replace_summary(conversation.messages, written.text, texts)
        conversation.summary = find_summary(conversation.messages)

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _write(self, model: Model, conversation: Conversation, summary: Summary, texts: Texts) -> None:
        session_id = conversation.place.session_id
        async with self._slots, asyncio.timeout(TIME_LIMIT):
            text = await _ask(model, summary, texts)
        if not text:
            return
        conversation.written_summary = Summary(text, summary.turns)
        log.info("summary.written", session=session_id, turns=summary.turns, characters=len(text))
        try:
            await self._store.set_summary(session_id, text, summary.turns)
        except StoreError as error:
            log.warning("summary.not_stored", session=session_id, error=str(error))

    def _forget(self, key: str, done: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is done:
            del self._tasks[key]
        if not done.cancelled() and (error := done.exception()) is not None:
            # Whatever a provider's SDK raised: a summary that fails costs nothing, the digest stands.
            log.info("summary.failed", session=key, error=type(error).__name__)


async def _ask(model: Model, summary: Summary, texts: Texts) -> str:
    system, question = summary_request(summary, texts)
    request = ModelRequest(system, [user_message(text_block(question))])
    async with aclosing(model.stream(request)) as stream:
        parts = [event.text async for event in stream if isinstance(event, TextDelta)]
    return "".join(parts).strip()
