"""What the four defences cost, and what they save. `python -m bench.defences` prints a table; it asserts nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from agent.cancel import CancelToken
from agent.events import Event
from agent.messages import Message, ToolUseBlock, assistant_message, text_block, tool_result, user_message
from agent.models.scripted import Call, Say, ScriptedModel
from agent.ports import ModelRequest
from agent.repair import Repairer, sanitize_claude_messages
from agent.texts import ENGLISH
from agent.tokens import estimate_text_tokens, estimate_tokens
from agent.trimming import trim_messages
from bench._common import quantile, table
from tests.agent.harness import FunctionTool, HangingTool, ask, bench
from tests.agent.models.driving import WIRES, model_for
from tests.servers.model_replies import Reply, Stall, Wire
from tests.servers.model_server import ModelServer

TRIES = 200
TURNS = 200


def history(messages: int) -> list[Message]:
    """A legal history: question, tool call, result, answer, and so on."""
    made: list[Message] = []
    number = 0
    while len(made) < messages:
        call: ToolUseBlock = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {"n": number}}
        made += [
            ask(f"question {number}, and a few words more"),
            assistant_message(text_block("Let me look."), call),
            user_message(tool_result(f"call_{number}", f"result {number} " * 10)),
            assistant_message(text_block(f"answer {number} " * 8)),
        ]
        number += 1
    return made[:messages]


def best(work: Callable[[], object], tries: int = 5) -> float:
    """Seconds of the quickest of several tries, the collector off meanwhile."""
    times = []
    for _ in range(tries):
        gc.collect()
        gc.disable()
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
        gc.enable()
    return min(times)


def repair_rows() -> list[tuple[str, str]]:
    sizes = (12_500, 25_000, 50_000, 100_000)
    full = {size: best(partial(sanitize_claude_messages, history(size))) for size in sizes}
    steps = {size: _two_more(size) for size in (100, 10_000)}
    return [
        (
            "sanitize a legal history",
            ", ".join(f"{size:,}: {seconds * 1e3:.0f} ms" for size, seconds in full.items()),
        ),
        (
            "  again after two new messages",
            f"100: {steps[100] * 1e6:.0f} µs, 10,000: {steps[10_000] * 1e6:.0f} µs, ratio {steps[10_000] / steps[100]:.2f} (target ≤ 2)",
        ),
    ]


def _two_more(size: int) -> float:
    messages = history(size)
    repairer = Repairer()
    repairer.repair(messages)
    more = iter(history(size + 4 * 400)[size:])

    def step() -> None:
        messages.append(next(more))
        messages.append(next(more))
        repairer.repair(messages)

    return best(step, tries=300)


def trim_rows() -> list[tuple[str, str]]:
    def work() -> None:
        trim_messages(history_10k.copy(), max_turns=20, budget=100_000, measure=estimate_tokens, texts=ENGLISH)

    history_10k = history(10_000)
    return [("trim 10,000 messages", f"{best(work) * 1e3:.0f} ms (target < 50)")]


async def cancelled_streams(wire: Wire, reply: Reply) -> list[float]:
    """Seconds from each cancel to the moment at which the provider sees its connection closed."""
    async with ModelServer(lambda body: reply) as server:
        model = model_for(wire, server, timeout=60)
        times = []
        for number in range(1, TRIES + 1):
            b = bench(model)
            run = asyncio.create_task(b.run())
            request = await server.arrived(number)
            await request.streaming.wait()
            await asyncio.sleep(0.005)
            times.append(await _until(b.token, request.closed.wait, run))
        await model.aclose()
    return times


async def many(attempt: Callable[[], Awaitable[float]]) -> list[float]:
    return [await attempt() for _ in range(TRIES)]


async def cancelled_tool() -> float:
    hang = HangingTool()
    b = bench(ScriptedModel([Say(calls=[Call("hang")])]), tools=[hang])
    run = asyncio.create_task(b.run())
    await hang.started.wait()
    return await _until(b.token, lambda: run, run)


async def cancelled_wait() -> float:
    class Busy(Exception):
        status_code = 529
        type = "overloaded_error"

    b = bench(ScriptedModel([Busy()]))
    b.clock.hold = asyncio.Event()
    run = asyncio.create_task(b.run())
    while not b.clock.waits:
        await asyncio.sleep(0)
    return await _until(b.token, lambda: run, run)


async def _until(
    token: CancelToken, over: Callable[[], Awaitable[object]], run: asyncio.Task[list[Event]]
) -> float:
    before = time.perf_counter()
    token.cancel()
    await over()
    took = time.perf_counter() - before
    await run
    return took


async def cancel_rows() -> list[tuple[str, str]]:
    streaming, stalled = Reply(["word "] * 2000, interval=0.01), Reply(["word "] * 5, fault=Stall(after=4))
    streaming, stalled = Reply(["word "] * 2000, interval=0.01), Reply(["word "] * 5, fault=Stall(after=4))
    kinds: list[tuple[str, Callable[[], Awaitable[list[float]]]]] = [
        *((f"a streaming model, {wire}", partial(cancelled_streams, wire, streaming)) for wire in WIRES),
        *((f"a stalled model, {wire}", partial(cancelled_streams, wire, stalled)) for wire in WIRES),
        ("a running tool", partial(many, cancelled_tool)),
        ("a retry wait", partial(many, cancelled_wait)),
    ]
    rows = []
    for name, attempts in kinds:
        times = await attempts()
        rows.append(
            (
                f"cancel to its end, {name}",
                f"p50 {quantile(times, 0.5) * 1e3:.1f} ms, p99 {quantile(times, 0.99) * 1e3:.1f} ms (target < 50)",
            )
        )
    return rows


@dataclass
class Sent:
    """What a policy sends: tokens in all, and those of them that continue the request before."""

    tokens: int = 0
    cached: int = 0
    before: str = ""
    trims: int = 0
    between: int = 0
    between_cached: int = 0

    def add(self, request: str, trimmed: bool) -> None:
        common = os.path.commonprefix([self.before, request])  # noqa: RUF071  # characters are what is meant
        tokens, cached = estimate_text_tokens(request), estimate_text_tokens(common) if common else 0
        self.tokens += tokens
        self.cached += cached
        self.trims += trimmed
        if not trimmed and self.before:
            self.between += tokens
            self.between_cached += cached
        self.before = request


async def conversation_rows() -> list[tuple[str, str]]:
    """200 turns, a tool call in each, against keeping the last 40 messages."""

    def says(request: ModelRequest) -> Say:
        last = request.messages[-1]["content"]
        done = isinstance(last, list) and last[0]["type"] == "tool_result"
        return (
            Say("An answer of some length. " * 12) if done else Say("", [Call("look", {"n": len(model.requests)})])
        )

    model = ScriptedModel(says, context_window=200_000)
    look = FunctionTool("look", lambda args: f"result {args['n']} " * 40)
    ours, naive = Sent(), Sent()
    messages: list[Message] = []
    plain: list[Message] = []
    for number in range(TURNS):
        b = bench(model, tools=[look], messages=messages)
        seen = len(model.requests)
        await b.run(f"Question number {number}: what about this and that?")
        for index, request in enumerate(model.requests[seen:]):
            ours.add(_bare(request), trimmed=index == 0 and bool(b.memory.flushed))
        messages = b.executor.messages
        plain += b.executor.last_run_new_messages
        for cut in (3, 1):
            naive.add(json.dumps(plain[: len(plain) - cut][-40:]), trimmed=False)
    return [
        (
            f"{TURNS} turns, ours",
            f"{ours.tokens:,} tokens sent, {ours.cached / ours.tokens:.0%} read from cache; between its {ours.trims} trims "
            f"{ours.between_cached / ours.between:.0%} (target ≥ 90 %)",
        ),
        (
            f"{TURNS} turns, last 40 messages",
            f"{naive.tokens:,} tokens sent, {naive.cached / naive.tokens:.0%} read from cache",
        ),
    ]


def _bare(request: str) -> str:
    """The messages of a recorded request, as text whose end can grow."""
    return json.dumps(json.loads(request)["messages"])[:-1]


def main() -> None:
    # What the runs log is expected here, and would stand between the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    table([*repair_rows(), *trim_rows()])
    table(asyncio.run(cancel_rows()))
    table(asyncio.run(conversation_rows()))


if __name__ == "__main__":
    main()
