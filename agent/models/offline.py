"""The model that needs no key and no network: it answers by rule, streams, and really calls the tools.

It is for a first run, for demonstrations and for tests, so it is deterministic: the same messages give the same
answer. What it understands is in `_RULES`; what it says, in agent.models.offline_texts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agent.events import TextDelta, Usage
from agent.messages import (
    Block,
    JsonObject,
    Message,
    ResultContent,
    ToolUseBlock,
    blocks_of,
    is_injected,
    text_block,
    text_of,
    tool_uses,
)
from agent.models.offline_texts import CHINESE, ENGLISH, STORY, OfflineTexts
from agent.ports import ModelAnswer, ModelEvent, ModelRequest
from agent.texts import CHINESE as CORE_CHINESE
from agent.texts import texts_for
from agent.tokens import estimate_text_tokens, estimate_tokens, estimate_tools_tokens

WORD_SECONDS = 0.015
CONTEXT_WINDOW = 32_000
MATCHED_CHARS = 500  # of a question; the rest is read by no rule, so that a long paste costs nothing


@dataclass(frozen=True, slots=True)
class OfflineModel:
    """`delay` is the time between two words in seconds."""

    name: str = "offline"
    delay: float = WORD_SECONDS
    model: str = "offline"
    context_window: int | None = CONTEXT_WINDOW
    max_output_tokens: int = 4096

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer word by word, then whole. Raises nothing."""
        content = answer(request)
        for word in _WORD.findall(text_of(content)):
            await asyncio.sleep(self.delay)
            yield TextDelta(word)
        calls = any(block["type"] == "tool_use" for block in content)
        yield ModelAnswer(content, "tool_use" if calls else "end_turn", _usage(request, content))

    async def check(self) -> None:
        """There is nothing that could be wrong."""

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    args: JsonObject


Plan: TypeAlias = "Say | Call"


def answer(request: ModelRequest) -> list[Block]:
    """The whole assistant content: texts for what can be said now, then the tool calls that are needed."""
    asked, results = _latest(request.messages)
    sample = "\n".join(asked) or _last_question(request.messages)
    texts = CHINESE if texts_for("auto", sample) is CORE_CHINESE else ENGLISH
    said = [_report(name, content, is_error, texts) for name, content, is_error in results]
    calls: list[Call] = []
    for question in asked:
        plan = _allowed(plan_for(question, texts, [spec.name for spec in request.tools]), request, texts)
        if isinstance(plan, Say):
            said.append(plan.text)
        else:
            calls.append(plan)
    if not said and not calls:
        said.append(texts.no_more_tools if not request.allow_tools else texts.image)
    if not calls and not _has_spoken(request.messages):
        said.append(texts.introduction)
    blocks: list[Block] = [text_block("\n\n".join(said))] if said else []
    return blocks + _tool_use_blocks(calls, request.messages)


def plan_for(question: str, texts: OfflineTexts, tools: Sequence[str]) -> Plan:
    """What to do about one question, by the first rule that fits."""
    line = " ".join(question[:MATCHED_CHARS].split())
    for pattern, make in _RULES:
        if match := pattern.search(line):
            plan = make(match, texts, tools)
            if plan is not None:
                return plan
    quote = "\n".join(f"> {each}" for each in question.strip()[:2000].splitlines())
    return Say(texts.echo.format(quote=quote))


def _allowed(plan: Plan, request: ModelRequest, texts: OfflineTexts) -> Plan:
    if isinstance(plan, Say):
        return plan
    if not request.allow_tools:
        return Say(texts.no_more_tools)
    if plan.tool not in [spec.name for spec in request.tools]:
        return Say(texts.no_tool.format(tool=plan.tool))
    return plan


def _latest(messages: Sequence[Message]) -> tuple[list[str], list[tuple[str, ResultContent, bool]]]:
    """What came after the last assistant message: questions, and tool results as (tool, content, is_error)."""
    names: dict[str, str] = {}
    tail: list[Block] = []
    for message in messages:
        if message["role"] == "assistant":
            names = {call["id"]: call["name"] for call in tool_uses(message)}
            tail = []
        else:
            tail.extend(blocks_of(message))
    asked = [block["text"] for block in tail if block["type"] == "text" and not is_injected(block)]
    results = [
        (names.get(block["tool_use_id"], "?"), block["content"], block.get("is_error", False))
        for block in tail
        if block["type"] == "tool_result"
    ]
    return [text for text in asked if text.strip()], results


def _last_question(messages: Sequence[Message]) -> str:
    questions = (text_of(blocks_of(message)) for message in reversed(messages) if message["role"] == "user")
    return next((question for question in questions if question), "")


def _has_spoken(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "assistant" and text_of(blocks_of(message)) for message in messages)


def _report(tool: str, content: ResultContent, is_error: bool, texts: OfflineTexts) -> str:
    result = content if isinstance(content, str) else text_of(content)
    if is_error:
        return texts.failed.format(tool=tool, result=result)
    if tool == "calculator":
        return f"`{result}`" if "`" not in result and "\n" not in result else result
    return result


def _tool_use_blocks(calls: Sequence[Call], messages: Sequence[Message]) -> list[Block]:
    made = sum(len(tool_uses(message)) for message in messages if message["role"] == "assistant")
    blocks: list[Block] = []
    for number, call in enumerate(calls, made + 1):
        block: ToolUseBlock = {
            "type": "tool_use",
            "id": f"offline_{number}",
            "name": call.tool,
            "input": call.args,
        }
        blocks.append(block)
    return blocks


