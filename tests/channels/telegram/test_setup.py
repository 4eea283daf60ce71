"""Start, check, and what stops polling or is lived through."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import httpx
import pytest

from channels.base import ChannelSetupError, Finding
from channels.telegram.adapter import TelegramChannel
from tests.channels.telegram.conftest import ANN, DIRECT, FAST, FakeIntake, Rig, running, settings_for, slow_polls
from tests.servers.telegram_server import TOKEN, USERNAME, TelegramServer

OTHER_TOKEN = "987654321:BBothertokenothertokenothertoken0000"


async def failing_start(server: TelegramServer, **more: object) -> str:
    channel = TelegramChannel(settings_for(server, **more), paces=FAST)
    with pytest.raises(ChannelSetupError) as caught:
        await channel.start([])
    await channel.aclose()
    text = str(caught.value)
    assert TOKEN not in text
    assert OTHER_TOKEN not in text
    assert caught.value.__cause__ is None
    return text


async def test_the_menu_is_set_at_the_start(quiet: Rig) -> None:
    assert [command["command"] for command in quiet.server.commands] == ["cancel", "new"]


async def test_a_wrong_token_is_named_by_its_key_and_never_shown(server: TelegramServer) -> None:
    assert "channels.telegram.token" in await failing_start(server, token=OTHER_TOKEN)


async def test_a_webhook_that_is_set_is_told_with_the_mend(server: TelegramServer) -> None:
    server.webhook = "https://example.org/hook"
    assert "deleteWebhook" in await failing_start(server)


async def test_no_way_to_telegram_is_told_after_some_tries(server: TelegramServer) -> None:
    assert "base_url" in await failing_start(server, base_url="http://127.0.0.1:1/bot")


async def test_a_start_that_meets_a_short_outage_goes_on(server: TelegramServer) -> None:
    server.fail("getMe", status=502, description="Bad Gateway", times=2)
    async with running(server) as rig:
        await server.say(DIRECT, ANN, "hi")
        await rig.intake.hear()


async def test_a_menu_that_is_refused_stops_nothing(server: TelegramServer) -> None:
    server.fail("setMyCommands")
    async with running(server) as rig:
        await server.say(DIRECT, ANN, "hi")
        await rig.intake.hear()


async def test_a_second_poller_stops_the_channel_with_a_clear_line(server: TelegramServer) -> None:
    server.fail("getUpdates", status=409, description="Conflict: terminated by other getUpdates", times=99)
    channel = TelegramChannel(settings_for(server), paces=FAST)
    await channel.start([])
    with pytest.raises(ChannelSetupError, match="another program polls"):
        await channel.run(FakeIntake())
    await channel.aclose()


async def test_two_bots_on_one_token_do_not_both_go_on(server: TelegramServer) -> None:
    async with running(server) as one, running(server) as other:
        assert one.task is not None
        assert other.task is not None
        done, _ = await asyncio.wait([one.task, other.task], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert type(done.pop().exception()) is ChannelSetupError


async def test_a_single_conflict_after_a_restart_is_lived_through(server: TelegramServer) -> None:
    server.fail("getUpdates", status=409, description="Conflict: terminated by other getUpdates", times=2)
    async with running(server) as rig:
        await server.say(DIRECT, ANN, "hi")
        await rig.intake.hear()


async def test_conflicts_far_from_each_other_do_not_add_up(server: TelegramServer) -> None:
    async with running(server) as rig:
        for number in range(1, 5):
            server.fail("getUpdates", status=409, description="Conflict: terminated by other getUpdates", times=2)
            await server.say(DIRECT, ANN, f"hi {number}")
            await rig.intake.hear(number)
            await rig.confirmed()


async def test_a_malformed_token_that_telegram_knows_no_method_for_is_named(server: TelegramServer) -> None:
    server.fail("getMe", status=404, description="Not Found")
    assert "channels.telegram.token" in await failing_start(server)


@pytest.mark.parametrize(
    ("status", "description", "words"),
    [(401, "Unauthorized", "token"), (409, "Conflict: can't use getUpdates while webhook is active", "webhook")],
)
async def test_polling_ends_where_it_has_no_use(
    server: TelegramServer, status: int, description: str, words: str
) -> None:
    async with running(server) as rig:
        server.fail("getUpdates", status=status, description=description, times=99)
        await server.say(DIRECT, ANN, "wakes the poll")
        assert rig.task is not None
        with pytest.raises(ChannelSetupError, match=words):
            await asyncio.wait_for(asyncio.shield(rig.task), 10)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 502, "description": "Bad Gateway"},
        {"status": 500, "description": "Internal Server Error"},
        {"status": 429, "description": "Too Many Requests", "retry_after": 0},
        {"drop": True},
    ],
)
async def test_faults_of_the_network_are_lived_through(server: TelegramServer, fault: dict[str, object]) -> None:
    server.fail("getUpdates", times=3, **fault)
    async with running(server) as rig:
        await server.say(DIRECT, ANN, "hi")
        await rig.intake.hear()
        await rig.confirmed()


async def test_a_poll_that_hangs_is_begun_anew_by_the_watchdog(server: TelegramServer) -> None:
    server.fail("getUpdates", gate=asyncio.Event())
    async with running(server, paces=slow_polls(poll=1.0, watch=-0.9)) as rig:
        await server.say(DIRECT, ANN, "hi")
        await rig.intake.hear()
    assert server.called("getUpdates")[0].status == 0


async def test_check_says_what_is_right_and_what_is_missing(server: TelegramServer) -> None:
    server.webhook = "https://example.org/hook"
    found = await TelegramChannel(settings_for(server, group_trigger="all"), paces=FAST).check()
    by_name = {finding.what.split(":")[0]: finding for finding in found}
    assert by_name["bot token"] == Finding(True, f"bot token: @{USERNAME} (Steady)")
    assert "deleteWebhook" in by_name["webhook"].mend
    assert "/setprivacy" in by_name["group privacy mode"].mend
    assert not by_name["group privacy mode"].ok
    assert "steadybot allow telegram CODE" in by_name["allow list"].what
    assert not server.called("getUpdates")


async def test_check_of_a_bot_in_order_finds_nothing_wrong(server: TelegramServer) -> None:
    server.me["can_read_all_group_messages"] = True
    found = await TelegramChannel(settings_for(server, allow=[7]), paces=FAST).check()
    assert all(finding.ok for finding in found)
    assert not any("allow list" in finding.what for finding in found)


async def test_check_of_a_wrong_token_names_the_key_only(server: TelegramServer) -> None:
    (finding,) = await TelegramChannel(settings_for(server, token=OTHER_TOKEN), paces=FAST).check()
    assert not finding.ok
    assert "channels.telegram.token" in finding.mend
    assert OTHER_TOKEN not in finding.mend


async def test_no_log_line_of_the_libraries_holds_the_token(
    server: TelegramServer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        server.fail("getUpdates", drop=True)
        async with running(server) as rig:
            await server.say(DIRECT, ANN, "hi")
            await rig.intake.hear()
            await rig.deliver("hello")
    # aiohttp's access log is the far side's.
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("aiohttp")]
    assert not any(TOKEN in line for line in ours)
    assert TOKEN not in capsys.readouterr().out


def test_importing_the_package_does_not_import_the_sdk() -> None:
    code = "import sys, channels.telegram; print('telegram' in sys.modules, 'httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


async def test_the_server_can_be_driven_by_another_process() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.servers.telegram_server", "--token", TOKEN, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        base_url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        control = base_url.removesuffix("/bot") + "/control"
        settings = settings_for(TelegramServer(), base_url=base_url)
        channel = TelegramChannel(settings, paces=FAST)
        await channel.start([])
        intake = FakeIntake()
        task = asyncio.create_task(channel.run(intake))
        async with httpx.AsyncClient() as client:
            said = await client.post(f"{control}/say", json={"chat_id": 7, "text": "hello"})
            assert said.json()["text"] == "hello"
            assert (await intake.hear())[0].text == "hello"
            messages = (await client.get(f"{control}/messages")).json()
            assert [message["text"] for message in messages["7"]] == ["hello"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await channel.aclose()
    finally:
        process.kill()
        await process.wait()
