"""The whole road, wired by the app itself: platform server → bot → model server and back, real SDKs on each wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.app import App, open_app
from bridge.config import parse_settings
from tests.servers.model_replies import HttpError, Reply, Stall, ToolCall
from tests.servers.model_server import ModelServer
from tests.servers.slack_server import APP_TOKEN, BOT_TOKEN, BOT_USER, SlackServer
from tests.servers.telegram_server import TOKEN, Json, TelegramServer, person, private

WIRES = ("anthropic", "openai")
ANN = 501


def config(
    data: Path,
    model: ModelServer,
    wire: str,
    *,
    telegram: TelegramServer | None = None,
    slack: SlackServer | None = None,
    more: str = "",
) -> str:
    base = model.url if wire == "anthropic" else model.openai_url
    channels = ""
    if telegram is not None:
        channels += f"\n  telegram: {{token: '{telegram.token}', base_url: '{telegram.base_url}', allow: [{ANN}]}}"
    if slack is not None:
        channels += f"\n  slack: {{bot_token: {BOT_TOKEN}, app_token: {APP_TOKEN}, base_url: '{slack.base_url}'}}"
    return (
        f"data_dir: '{data}'\n"
        f"providers:\n  model: {{kind: {wire}, model: test-model, api_key: test-key, base_url: '{base}', timeout: 20}}\n"
        f"session: {{shutdown_grace: 0.2}}\n{more}"
        f"channels:{channels}\n"
    )


@asynccontextmanager
async def running(text: str) -> AsyncIterator[App]:
    async with open_app(parse_settings(text, "test.yaml", {})) as app:
        stop = asyncio.Event()
        serving = asyncio.create_task(app.serve(stop))
        try:
            yield app
        finally:
            stop.set()
            await serving


async def ann_says(telegram: TelegramServer, text: str) -> None:
    await telegram.say(private(ANN), person(ANN), text)


def texts(telegram: TelegramServer, chat_id: int) -> str:
    """What the bot shows in this chat."""
    return "\n".join(telegram.chats.texts(chat_id))


def buttons(telegram: TelegramServer) -> list[Json]:
    """The bot's messages to Ann that have a button now."""
    return [message for message in telegram.chats.shown(ANN) if message.get("reply_markup")]


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
async def slack() -> AsyncIterator[SlackServer]:
    server = SlackServer()
    await server.start()
    yield server
    await server.stop()


def slack_texts(slack: SlackServer) -> str:
    """What the bot shows, in all channels."""
    shown = [message for messages in slack.slack.messages.values() for message in messages]
    return "\n".join(str(message) for message in shown if message["user"] == BOT_USER)


@pytest.mark.parametrize("wire", WIRES)
async def test_telegram_answers_with_a_tool_call_in_between(
    tmp_path: Path, wire: str, telegram: TelegramServer
) -> None:
    replies = [
        Reply("Let me see. ", calls=[ToolCall("calculator", {"expression": "6*7"})]),
        Reply("It is 42."),
    ]
    async with ModelServer(replies) as model, running(config(tmp_path, model, wire, telegram=telegram)):
        await ann_says(telegram, "what is 6*7?")
        await telegram.wait_for(lambda: "It is 42." in texts(telegram, ANN))
        assert len(model.requests) == 2
        assert not any(request.refused for request in model.requests)
        assert "= 42" in str(model.requests[1].body["messages"])


