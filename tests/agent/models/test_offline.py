from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import TextDelta
from agent.messages import (
    Block,
    Message,
    assistant_message,
    injected_text,
    text_block,
    text_of,
    tool_result,
    user_message,
)
from agent.models.offline import CONTEXT_WINDOW, OfflineModel, answer
from agent.models.offline_texts import CHINESE, ENGLISH, STORY
from agent.ports import Model, ModelAnswer, ModelRequest, Tool, ToolContext
from agent.tools.calculator import calculator
from agent.tools.time import time_tool

TIME = time_tool(lambda: datetime(2026, 12, 1, 13, 2, 5, tzinfo=UTC))
TOOLS: dict[str, Tool] = {"time": TIME, "calculator": calculator}
HERE = ToolContext(session_id="s", request_id="r", time_zone="Europe/Berlin")
SPOKEN = [user_message(text_block("hi")), assistant_message(text_block("Hello."))]


def ask(
    *questions: str, tools: bool = True, allow: bool = True, before: list[Message] | None = None
) -> ModelRequest:
    specs = [tool.spec for tool in TOOLS.values()] if tools else []
    messages = [*(before or []), user_message(*[text_block(question) for question in questions])]
    return ModelRequest("system", messages, specs, allow)


def said(request: ModelRequest) -> str:
    return text_of(answer(request))


def calls(request: ModelRequest) -> list[tuple[str, object]]:
    return [(block["name"], block["input"]) for block in answer(request) if block["type"] == "tool_use"]


async def whole_run(question: str) -> str:
    """As the executor does it: call the tools that the model wants until it wants none."""
    messages = [*SPOKEN, user_message(text_block(question))]
    while True:
        content = answer(ModelRequest("", messages, [tool.spec for tool in TOOLS.values()]))
        messages.append(assistant_message(*content))
        wanted = [block for block in content if block["type"] == "tool_use"]
        if not wanted:
            return text_of(content)
        results: list[Block] = [
            tool_result(use["id"], await TOOLS[use["name"]].run(use["input"], HERE)) for use in wanted
        ]
        messages.append(user_message(*results))


async def test_the_stream_is_the_answer_in_words() -> None:
    model: Model = OfflineModel("first", delay=0)
    request = ask("hello")
    events = [event async for event in model.stream(request)]
    deltas = [event.text for event in events[:-1] if isinstance(event, TextDelta)]
    last = events[-1]
    assert isinstance(last, ModelAnswer)
    assert len(deltas) > 10
    assert "".join(deltas) == text_of(last.content)
    assert last.stop_reason == "end_turn"
    assert last.usage.input_tokens > 0
    assert last.usage.output_tokens > 0
    assert (model.name, model.model, model.context_window) == ("first", "offline", CONTEXT_WINDOW)
    await model.check()
    await model.aclose()


@pytest.mark.parametrize(
    ("question", "call"),
    [
        ("what time is it in Tokyo?", ("time", {"zone": "Tokyo"})),
        ("What is the date in New York today?", ("time", {"zone": "New York"})),
        ("What time is it?", ("time", {})),
        ("几点了", ("time", {})),
        ("现在几点", ("time", {})),
        ("东京现在几点了？", ("time", {"zone": "东京"})),
        ("请问纽约现在几点", ("time", {"zone": "纽约"})),
        ("今天星期几", ("time", {})),
        ("how many days until 2026-12-24?", ("time", {"until": "2026-12-24"})),
        ("(17 + 4) * 2", ("calculator", {"expression": "(17 + 4) * 2"})),
        ("what is 12*7", ("calculator", {"expression": "12*7"})),
        ("What's 15% of 80?", ("calculator", {"expression": "15% of 80"})),
        ("sqrt(2)", ("calculator", {"expression": "sqrt(2)"})),
        ("算一下 12×7", ("calculator", {"expression": "12×7"})),
        ("12*7等于多少？", ("calculator", {"expression": "12*7"})),
        ("9**9**9 =", ("calculator", {"expression": "9**9**9"})),
        ('use time {"zone": "Paris"}', ("time", {"zone": "Paris"})),
        ("use time", ("time", {})),
    ],
)
def test_a_question_for_a_tool_calls_it(question: str, call: tuple[str, object]) -> None:
    assert calls(ask(question)) == [call]
    assert said(ask(question)) == ""


