"""The way in: a message is stored, in one transaction and before anything else, and then put into its line."""

from __future__ import annotations

import base64
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from agent.messages import Block, Message, text_block
from bridge.access import Access
from bridge.commands import Answer, Command, Commands, cancelled, parse_command
from bridge.delivery import Delivery
from bridge.errors import StoreError
from bridge.metrics import Metrics
from bridge.ports import CancelSignal, NewRequest, Request, RequestState, Store
from bridge.sessions import Busy, SessionLines
from bridge.texts import BridgeTexts, bridge_texts
from channels.base import Accepted, Attachment, CancelReply, Inbound, Outgoing, Place, Sender

log = structlog.get_logger()

RECENT_EVENTS = 2_000
"""Event keys of commands kept in memory, so that a redelivered /cancel does not stop the next run."""


class Inlet:
    """Implements channels.base.Intake."""

    def __init__(
        self,
        store: Store,
        access: Access,
        lines: SessionLines,
        cancels: CancelSignal,
        commands: Commands,
        delivery: Delivery,
        metrics: Metrics,
        *,
        busy: Mapping[str, Busy],
        queue_limit: int,
        texts: Callable[[str], BridgeTexts] = lambda sample: bridge_texts("auto", sample),
    ) -> None:
        self._store = store
        self._access = access
        self._lines = lines
        self._cancels = cancels
        self._commands = commands
        self._delivery = delivery
        self._metrics = metrics
        self._busy = busy
        self._queue_limit = queue_limit
        self._texts = texts
        self._recent: OrderedDict[str, None] = OrderedDict()

    async def accept(self, inbound: Inbound) -> Accepted:
        with self._metrics.timed("accept"):
            accepted = await self._accept(inbound)
        self._metrics.count(f"accept.{accepted}")
        log.debug("accept", result=accepted, session=inbound.place.session_id)
        return accepted

    async def cancel(self, request_id: str, place: Place, sender: Sender) -> CancelReply:
        if not await self._access.may_talk(place.channel, sender):
            return CancelReply.NOT_ALLOWED
        stopped = self._cancels.cancel(request_id)
        self._metrics.count("cancel", int(stopped))
        return CancelReply.STOPPED if stopped else CancelReply.NOTHING_RUNNING

    def is_running(self, place: Place) -> bool:
        return any(self._lines.counts(place)) or self._delivery.is_delivering(place)

    async def knows(self, place: Place) -> bool:
        return await self._store.knows(place.session_id)

    async def _accept(self, inbound: Inbound) -> Accepted:
        if not await self._access.may_talk(inbound.place.channel, inbound.sender):
            answer = await self._access.deny(inbound)
            if answer is not None:
                await self._say(answer)
            return Accepted.DENIED
        command = parse_command(inbound.text, bare=inbound.bare_commands)
        if command is not None and not inbound.attachments:
            return await self._command(command, inbound)
        if self._lines.is_full(inbound.place):
            text = self._texts(inbound.text).queue_full.format(limit=self._queue_limit)
            fresh = await self._answer(inbound, text)
            return Accepted.FULL if fresh else Accepted.DUPLICATE
        return await self._request(inbound)

    async def _request(self, inbound: Inbound) -> Accepted:
        new = NewRequest(
            request_id=uuid.uuid4().hex,
            event_keys=inbound.event_keys,
            place=inbound.place,
            sender=inbound.sender,
            message=user_message_from(inbound),
            received_at=datetime.now(UTC),
            message_ref=inbound.message_ref,
        )
        message_id = await self._store.accept(new)
        if message_id is None:
            return Accepted.DUPLICATE
        self.resume(
            Request(
                new.request_id,
                new.place,
                new.sender,
                new.message,
                message_id,
                RequestState.QUEUED,
                new.received_at,
                new.message_ref,
            )
        )
        return Accepted.STORED

    def resume(self, request: Request) -> None:
        """Puts a stored request into its line."""
        self._lines.submit(request, self._busy[request.place.channel])

    async def _command(self, command: Command, inbound: Inbound) -> Accepted:
        if self._seen(inbound.event_keys):
            return Accepted.DUPLICATE
        if command.name == "cancel":
            # Before it is stored: the stop must not wait for a disk.
            stopped = self._commands.cancel(inbound)
            self._metrics.count("cancel", stopped)
            answer = cancelled(stopped, self._texts(command.args or self._commands.sample(inbound.place)))
            try:
                fresh = await self._answer(inbound, answer)
            except StoreError as error:  # it is carried out all the same, and must not be a second time
                self._say_unstored(Outgoing(inbound.place, answer, reply_to=inbound.message_ref), error)
                return Accepted.COMMAND
            return Accepted.COMMAND if fresh else Accepted.DUPLICATE
        try:
            fresh = await self._store.accept_event(inbound.event_keys, datetime.now(UTC))
        except StoreError:
            self._forget(inbound.event_keys)  # the platform sends it again
            raise
        if not fresh:
            return Accepted.DUPLICATE
        done = await self._carried_out(command, inbound)
        await self._say(Outgoing(inbound.place, done.text, reply_to=inbound.message_ref, files=done.files))
        return Accepted.COMMAND

    async def _carried_out(self, command: Command, inbound: Inbound) -> Answer:
        """The answer to a command whose event is taken: it does not come again, so it must be answered now."""
        try:
            # A command alone says nothing of its sender's language; the conversation does.
            sample = command.args or await self._commands.sample_read(inbound.place)
            return await self._commands.carry_out(command, inbound, self._texts(sample))
        except StoreError as error:
            log.error("command.failed", command=command.name, error=str(error))
            return Answer(self._texts(command.args or self._commands.sample(inbound.place)).failed)

    async def _answer(self, inbound: Inbound, text: str) -> bool:
        """Marks the event as seen, with its answer in the outbox; False if it was seen before."""
        outgoing = Outgoing(inbound.place, text, reply_to=inbound.message_ref)
        row = await self._store.accept_answered(inbound.event_keys, datetime.now(UTC), outgoing)
        if row is None:
            return False
        self._delivery.put(row)
        return True

    async def _say(self, outgoing: Outgoing) -> None:
        try:
            row = await self._store.enqueue(outgoing, datetime.now(UTC))
        except StoreError as error:
            self._say_unstored(outgoing, error)
        else:
            self._delivery.put(row)

    def _say_unstored(self, outgoing: Outgoing, error: StoreError) -> None:
        log.error("answer.not_stored", error=str(error))
        self._delivery.put_unstored(outgoing)

    def _forget(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            self._recent.pop(key, None)

    def _seen(self, keys: tuple[str, ...]) -> bool:
        if any(key in self._recent for key in keys):
            return True
        self._recent.update(dict.fromkeys(keys))
        while len(self._recent) > RECENT_EVENTS:
            self._recent.popitem(last=False)
        return False


def user_message_from(inbound: Inbound) -> Message:
    """The message as the model gets it: context and quote first, then the text, then what was attached.

    In a group the text says who speaks, since several people share the session.
    """
    blocks: list[Block] = []
    if inbound.context:
        blocks.append(text_block("[Other messages here]\n" + "\n".join(inbound.context)))
    if inbound.quoted:
        quoted = "\n".join(f"> {line}" for line in inbound.quoted.splitlines())
        blocks.append(text_block(f"[In reply to]\n{quoted}"))
    if inbound.text.strip():
        speaker = f"{inbound.sender.name}: " if inbound.place.kind == "group" else ""
        blocks.append(text_block(f"{speaker}{inbound.text}"))
    blocks.extend(_attached(attachment) for attachment in inbound.attachments)
    return {"role": "user", "content": blocks or [text_block("(empty message)")]}


def _attached(attachment: Attachment) -> Block:
    if attachment.kind == "image" and attachment.data is not None:
        data = base64.b64encode(attachment.data).decode("ascii")
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": attachment.media_type, "data": data},
        }
    if attachment.text is not None:
        return text_block(f"[File {attachment.name}]\n{attachment.text}")
    return text_block(f"[{attachment.kind} {attachment.name}, {attachment.media_type}, {attachment.size} bytes]")
