"""The loop: its order, what it keeps, and that nothing is trimmed inside it (four-defences §1, §4, §6)."""

from __future__ import annotations

import json

from agent.events import DefenceActed, Outcome, RunFinished, TextDelta, ToolFinished, ToolStarted, Usage
from agent.messages import JsonObject, Message, blocks_of, is_injected, text_block, user_message
from agent.models.scripted import Call, Say, ScriptedModel
from agent.ports import BrokenInput, ModelRequest
from agent.texts import ENGLISH
from tests.agent.harness import FunctionTool, ask, bench, echo, failing
from tests.agent.legality import anthropic_violations


def results(messages: list[Message]) -> list[tuple[str, bool]]:
    """Texts and error flags of all tool_results, in order."""
    return [
        (str(block["content"]), bool(block.get("is_error")))
        for message in messages
        for block in blocks_of(message)
        if block["type"] == "tool_result"
    ]


async def test_an_answer_streams_and_is_new_behind_the_users_message() -> None:
    b = bench(ScriptedModel([Say("Hello there, friend")]))
    events = await b.run("hi")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello there, friend"
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.outcome, finished.text, finished.model) == (
        Outcome.COMPLETED,
        "Hello there, friend",
        "scripted",
    )
    assert b.executor.last_run_new_messages == [
        ask("hi"),
        {"role": "assistant", "content": [text_block("Hello there, friend")]},
    ]


async def test_a_tool_call_is_run_and_answered_and_its_result_goes_back_to_the_model() -> None:
    model = ScriptedModel([Say("Let me see.", [Call("echo", {"text": "x"})]), Say("It said x.")])
    b = bench(model, tools=[echo()])
    events = await b.run()
    assert [event for event in events if isinstance(event, ToolStarted | ToolFinished)] == [
        ToolStarted("call_1", "echo", {"text": "x"}, effects=False),
        ToolFinished("call_1", "echo", is_error=False),
    ]
    assert results(b.executor.last_run_new_messages) == [("echo x", False)]
    assert "echo x" in model.requests[1]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].text == "Let me see.\n\nIt said x."
    shown = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert shown == events[-1].text