@pytest.mark.parametrize(
    ("question", "start"),
    [
        ("hello", ENGLISH.hello),
        ("Hi there!", ENGLISH.hello),
        ("你好", CHINESE.hello),
        ("thanks a lot", ENGLISH.thanks),
        ("谢谢", CHINESE.thanks),
        ("bye", ENGLISH.bye),
        ("what can you do?", ENGLISH.help),
        ("help", ENGLISH.help),
        ("帮助", CHINESE.help),
        ("tell me a long story", STORY),
        ("讲个长故事", STORY),
        ("42", "You said:\n\n> 42"),
        ("2026-12-24", "You said:"),
        ("use force", "You said:"),
        ("use time {broken}", "You said:"),
        ("I have 3 cats - and a dog", "You said:"),
        ("one\ntwo", "You said:\n\n> one\n> two"),
        ("天气怎么样", "你说的是：\n\n> 天气怎么样"),
    ],
)
def test_other_talk_is_answered_at_once(question: str, start: str) -> None:
    assert said(ask(question)).startswith(start)
    assert calls(ask(question)) == []


def test_help_names_the_tools_that_are_there() -> None:
    assert "`time`, `calculator`" in said(ask("help"))
    assert "no tools here" in said(ask("help", tools=False))


def test_the_first_answer_says_what_it_is_and_later_ones_do_not() -> None:
    first = said(ask("hello"))
    assert "offline model" in first
    assert "agent.provider: claude" in first
    assert "config.example.yaml" in first
    assert "offline model" not in said(ask("hello", before=SPOKEN))
    assert "离线模型" in said(ask("你好"))


async def test_answers_come_from_the_tools_results() -> None:
    assert await whole_run("(17 + 4) * 2") == "`(17 + 4) * 2 = 42`"
    assert await whole_run("what time is it in Tokyo?") == (
        "Tuesday, 2026-12-01 22:02:05 in Asia/Tokyo (UTC+09:00)"
    )


async def test_the_introduction_comes_with_the_first_text_when_a_tool_came_before() -> None:
    question = user_message(text_block("2*3"))
    used = assistant_message({"type": "tool_use", "id": "a", "name": "calculator", "input": {"expression": "2*3"}})
    result = user_message(tool_result("a", [text_block("2*3 = 6")]))
    assert said(ModelRequest("", [question, used, result])) == f"`2*3 = 6`\n\n{ENGLISH.introduction}"


def test_a_tools_refusal_is_passed_on() -> None:
    used = assistant_message({"type": "tool_use", "id": "a", "name": "calculator", "input": {}})
    result = user_message(tool_result("a", "division by zero", is_error=True))
    request = ModelRequest("", [*SPOKEN, user_message(text_block("1/0")), used, result])
    assert said(request) == "The tool `calculator` said no: division by zero"


def test_messages_that_piled_up_are_all_answered() -> None:
    request = ask("thanks", "2*3", "what time is it?", before=SPOKEN)
    assert said(request) == ENGLISH.thanks
    assert calls(request) == [("calculator", {"expression": "2*3"}), ("time", {})]
    apart = ModelRequest("", [*SPOKEN, user_message(text_block("thanks")), user_message(text_block("bye"))])
    assert said(apart) == f"{ENGLISH.thanks}\n\n{ENGLISH.bye}"


def test_a_question_put_in_beside_results_is_answered_too() -> None:
    used = assistant_message({"type": "tool_use", "id": "a", "name": "time", "input": {}})
    both = user_message(tool_result("a", "It is noon."), text_block("thanks"), injected_text("Reply now."))
    assert said(ModelRequest("", [*SPOKEN, user_message(text_block("time")), used, both])) == (
        f"It is noon.\n\n{ENGLISH.thanks}"
    )


def test_tools_that_are_not_given_or_not_allowed_are_never_called() -> None:
    assert calls(ask("2*3", tools=False)) == []
    assert "`calculator`" in said(ask("2*3", tools=False))
    assert calls(ask("2*3", allow=False)) == []
    assert said(ask("2*3", allow=False, before=SPOKEN)) == ENGLISH.no_more_tools
    only_injected = ModelRequest("", [*SPOKEN, user_message(injected_text("Sum up."))], allow_tools=False)
    assert said(only_injected) == ENGLISH.no_more_tools


def test_an_image_alone_gets_an_answer() -> None:
    image = user_message({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}})
    assert said(ModelRequest("", [*SPOKEN, image])) == ENGLISH.image


def test_ids_of_tool_calls_are_new_in_the_conversation() -> None:
    first = answer(ask("2*3", "3*4"))
    again = answer(ask("4*5", before=[user_message(text_block("x")), assistant_message(*first)]))
    ids = [block["id"] for block in [*first, *again] if block["type"] == "tool_use"]
    assert len(set(ids)) == 3


@given(
    st.text()
    | st.lists(st.sampled_from(["time", "in", "几点", "use", "{", "}", "1", "+", "help", " ", "\n", "day"])).map(
        "".join
    )
)
def test_any_question_gets_an_answer_and_the_same_one_again(question: str) -> None:
    content = answer(ask(question))
    assert content
    assert content == answer(ask(question))
    assert all(block["type"] != "tool_use" or block["name"] in TOOLS for block in content)
