"""One model call that survives what providers do: sent, streamed, and where it fails, recovered (§5.4)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import structlog

from agent.cancel import AgentCancelledError
from agent.errors import ErrorKind, StreamBroken
from agent.events import DefenceActed, Event, Outcome, TextDelta, Waiting
from agent.messages import Block
from agent.ports import ModelAnswer, ModelRequest
from agent.recovery import (
    Action,
    Compact,
    EmptyAnswer,
    Fail,
    NextModel,
    Refused,
    Reset,
    Sanitize,
    SendAgain,
    Wait,
    WindowExceeded,
)
from agent.run import AgentParts, Run, RunEnds
from agent.texts import Texts

log = structlog.get_logger()


async def ask(parts: AgentParts, run: Run, *, allow_tools: bool = True) -> AsyncGenerator[Event, None]:
    """Asks the model until it has answered; the answer is `run.answer` and the last of `run.messages`.

    Raises AgentCancelledError, or RunEnds where nothing more can be done.
    """
    run.steps += 1
    run.answer = None
    run.shown.next_step()
    while True:
        for acted in run.keeper.repair(run.messages):
            yield acted
        try:
            async with aclosing(_stream(parts, run, allow_tools=allow_tools)) as events:
                async for event in events:
                    yield event
        except AgentCancelledError:
            raise
        # The border to the providers' SDKs and any server behind them: whatever they raise becomes an action.
        except Exception as error:  # noqa: BLE001
            action = run.recovery.decide(error)
            log.warning("model.error", provider=run.model.name, action=type(action).__name__, error=_short(error))
        else:
            run.recovery.succeeded()
            return
        run.shown.restart()
        async with aclosing(_recover(parts, run, action)) as events:
            async for event in events:
                yield event


async def _stream(parts: AgentParts, run: Run, *, allow_tools: bool) -> AsyncGenerator[Event, None]:
    system = parts.settings.context.system_prompt
    request = ModelRequest(system, run.messages, run.keeper.tool_specs, allow_tools)
    answer: ModelAnswer | None = None
    async with aclosing(run.model.stream(request)) as stream:
        while answer is None:
            with run.token.scope():
                item = await anext(stream, None)
            match item:
                case TextDelta(text):
                    if (event := run.shown.feed(text)) is not None:
                        yield event
                case ModelAnswer():
                    answer = item
                case None:
                    raise StreamBroken("the stream ended without an answer")
                case _:
                    yield item
    run.usage = run.usage + answer.usage
    _judge(answer)
    if (replaced := run.shown.end_stream()) is not None:
        yield replaced
    run.keeper.learn(run.messages, run.model, answer.usage)
    run.answer = answer = _with_unique_ids(answer)
    run.messages.append({"role": "assistant", "content": list(answer.content)})


def _with_unique_ids(answer: ModelAnswer) -> ModelAnswer:
    """Some models give every call of an answer the same id, or none; each result must find its own call."""
    ids = [block["id"] for block in answer.content if block["type"] == "tool_use"]
    if len({"", *ids}) == len(ids) + 1:
        return answer
    seen = {""}
    content: list[Block] = []
    broken = dict(answer.broken_inputs)
    for place, block in enumerate(answer.content):
        if block["type"] == "tool_use" and block["id"] in seen:
            fresh = f"{block['id'] or 'call'}_{place}"
            if block["id"] in broken and not block["input"]:
                broken[fresh] = broken[block["id"]]
            content.append({**block, "id": fresh})
        else:
            content.append(block)
        if block["type"] == "tool_use":
            seen.add(block["id"])
    return replace(answer, content=content, broken_inputs=broken)


def _judge(answer: ModelAnswer) -> None:
    """Raises for an answer that is none."""
    if answer.stop_reason == "overflow":
        raise WindowExceeded
    if answer.stop_reason in ("refusal", "content_filter"):
        raise Refused(answer.stop_reason)
    if not any(
        block["type"] == "tool_use" or (block["type"] == "text" and block["text"].strip())
        for block in answer.content
    ):
        raise EmptyAnswer


async def _recover(parts: AgentParts, run: Run, action: Action) -> AsyncGenerator[Event, None]:
    """Does what `Recovery.decide` says."""
    match action:
        case Wait(kind, seconds, attempt, attempts):
            limited = kind is ErrorKind.RATE_LIMIT
            reason = run.texts.wait_rate_limit if limited else run.texts.wait_transient
            yield Waiting(reason.format(seconds=seconds), seconds, attempt, attempts)
            with run.token.scope():
                await parts.clock.sleep(seconds)
        case Compact(limit):
            report = run.keeper.compact(run.messages, run.model, limit)
            if report.dropped:
                await parts.memory.flush(run.tool_context.session_id, report.dropped, "overflow")
            yield DefenceActed("recovery.compact", {"dropped": len(report.dropped), "smaller": report.smaller})
            if not report.smaller:
                async with aclosing(_recover(parts, run, Reset(ErrorKind.OVERFLOW))) as events:
                    async for event in events:
                        yield event
        case Sanitize(drop_thinking):
            yield run.keeper.sanitize_all(run.messages, drop_thinking=drop_thinking)
        case SendAgain():
            yield DefenceActed("recovery.empty_answer")
        case NextModel(kind):
            given_up = run.models.pop(0)
            run.keeper.drop_thinking(run.messages)
            yield DefenceActed("recovery.fallback", {"from": given_up.name, "to": run.model.name, "why": kind})
        case Reset(kind):
            await _reset(parts, run)
            yield DefenceActed("recovery.reset", {"why": kind})
            overflow = kind is ErrorKind.OVERFLOW
            raise RunEnds(Outcome.RESET, run.texts.reset_overflow if overflow else run.texts.reset_format)
        case Fail(kind, cause):
            yield DefenceActed("recovery.failed", {"why": kind})
            raise RunEnds(Outcome.FAILED, _failure_line(run.texts, kind, cause))


async def _reset(parts: AgentParts, run: Run) -> None:
    """Only the working copy is cleared; the user's last message stays, so that "go on" works."""
    run.keep_partial()
    list(run.keeper.repair(run.messages))
    run.kept = run.new_messages()
    dropped = run.keeper.clear(run.messages, run.head)
    await parts.memory.flush(run.tool_context.session_id, dropped, "reset")


def _failure_line(texts: Texts, kind: ErrorKind, cause: Exception) -> str:
    if isinstance(cause, EmptyAnswer):
        return texts.empty_answer
    if isinstance(cause, Refused):
        return texts.refusal if cause.stop_reason == "refusal" else texts.content_filter
    lines = {
        ErrorKind.AUTH: texts.failed_auth,
        ErrorKind.QUOTA: texts.failed_quota,
        ErrorKind.MODEL: texts.failed_model,
        ErrorKind.RATE_LIMIT: texts.failed_rate_limit,
        ErrorKind.TRANSIENT: texts.failed_transient,
        ErrorKind.CONTENT_FILTER: texts.content_filter,
    }
    return lines.get(kind, texts.failed_other)


def _short(error: Exception, limit: int = 500) -> str:
    return f"{type(error).__name__}: {error}"[:limit]