async def test_sixty_tool_steps_past_every_budget_keep_their_whole_chain() -> None:
    steps = 60
    big = FunctionTool("big", lambda args: "x" * 5_000 + str(args["n"]))
    script = [Say(calls=[Call("big", {"n": n})]) for n in range(steps)]
    model = ScriptedModel([*script, Say("done")])
    b = bench(model, tools=[big], max_context_tokens=2_000, max_context_turns=2)
    finished = await b.finish()
    assert finished.outcome is Outcome.COMPLETED
    last_request = json.loads(model.requests[-1])["messages"]
    got = [
        block["content"]
        for message in last_request
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert got == ["x" * 5_000 + str(n) for n in range(steps)]


async def test_identical_calls_in_one_message_run_once_and_are_answered_each() -> None:
    runs: list[object] = []

    def count(args: JsonObject) -> int:
        runs.append(args)
        return len(runs)

    counted = FunctionTool("count", count)
    b = bench(
        ScriptedModel(
            [Say(calls=[Call("count", {"a": 1}), Call("count", {"a": 1}), Call("count", {"a": 2})]), Say("ok")]
        ),
        tools=[counted],
    )
    await b.finish()
    assert runs == [{"a": 1}, {"a": 2}]
    assert results(b.executor.last_run_new_messages) == [("1", False), ("1", False), ("2", False)]


async def test_arguments_that_cannot_be_used_get_an_answer_that_says_why() -> None:
    needs = FunctionTool("needs", lambda args: "never", required=("city",))
    calls = [
        Call("needs", broken=BrokenInput('{"city": ', "invalid_json")),
        Call("needs", broken=BrokenInput('{"city": "Ber', "cut_off")),
        Call("needs", {"town": "x"}),
        Call("nothing_like_that", {}),
    ]
    b = bench(ScriptedModel([Say(calls=calls), Say("sorry")]), tools=[needs])
    await b.finish()
    texts = [text for text, is_error in results(b.executor.last_run_new_messages) if is_error]
    assert texts == [
        ENGLISH.input_not_json.format(tool="needs", detail='{"city": '),
        ENGLISH.input_cut_off.format(tool="needs"),
        ENGLISH.input_missing.format(tool="needs", detail="city"),
        ENGLISH.unknown_tool.format(tool="nothing_like_that", known="needs"),
    ]


async def test_the_same_call_five_times_is_refused_and_five_refusals_end_the_run() -> None:
    model = ScriptedModel(lambda request: Say(calls=[Call("echo", {"text": "again"})]))
    b = bench(model, tools=[echo()])
    finished = await b.finish()
    assert finished.outcome is Outcome.BREAKER
    assert len(model.requests) == 11
    assert finished.text.startswith("I stopped:")
    new = b.executor.last_run_new_messages
    assert anthropic_violations(new) == []
    assert [is_error for _, is_error in results(new)] == [False] * 5 + [True] * 6
    assert blocks_of(new[-1]) == [text_block(finished.text)]


async def test_a_critical_stop_answers_every_call_of_its_message() -> None:
    script = [Say(calls=[Call("fails", {"n": n})]) for n in range(5)]
    last = Say(calls=[Call("fails", {"n": 100 + n}) for n in range(8)])
    b = bench(ScriptedModel([*script, last]), tools=[failing()])
    finished = await b.finish()
    assert finished.outcome is Outcome.BREAKER
    new = b.executor.last_run_new_messages
    assert anthropic_violations(new) == []
    assert len(results(new)) == 13


async def test_the_model_is_nudged_once_after_three_successes_of_one_call() -> None:
    script = [Say(calls=[Call("echo", {"text": "same"})]) for _ in range(4)]
    model = ScriptedModel([*script, Say("done")])
    b = bench(model, tools=[echo()])
    await b.finish()
    assert [request.count(ENGLISH.nudge[:40]) for request in model.requests] == [0, 0, 0, 1, 1]
    assert ENGLISH.nudge not in json.dumps(b.executor.last_run_new_messages)


async def test_at_the_step_limit_a_summary_without_tools_is_asked_for_and_its_prompt_is_taken_out() -> None:
    def script(request: ModelRequest) -> Say:
        return (
            Say(calls=[Call("echo", {"text": str(len(request.messages))})])
            if request.allow_tools
            else Say("Summary.")
        )

    model = ScriptedModel(script)
    b = bench(model, tools=[echo()], max_turns=4)
    finished = await b.finish()
    assert finished.outcome is Outcome.STEP_LIMIT
    assert "Summary." in finished.text
    assert len(model.requests) == 5
    assert ENGLISH.step_limit in json.loads(model.requests[-1])["messages"][-1]["content"][-1]["text"]
    assert ENGLISH.step_limit not in json.dumps(b.executor.messages)
    assert anthropic_violations(b.executor.last_run_new_messages) == []


async def test_a_run_that_ends_by_itself_on_the_last_step_gets_no_step_limit_prompt() -> None:
    model = ScriptedModel([Say(calls=[Call("echo", {"text": str(n)})]) for n in range(3)] + [Say("done")])
    b = bench(model, tools=[echo()], max_turns=4)
    assert (await b.finish()).outcome is Outcome.COMPLETED
    assert all(ENGLISH.step_limit not in request for request in model.requests)


async def test_a_model_that_calls_tools_in_its_closing_summary_leaves_a_legal_history() -> None:
    model = ScriptedModel(lambda request: Say(calls=[Call("echo", {"text": str(len(request.messages))})]))
    b = bench(model, tools=[echo()], max_turns=2)
    await b.finish()
    assert anthropic_violations(b.executor.messages) == []


async def test_only_the_last_of_equal_questions_is_new() -> None:
    earlier = [ask("go on"), {"role": "assistant", "content": [text_block("yes")]}, ask("go on")]
    b = bench(ScriptedModel([Say("right")]), messages=earlier)  # type: ignore[arg-type]  # literal of a message
    await b.finish("go on")
    assert b.executor.last_run_new_messages == [
        ask("go on"),
        {"role": "assistant", "content": [text_block("right")]},
    ]
    assert b.executor.last_run_new_messages[0] is b.executor.messages[-2]


async def test_trimming_happens_before_the_first_call_and_what_is_dropped_is_remembered_first() -> None:
    history: list[Message] = []
    for n in range(30):
        history += [ask(f"question {n}"), {"role": "assistant", "content": [text_block(f"answer {n}")]}]
    model = ScriptedModel([Say("fine")])
    b = bench(model, messages=history)
    events = await b.run("the last")
    acted = [event.event for event in events if isinstance(event, DefenceActed)]
    assert acted == ["trim.turns"]
    ((reason, turns),) = b.memory.flushed
    assert reason == "trim"
    kept = json.loads(model.requests[0])["messages"]
    assert len(turns) + sum(message["role"] == "user" for message in kept) == 31
    assert "[Earlier conversation," in kept[0]["content"][0]["text"]
    assert b.executor.last_run_new_messages[0] == ask("the last")
    assert len(b.executor.last_run_new_messages) == 2


async def test_injected_texts_never_reach_what_is_stored() -> None:
    waiting = [["also look at this"], [], []]
    model = ScriptedModel(
        [Say(calls=[Call("echo", {"text": "a"})]), Say(calls=[Call("echo", {"text": "b"})]), Say("ok")]
    )
    b = bench(model, tools=[echo()], steer=lambda: waiting.pop(0))
    await b.finish()
    assert "also look at this" in model.requests[1]
    assert "also look at this" not in json.dumps(b.executor.last_run_new_messages)
    assert not any(is_injected(block) for m in b.executor.last_run_new_messages for block in blocks_of(m))


async def test_an_answer_cut_at_the_output_limit_says_so() -> None:
    b = bench(ScriptedModel([Say("half of", stop_reason="max_tokens")]))
    finished = await b.finish()
    assert finished.outcome is Outcome.COMPLETED
    assert finished.text == f"half of\n\n{ENGLISH.answer_cut}"


async def test_a_paused_turn_is_gone_on_with() -> None:
    b = bench(ScriptedModel([Say("first half", stop_reason="pause_turn"), Say("second half")]))
    finished = await b.finish()
    assert finished.text == "first half\n\nsecond half"


async def test_reported_tokens_calibrate_the_estimate_and_add_up() -> None:
    usage = Usage(input_tokens=400, output_tokens=7, cache_read_tokens=300)
    model = ScriptedModel([Say(calls=[Call("echo", {})], usage=usage), Say("ok", usage=usage)])
    b = bench(model, tools=[echo()])
    finished = await b.finish("a" * 800)
    assert finished.usage == Usage(800, 14, 600)
    assert b.facts.ratio("scripted-1") > 1.0


async def test_thinking_blocks_stay_unchanged_within_the_tool_loop() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
    model = ScriptedModel([Say(calls=[Call("echo", {})], blocks_before=[thinking]), Say("ok")])  # type: ignore[list-item]  # literal
    b = bench(model, tools=[echo()])
    await b.finish()
    assert json.loads(model.requests[1])["messages"][1]["content"][0] == thinking


async def test_an_image_alone_is_a_question_too() -> None:
    image = user_message(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    )
    b = bench(ScriptedModel([Say("a picture")]))
    events = [event async for event in b.executor.run_stream(image, b.token)]
    assert isinstance(events[-1], RunFinished)
    assert b.executor.last_run_new_messages[0] is image


async def test_calls_of_one_answer_that_share_an_id_each_get_their_own_result() -> None:
    calls = [Call("echo", {"text": "a"}, id="call_0"), Call("echo", {"text": "b"}, id="call_0")]
    b = bench(ScriptedModel([Say(calls=calls), Say("ok")]), tools=[echo()])
    await b.finish()
    assert results(b.executor.messages) == [("echo a", False), ("echo b", False)]
    assert anthropic_violations(b.executor.messages) == []
