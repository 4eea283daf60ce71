"""Start, check and what is said when something is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from channels.base import ChannelSetupError
from channels.slack import open_channel
from channels.slack.adapter import SlackChannel
from channels.slack.checks import NEEDED
from tests.channels.slack.conftest import SOCKET, FakeIntake, settings_for
from tests.servers.slack_server import SCOPES, SlackServer


async def start(server: SlackServer, **more: object) -> SlackChannel:
    channel = SlackChannel(settings_for(server, **more), socket_pace=SOCKET)
    await channel.start([])
    return channel


@pytest.mark.parametrize(
    ("tokens", "key"),
    [
        ({"bot_token": "xoxb-wrong"}, "channels.slack.bot_token"),
        ({"app_token": "xapp-wrong"}, "channels.slack.app_token"),
    ],
)
async def test_a_wrong_token_is_named_and_not_shown(server: SlackServer, tokens: dict[str, str], key: str) -> None:
    with pytest.raises(ChannelSetupError, match=key) as caught:
        await start(server, **tokens)
    assert not any(token in str(caught.value) for token in tokens.values())
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("error", ["not_allowed_token_type", "account_inactive", "token_revoked"])
@pytest.mark.parametrize(("method", "key"), [("auth.test", "bot_token"), ("apps.connections.open", "app_token")])
async def test_a_token_that_slack_takes_no_more_is_named(
    server: SlackServer, method: str, key: str, error: str
) -> None:
    server.fail(method, error)
    with pytest.raises(ChannelSetupError, match=rf"{key}: Slack says {error}"):
        await start(server)


async def test_a_missing_scope_is_named_at_the_start(server: SlackServer) -> None:
    server.scopes = SCOPES.replace(",users:read", "")
    with pytest.raises(ChannelSetupError, match="users:read"):
        await start(server)
    server.scopes = SCOPES
    server.fail("apps.connections.open", "missing_scope", needed="connections:write")
    with pytest.raises(ChannelSetupError, match=r"app_token.*connections:write"):
        await start(server)


async def test_a_slack_that_does_not_answer_is_told_as_such(server: SlackServer) -> None:
    server.fail("auth.test", status=502)
    with pytest.raises(ChannelSetupError, match="could not be asked"):
        await start(server)


async def test_the_check_finds_all_well(server: SlackServer) -> None:
    findings = await open_channel(settings_for(server)).check()
    assert all(finding.ok for finding in findings)
    assert any("Acme" in finding.what for finding in findings)


async def test_the_check_names_each_missing_scope_with_its_mend(server: SlackServer) -> None:
    server.scopes = "chat:write,users:read"
    wrong = [finding for finding in await open_channel(settings_for(server)).check() if not finding.ok]
    assert {finding.what.split()[-1] for finding in wrong} == set(NEEDED) - {"chat:write", "users:read"}
    assert all("OAuth & Permissions" in finding.mend for finding in wrong)


async def test_the_check_tells_of_both_tokens_at_once(server: SlackServer) -> None:
    findings = await open_channel(settings_for(server, bot_token="xoxb-no", app_token="xapp-no")).check()
    assert [finding.ok for finding in findings] == [False, False]
    assert "bot_token" in findings[0].mend
    assert "app_token" in findings[1].mend
    assert "xoxb-no" not in repr(findings)


async def test_an_app_token_that_is_revoked_while_running_ends_the_channel_with_a_clear_line(
    server: SlackServer,
) -> None:
    channel = await start(server)
    run = asyncio.create_task(channel.run(FakeIntake()))
    await asyncio.wait_for(server.connected.wait(), 10)
    server.slack.app_token = "xapp-other"
    await server.drop()
    with pytest.raises(ChannelSetupError, match="app_token"):
        await asyncio.wait_for(run, 20)
    await channel.aclose()


async def test_an_address_that_ran_out_is_replaced_by_a_fresh_one(server: SlackServer) -> None:
    channel = await start(server)
    server.refuse_tickets = 2
    run = asyncio.create_task(channel.run(FakeIntake()))
    await asyncio.wait_for(server.connected.wait(), 20)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await channel.aclose()


async def test_a_second_process_on_the_token_is_told_of(
    server: SlackServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.num_connections = 2
    channel = await start(server)
    intake = FakeIntake()
    run = asyncio.create_task(channel.run(intake))
    await server.connected.wait()
    await server.say("hi")
    await intake.until(lambda: bool(intake.inbound))
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await channel.aclose()
    assert "second_process" in capsys.readouterr().out


async def test_a_message_that_is_being_stored_at_the_shutdown_is_stored_and_acknowledged(
    server: SlackServer,
) -> None:
    channel = await start(server)
    intake = FakeIntake(gate=asyncio.Event())
    run = asyncio.create_task(channel.run(intake))
    await server.connected.wait()
    [envelope] = await server.say("just in time")
    await intake.until(lambda: intake.tried == 1)
    run.cancel()
    assert intake.gate is not None
    asyncio.get_running_loop().call_later(0.15, intake.gate.set)
    await asyncio.gather(run, return_exceptions=True)
    await asyncio.wait_for(envelope.acked.wait(), 5)
    await channel.aclose()
    assert len(intake.inbound) == 1


async def test_nothing_is_open_after_the_close(server: SlackServer) -> None:
    before = asyncio.all_tasks()
    channel = await start(server)
    run = asyncio.create_task(channel.run(FakeIntake()))
    await server.connected.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await channel.aclose()
    await channel.aclose()
    ours = {task for task in asyncio.all_tasks() - before if "slack" in repr(task.get_coro()).lower()}
    assert {task for task in ours if "tests/servers" not in repr(task)} == set()


def test_the_manifest_brings_every_scope_that_is_checked_for() -> None:
    manifest = yaml.safe_load((Path(__file__).parents[3] / "docs" / "slack-manifest.yaml").read_text())
    assert set(NEEDED) <= set(manifest["oauth_config"]["scopes"]["bot"])
    assert {"app_mention", "message.im", "message.channels"} <= set(
        manifest["settings"]["event_subscriptions"]["bot_events"]
    )
    assert manifest["settings"]["socket_mode_enabled"]
    assert manifest["settings"]["interactivity"]["is_enabled"]
