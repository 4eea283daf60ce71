"""One run, from stored requests to a stored reply: the agent behind it, the live view before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import perf_counter

import structlog

from agent.cancel import AgentCancelledError
from agent.events import (
    DefenceActed,
    Event,
    Outcome,
    RunFinished,
    TextDelta,
    TextReplaced,
    ToolFinished,
    ToolStarted,
    Waiting,
)
from agent.executor import AgentExecutor, AgentParts
from agent.messages import Block, JsonObject, Message, blocks_of, text_of
from agent.ports import ToolContext
from agent.summary import find_summary
from bridge.conversation import Conversation, Conversations
from bridge.delivery import Delivery
from bridge.errors import StoreError
from bridge.metrics import Metrics
from bridge.ports import ContextMark, FinishedRun, Request, RequestState, Store
from bridge.sessions import Work
from bridge.summaries import Summaries
from bridge.texts import bridge_texts
from channels.base import Channel, LiveView, Outgoing, ReplyContext, ToolLine

log = structlog.get_logger()


class AgentBridge:
    """Runs requests through the agent and stores what each run added, exactly once."""

    def __init__(
        self,
        parts: AgentParts,
        store: Store,
        conversations: Conversations,
        channels: Mapping[str, Channel],
        delivery: Delivery,
        metrics: Metrics,
        summaries: Summaries,
        *,
        max_running: int,
    ) -> None:
        """`max_running` runs go at once over all sessions, in the order in which they asked, so that one busy
        chat can't starve the others."""
        self._parts = parts
        self._store = store
        self._conversations = conversations
        self._channels = channels
        self._delivery = delivery
        self._metrics = metrics
        self._summaries = summaries
        self._slots = asyncio.Semaphore(max_running)
        self._late: dict[str, _LateEnd] = {}

    async def run(self, work: Work) -> None:
        """Never raises but for cancellation: whatever went wrong in a run, the line behind it goes on."""
        place = work.requests[-1].place
        with structlog.contextvars.bound_contextvars(
            session=place.session_id, request=work.requests[-1].request_id
        ):
            try:
                await self._run(work)
            except StoreError as error:
                log.error("run.not_stored", error=str(error))
                await self._apologise(work.requests)
            # The border of a run: a bug in it must not end the session's line, and the user must hear of it.
            except Exception:
                log.exception("run.crashed")
                await self._apologise(work.requests)

    async def _run(self, work: Work) -> None:
        lead = work.requests[-1]
        await self.store_late()
        await self._store.start([request.request_id for request in work.requests])
        conversation = await self._conversations.get(lead.place)
        self._summaries.apply(conversation)
        silent = work.token.cancelled
        progress = _RunProgress(self, work, conversation)
        view = LiveView()
        posted: tuple[str, ...] = ()
        if silent:
            await progress.drive(view)
        else:
            async with self._channels[lead.place.channel].reply(self._reply_context(lead, view)) as stream:
                async with self._slot(work, view):
                    await progress.drive(view)
                posted = await stream.stop()
        await self._finish(progress, conversation, posted, silent=silent)

    @asynccontextmanager
    async def _slot(self, work: Work, view: LiveView) -> AsyncIterator[None]:
        """A place among the runs; waiting for it is shown, and a cancel ends the waiting."""
        if self._slots.locked():
            log.info("run.waits_for_slot")
            lead = work.requests[-1]
            view.status(
                bridge_texts(self._parts.settings.language, text_of(blocks_of(lead.message))).waiting_for_slot
            )
        try:
            with work.token.scope():
                await self._slots.acquire()
        except AgentCancelledError:
            yield
            return
        view.status(None)
        try:
            yield
        finally:
            self._slots.release()

    def _reply_context(self, lead: Request, view: LiveView) -> ReplyContext:
        async def note_posted(posted: Sequence[str]) -> None:
            try:
                await self._store.note_posted(lead.request_id, posted)
            except StoreError as error:
                log.warning("run.posted_not_stored", error=str(error))

        return ReplyContext(
            lead.request_id, lead.place, view, lead.posted, lead.message_ref, lead.sender.id, note_posted
        )

    async def _finish(
        self, progress: _RunProgress, conversation: Conversation, posted: tuple[str, ...], *, silent: bool
    ) -> None:
        lead = progress.lead
        executor = progress.executor
        finished = progress.finished
        conversation.take_over(executor.messages, progress.requests[0].message_id)
        earlier, conversation.summary = conversation.summary, find_summary(executor.messages)
        conversation.model = finished.model
        conversation.context_tokens, conversation.context_window = executor.context_use()
        # After a /new in the meantime this run belongs to a context that is past.
        current = self._conversations.peek(lead.place) is conversation
        reply = None if silent else Outgoing(lead.place, finished.text, posted, reply_to=lead.message_ref)
        run = FinishedRun(
            request_ids=tuple(request.request_id for request in progress.requests),
            place=lead.place,
            messages=executor.last_run_new_messages[1:],
            reply=reply,
            mark=conversation.mark() if current else ContextMark(),
            finished_at=datetime.now(UTC),
            state=RequestState.FAILED if finished.outcome is Outcome.FAILED else RequestState.DONE,
        )
        log.info(
            "run.finished",
            outcome=finished.outcome,
            model=finished.model,
            steps=finished.steps,
            input_tokens=finished.usage.input_tokens,
            output_tokens=finished.usage.output_tokens,
            cache_read_tokens=finished.usage.cache_read_tokens,
        )
        self._metrics.count(f"run.{finished.outcome}")
        self._metrics.count_tokens(finished.usage)
        await self._store_end(run, conversation)
        if current and conversation.summary != earlier:
            self._summaries.begin(conversation)

    async def _store_end(self, run: FinishedRun, conversation: Conversation | None) -> None:
        """The reply that a person waits for goes out even where the disk takes nothing. What the run added is
        stored as soon as it can be; if this process ends before that, the request runs again at the next start."""
        try:
            row = await self._store.finish(run)
        except StoreError as error:
            log.error("run.end_not_stored", error=str(error))
            self._metrics.count("run.end_not_stored")
            self._late[run.request_ids[-1]] = _LateEnd(replace(run, reply=None), conversation)
            if run.reply is not None:
                self._delivery.put_unstored(run.reply)
            return
        if row is not None:
            self._delivery.put(row)

    async def store_late(self) -> None:
        """Ends of earlier runs that the store could not take when they ended."""
        for key, late in list(self._late.items()):
            # After a /new in the meantime its mark would bring the past context back.
            current = self._conversations.peek(late.run.place) is late.conversation
            try:
                await self._store.finish(late.run if current else replace(late.run, mark=ContextMark()))
            except StoreError as error:
                log.warning("run.end_still_not_stored", error=str(error))
                return
            self._late.pop(key, None)
            log.info("run.end_stored_late", late_request=key)

    async def _apologise(self, requests: Sequence[Request]) -> None:
        lead = requests[-1]
        # The working copy may be half changed; the store is not.
        self._conversations.forget(lead.place)
        texts = bridge_texts(self._parts.settings.language, text_of(blocks_of(lead.message)))
        reply = Outgoing(lead.place, texts.failed, reply_to=lead.message_ref)
        ids = tuple(request.request_id for request in requests)
        end = FinishedRun(ids, lead.place, (), reply, ContextMark(), datetime.now(UTC), RequestState.FAILED)
        await self._store_end(end, None)

    def measure(self, conversation: Conversation) -> None:
        """Fills in what a run would have, in a conversation that was just read back or begun."""
        conversation.model = conversation.model or self._parts.models[0].name
        if not conversation.context_window:
            executor = AgentExecutor(
                self._parts, conversation.messages, ToolContext(conversation.place.session_id, "")
            )
            conversation.context_tokens, conversation.context_window = executor.context_use()

    def note(self, conversation: Conversation, acted: DefenceActed) -> None:
        """One event for each defence that acted: the log, /status and the metrics count the same things."""
        log.info(acted.event, **acted.fields)
        conversation.acted[acted.event] += 1
        self._metrics.count(acted.event)

    def observe(self, what: str, seconds: float) -> None:
        self._metrics.observe(what, seconds)

    async def count_effect(self, request_id: str) -> None:
        await self._store.count_effect(request_id)

    @property
    def parts(self) -> AgentParts:
        return self._parts