def _usage(request: ModelRequest, content: Sequence[Block]) -> Usage:
    written = sum(
        estimate_text_tokens(block["text"] if block["type"] == "text" else json.dumps(block)) for block in content
    )
    system = estimate_text_tokens(request.system) + estimate_tools_tokens(request.tools)
    return Usage(input_tokens=system + estimate_tokens(request.messages), output_tokens=written)


# Rules. Each gives a plan, or None when it does not fit after all and the next may try.

Rule: TypeAlias = Callable[["re.Match[str]", OfflineTexts, Sequence[str]], "Plan | None"]

_WORD = re.compile(r"[\u3000-\u9fff\uff00-\uffef]{1,2}|[^\s\u3000-\u9fff\uff00-\uffef]+\s*|\s+")
_POLITE = re.compile(r"^(?:请问|请|帮我|请帮我|现在)+|(?:现在|此刻|的?当地|今天|的)+$")
_CALCULATION = re.compile(
    r"(?:(?:what(?:'s| is|s)?|how much is|calculate|compute|算一下|计算一?下?|算算|请问)\s*[:：]?\s*)?"
    r"(?P<expression>[^=？?]+?)\s*(?:=|等于多少|等于几|是多少)?\s*[?？.。]?",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(
    r"(?:\d|[-+*/%^().,!\s×÷−（）＋－％]"
    r"|\b(?:sqrt|abs|round|floor|ceil|min|max|sum|gcd|exp|log2|log10|log|ln|sin|cos|tan|asin|acos|atan|degrees"
    r"|radians|factorial|pi|e|of)\b)+",
    re.IGNORECASE,
)


def _use_tool(match: re.Match[str], texts: OfflineTexts, tools: Sequence[str]) -> Plan | None:  # noqa: ARG001
    try:
        args = json.loads(match["args"] or "{}")
    except json.JSONDecodeError:
        return None
    known = match["args"] is not None or match["tool"] in tools  # "use force" is talk
    return Call(match["tool"], args) if known and isinstance(args, dict) else None


def _days_until(match: re.Match[str], texts: OfflineTexts, tools: Sequence[str]) -> Plan:  # noqa: ARG001
    return Call("time", {"until": match["day"]})


def _time(match: re.Match[str], texts: OfflineTexts, tools: Sequence[str]) -> Plan:  # noqa: ARG001
    place = (match.groupdict().get("place") or "").strip(" ?.!,？。！，")
    place = re.sub(r"^the\s|\s(?:now|right now|today|please)$", "", place, flags=re.IGNORECASE)
    place = _POLITE.sub("", place)
    return Call("time", {"zone": place} if place else {})


def _calculate(match: re.Match[str], texts: OfflineTexts, tools: Sequence[str]) -> Plan | None:  # noqa: ARG001
    expression = match["expression"].strip()
    is_sum = re.search(r"\d", expression) and re.search(r"[-+*/%^!×÷−＋－％(（]", expression)
    is_date = re.fullmatch(r"\d{4}-\d\d?-\d\d?", expression)
    if not is_sum or is_date or not _ARITHMETIC.fullmatch(expression):
        return None
    return Call("calculator", {"expression": expression})


def _help(match: re.Match[str], texts: OfflineTexts, tools: Sequence[str]) -> Plan:  # noqa: ARG001
    names = ", ".join(f"`{tool}`" for tool in tools)
    return Say(texts.help + (texts.help_tools.format(tools=names) if names else texts.help_no_tools))


def _say(pick: Callable[[OfflineTexts], str]) -> Rule:
    return lambda _match, texts, _tools: Say(pick(texts))


def _rules(patterns: Mapping[str, Rule]) -> tuple[tuple[re.Pattern[str], Rule], ...]:
    return tuple((re.compile(pattern, re.IGNORECASE), rule) for pattern, rule in patterns.items())


_RULES = _rules(
    {
        r"^(?:use|call|调用)\s+(?P<tool>[\w.-]+)\s*(?P<args>\{.*\})?$": _use_tool,
        r"^" + _CALCULATION.pattern + r"$": _calculate,
        r"days?\s+(?:are\s+(?:there\s+)?)?(?:un)?till?\s+(?P<day>\d{4}-\d\d-\d\d)": _days_until,
        r"\b(?:time|date|day)\b.*?\bin\s+(?P<place>\S.*)": _time,
        r"\bwhat(?:'s|\s+is)?\s+(?:the\s+)?(?:current\s+)?(?:time|date|day)\b|^time\W*$": _time,
        r"(?P<place>\w*?)(?:现在)?(?:是)?(?:几点|什么时间|什么时候了|几号|星期几|周几)": _time,
        r"\bstory\b|\bdemo\b|长故事|讲个?故事|演示": _say(lambda _: STORY),
        r"^/?help\b|what can you do|who are you|what are you|帮助|你会什么|你能做什么|你是谁": _help,
        r"^(?:hi|hello|hey|good (?:morning|evening|afternoon))\b|^(?:你好|您好|嗨|早上好|晚上好)": _say(
            lambda texts: texts.hello
        ),
        r"\bthank|\bthanks\b|谢谢|多谢": _say(lambda texts: texts.thanks),
        r"^(?:good)?bye\b|再见|拜拜": _say(lambda texts: texts.bye),
    }
)