@pytest.mark.parametrize("wire", WIRES)
async def test_slack_answers_a_mention_in_its_thread(tmp_path: Path, wire: str, slack: SlackServer) -> None:
    async with (
        ModelServer([Reply("Hello from the model")]) as model,
        running(config(tmp_path, model, wire, slack=slack)),
    ):
        await slack.say(f"<@{BOT_USER}> hello", channel="C1")
        await slack.until(lambda: "Hello from the model" in slack_texts(slack))
        assert len(model.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_cancel_while_the_stream_is_stalled_closes_the_connection_and_the_next_message_works(
    tmp_path: Path, wire: str, telegram: TelegramServer
) -> None:
    replies = [Reply(["As far ", "as I ", "know"], fault=Stall(after=5)), Reply("Here I am again.")]
    async with ModelServer(replies) as model, running(config(tmp_path, model, wire, telegram=telegram)):
        await ann_says(telegram, "tell me something long")
        request = await asyncio.wait_for(model.arrived(1), 30)
        await asyncio.wait_for(request.streaming.wait(), 30)
        await telegram.wait_for(lambda: telegram.chats.shown(ANN))
        await ann_says(telegram, "/cancel")
        await asyncio.wait_for(request.closed.wait(), 20)
        await telegram.wait_for(lambda: "(Cancelled by user)" in texts(telegram, ANN))
        await ann_says(telegram, "and now?")
        await telegram.wait_for(lambda: "Here I am again." in texts(telegram, ANN))
        assert not model.requests[1].refused


async def test_the_slash_command_and_the_word_stop_an_answer_in_slack(tmp_path: Path, slack: SlackServer) -> None:
    stalled = Reply(["Thinking ", "about ", "it"], fault=Stall(after=5))
    async with (
        ModelServer([stalled, stalled]) as model,
        running(config(tmp_path, model, "anthropic", slack=slack)),
    ):
        await slack.say(f"<@{BOT_USER}> one", channel="C1")
        request = await asyncio.wait_for(model.arrived(1), 30)
        slack.slash("/cancel", channel="C1")
        await asyncio.wait_for(request.closed.wait(), 20)
        await slack.say("two", channel="D1")
        request = await asyncio.wait_for(model.arrived(2), 30)
        await slack.say("cancel", channel="D1")
        await asyncio.wait_for(request.closed.wait(), 20)


async def test_the_button_stops_an_answer_in_telegram(tmp_path: Path, telegram: TelegramServer) -> None:
    stalled = Reply(["Thinking ", "about ", "it"], fault=Stall(after=5))
    async with (
        ModelServer([stalled]) as model,
        running(config(tmp_path, model, "openai", telegram=telegram)),
    ):
        await ann_says(telegram, "one")
        request = await asyncio.wait_for(model.arrived(1), 30)
        await telegram.wait_for(lambda: buttons(telegram))
        await telegram.press(buttons(telegram)[0], person(ANN))
        await asyncio.wait_for(request.closed.wait(), 20)
        await telegram.wait_for(lambda: "(Cancelled by user)" in texts(telegram, ANN) and not buttons(telegram))
        assert telegram.answered


async def test_both_platforms_at_once_and_their_conversations_stay_apart(
    tmp_path: Path, telegram: TelegramServer, slack: SlackServer
) -> None:
    async with (
        ModelServer() as model,
        running(config(tmp_path, model, "openai", telegram=telegram, slack=slack)),
    ):
        await ann_says(telegram, "apples")
        await slack.say("pears", channel="D1")
        await telegram.wait_for(lambda: "apples" in texts(telegram, ANN))
        await slack.until(lambda: "pears" in slack_texts(slack))
        asked = [str(request.body["messages"]) for request in model.requests]
        assert sorted(("apples" in text, "pears" in text) for text in asked) == [(False, True), (True, False)]


async def test_a_fallback_answers_when_the_first_provider_refuses(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    async with ModelServer([Reply(fault=HttpError(401, "invalid x-api-key"))]) as first, ModelServer() as second:
        text = config(tmp_path, first, "anthropic", telegram=telegram).replace(
            "session:",
            f"  other: {{kind: openai, model: m2, api_key: test-key, base_url: '{second.openai_url}'}}\n"
            "agent: {provider: model, fallback: [other]}\nsession:",
        )
        async with running(text):
            await ann_says(telegram, "hello there")
            await telegram.wait_for(lambda: "hello there" in texts(telegram, ANN))
            await ann_says(telegram, "/status")
            await telegram.wait_for(lambda: "other" in texts(telegram, ANN))
        assert len(second.requests) == 1


async def test_an_unknown_person_is_given_a_code_and_nothing_reaches_the_model(
    tmp_path: Path, telegram: TelegramServer
) -> None:
    async with ModelServer() as model, running(config(tmp_path, model, "openai", telegram=telegram)):
        await telegram.say(private(777), person(777), "let me in")
        await telegram.wait_for(lambda: "steadybot allow telegram" in texts(telegram, 777))
        assert model.requests == []


def test_the_token_of_the_tests_has_the_shape_of_a_real_one() -> None:
    assert parse_settings(f"channels:\n  telegram: {{token: '{TOKEN}'}}\n", "t", {}).channels.telegram is not None