@dataclass(frozen=True, slots=True)
class _LateEnd:
    """The end of a run that waits for the store; `conversation` is the one that its mark was made for."""

    run: FinishedRun
    conversation: Conversation | None


class _RunProgress:
    """One run under way: feeds the executor's events to the live view."""

    def __init__(self, bridge: AgentBridge, work: Work, conversation: Conversation) -> None:
        self.requests = list(work.requests)
        self.lead = work.requests[-1]
        self.finished = RunFinished(Outcome.FAILED, "", "")
        self._bridge = bridge
        self._work = work
        self._conversation = conversation
        context = ToolContext(
            session_id=self.lead.place.session_id,
            request_id=self.lead.request_id,
            time_zone=self.lead.sender.time_zone,
            user_id=self.lead.sender.id,
        )
        self.executor = AgentExecutor(bridge.parts, conversation.messages, context, self._steer)

    async def drive(self, view: LiveView) -> None:
        message = joined(self.requests)
        self._conversation.language_sample = text_of(blocks_of(message))
        begun, silent = perf_counter(), True
        async with aclosing(self.executor.run_stream(message, self._work.token)) as events:
            async for event in events:
                if silent and isinstance(event, TextDelta):
                    silent = False
                    self._bridge.observe("first_text", perf_counter() - begun)
                await self._show(event, view)
        self._bridge.observe("run", perf_counter() - begun)

    async def _show(self, event: Event, view: LiveView) -> None:
        match event:
            case TextDelta(text):
                view.append(text)
            case TextReplaced(text):
                view.replace(text)
            case ToolStarted(tool_use_id, name, args, effects):
                if effects:
                    await self._bridge.count_effect(self.lead.request_id)
                view.tool(tool_use_id, ToolLine(name, short_args(args), "running"))
            case ToolFinished(tool_use_id, name, is_error):
                view.tool_done(tool_use_id, failed=is_error)
            case Waiting(reason, seconds, attempt):
                view.status(reason)
                self._bridge.note(
                    self._conversation, DefenceActed("recovery.wait", {"seconds": seconds, "attempt": attempt})
                )
            case DefenceActed():
                self._bridge.note(self._conversation, event)
            case RunFinished():
                self.finished = event
            case _:
                pass

    def _steer(self) -> Sequence[str]:
        taken = self._work.steer()
        self.requests.extend(taken)
        return [text_of(blocks_of(request.message)) for request in taken]


def joined(requests: Sequence[Request]) -> Message:
    """Messages that piled up, as the one user message that is answered."""
    if len(requests) == 1:
        return {"role": "user", "content": list(blocks_of(requests[0].message))}
    blocks: list[Block] = [block for request in requests for block in blocks_of(request.message)]
    return {"role": "user", "content": blocks}


def short_args(args: JsonObject, limit: int = 60) -> str:
    """Arguments as a person sees them on one line."""
    if len(args) == 1 and isinstance(only := next(iter(args.values())), str | int | float):
        text = str(only)
    else:
        text = json.dumps(args, ensure_ascii=False)[1:-1] if args else ""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
