"""What happens at start with what the last process left unfinished (bridge-and-channels §1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from agent.messages import assistant_message, blocks_of, text_block, text_of
from bridge.delivery import Delivery
from bridge.metrics import Metrics
from bridge.ports import ContextMark, FinishedRun, Request, RequestState, Store
from bridge.texts import bridge_texts
from channels.base import Outgoing

log = structlog.get_logger()

MAX_RUNS = 10
"""How often one request is started before it is set aside, so that one that kills the process can't for ever; more
often than a machine in trouble kills the process for other reasons while one request runs."""


async def recover(
    store: Store,
    resume: Callable[[Request], None],
    delivery: Delivery,
    metrics: Metrics,
    channels: Sequence[str],
) -> None:
    """Takes up unfinished requests and unsent replies of the channels that are on, oldest first.

    A request runs again if no tool with effects had run in it; else the user is told and asked. Raises
    bridge.errors.StoreError.
    """
    for row in await store.outbox():
        # The last process may have died between the platform's answer and our note of it.
        delivery.put(replace(row, outgoing=replace(row.outgoing, uncertain=True)))
    for request in await store.unfinished():
        if request.place.channel not in channels:
            log.info("recovery.channel_off", request=request.request_id, channel=request.place.channel)
            continue
        texts = bridge_texts("auto", text_of(blocks_of(request.message)))
        if request.effects:
            await _tell(store, delivery, request, texts.interrupted.format(count=request.effects))
            metrics.count("recovery.asked")
        elif request.attempts >= MAX_RUNS:
            text = texts.set_aside.format(attempts=request.attempts)
            await _tell(store, delivery, request, text, state=RequestState.FAILED)
            metrics.count("recovery.set_aside")
        else:
            metrics.count("recovery.resumed")
            resume(request)


async def _tell(
    store: Store,
    delivery: Delivery,
    request: Request,
    text: str,
    state: RequestState = RequestState.DONE,
) -> None:
    """Ends the request with this text as its answer, so that the model knows of it when the user says "go on"."""
    log.warning("recovery.not_resumed", request=request.request_id, effects=request.effects)
    row = await store.finish(
        FinishedRun(
            request_ids=(request.request_id,),
            place=request.place,
            messages=[assistant_message(text_block(text))],
            reply=Outgoing(request.place, text, request.posted, reply_to=request.message_ref),
            mark=ContextMark(),
            finished_at=datetime.now(UTC),
            state=state,
        )
    )
    if row is not None:
        delivery.put(row)
