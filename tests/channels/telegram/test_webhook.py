"""Updates by webhook: only Telegram is listened to, and told that we have an update when it is stored."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from channels.base import ChannelSetupError
from channels.telegram import webhook
from channels.telegram.adapter import TelegramChannel
from tests.channels.telegram.conftest import ANN, DIRECT, FAST, FakeIntake, Rig, settings_for
from tests.servers.telegram_server import Json, TelegramServer

URL = "https://bot.example.org/telegram/hook"
SECRET = "a-secret-of-some-length"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def hooked(server: TelegramServer, **more: object) -> AsyncIterator[tuple[Rig, str]]:
    port = free_port()
    settings = settings_for(server, mode="webhook", webhook={"url": URL, "port": port, **more})
    channel = TelegramChannel(settings, paces=FAST)
    await channel.start([])
    rig = Rig(server, channel, FakeIntake())
    rig.task = asyncio.create_task(channel.run(rig.intake))
    try:
        await server.wait_for(lambda: server.webhook)
        yield rig, f"http://127.0.0.1:{port}/telegram/hook"
    finally:
        rig.task.cancel()
        await asyncio.gather(rig.task, return_exceptions=True)
        await channel.aclose()


def update_with(server: TelegramServer, text: str, number: int = 1) -> Json:
    return {"update_id": number, "message": server.chats.add(DIRECT, {"from": ANN, "text": text})}


async def call(address: str, body: object, secret: str) -> int:
    headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
    async with httpx.AsyncClient() as client:
        return (await client.post(address, json=body, headers=headers, timeout=10)).status_code


async def test_an_update_by_webhook_is_answered_when_it_is_stored(server: TelegramServer) -> None:
    async with hooked(server, secret=SECRET) as (rig, address):
        gate = rig.intake.gates["hi"] = asyncio.Event()
        calling = asyncio.create_task(call(address, update_with(server, "hi"), SECRET))
        await rig.intake.until(lambda: rig.intake.tried)
        assert not calling.done()
        gate.set()
        assert await calling == 200
        assert [inbound.text for inbound in rig.intake.inbound] == ["hi"]
    assert server.webhook == URL


@pytest.mark.parametrize("secret", ["", "wrong", SECRET + "x"])
async def test_who_does_not_know_the_secret_is_not_heard(server: TelegramServer, secret: str) -> None:
    async with hooked(server, secret=SECRET) as (rig, address):
        assert await call(address, update_with(server, "hi"), secret) == 403
        assert rig.intake.tried == 0


async def test_without_a_secret_in_the_config_one_is_made_that_stays_the_same(server: TelegramServer) -> None:
    for _ in range(2):
        async with hooked(server):
            server.webhook = ""
    first, second = (call.params["secret_token"] for call in server.called("setWebhook"))
    assert first == second
    assert len(first) == 64


async def test_what_can_not_be_stored_in_time_is_sent_again(
    server: TelegramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "ANSWER_WITHIN", 0.05)
    async with hooked(server, secret=SECRET) as (rig, address):
        rig.intake.gates["hi"] = asyncio.Event()
        update = update_with(server, "hi")
        assert await call(address, update, SECRET) == 503
        rig.intake.gates.clear()
        assert await call(address, update, SECRET) == 200
        assert len(rig.intake.inbound) == 1


async def test_what_can_never_be_taken_in_is_not_sent_again(server: TelegramServer) -> None:
    async with hooked(server, secret=SECRET) as (rig, address):
        rig.intake.failing = [ZeroDivisionError()]
        assert await call(address, update_with(server, "hi"), SECRET) == 200
        assert await call(address, {"update_id": 3, "message": 5}, SECRET) == 200
        assert await call(address, "no update", SECRET) == 200


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (None, "url"),
        ({"url": "http://x.y/z"}, "url"),
        ({"url": URL, "prt": 1}, "prt"),
        ({"url": URL, "secret": "s"}, "secret"),
    ],
)
async def test_what_is_wrong_in_the_config_is_named(
    server: TelegramServer, section: Json | None, words: str
) -> None:
    channel = TelegramChannel(settings_for(server, mode="webhook", webhook=section), paces=FAST)
    with pytest.raises(ChannelSetupError, match=words):
        await channel.start([])
    (finding,) = await channel.check()
    assert not finding.ok


async def test_a_port_that_is_taken_is_named(server: TelegramServer) -> None:
    section = {"url": URL, "port": server.port}
    channel = TelegramChannel(settings_for(server, mode="webhook", webhook=section), paces=FAST)
    await channel.start([])
    with pytest.raises(ChannelSetupError, match=str(server.port)):
        await channel.run(FakeIntake())
    await channel.aclose()


async def test_check_tells_where_telegram_calls(server: TelegramServer) -> None:
    channel = TelegramChannel(settings_for(server, mode="webhook", webhook={"url": URL}), paces=FAST)
    assert any(URL in finding.what and finding.ok for finding in await channel.check())
