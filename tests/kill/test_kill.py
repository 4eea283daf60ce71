"""SIGKILL at random moments, under traffic from both platforms: nothing lost, nothing run twice (§1).

A real process and a real file; the platforms and the model are servers in this process, which outlive the bot and
remember everything. `STEADYBOT_KILLS` sets how many kills there are (`make soak`: 200).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from agent.messages import Message
from tests.agent.legality import anthropic_violations
from tests.servers.model_replies import Raw, Reply, ToolCall
from tests.servers.model_server import ModelServer, last_results, last_user_text
from tests.servers.slack_server import BOT_USER, SlackServer
from tests.servers.telegram_server import TelegramServer, person, private
from tests.test_whole import config

KILLS = int(os.environ.get("STEADYBOT_KILLS", "6"))
PEOPLE = (501, 502, 503)
TOKEN = re.compile(r"#\d+#")

pytestmark = [pytest.mark.kill, pytest.mark.timeout(200 + 15 * KILLS)]


def answer(body: Raw) -> Reply:
    """Names every message number of the question again; every third question goes by way of a tool."""
    numbers = TOKEN.findall(last_user_text(body))
    if not last_results(body) and any(int(number.strip("#")) % 3 == 0 for number in numbers):
        return Reply("One moment. ", calls=[ToolCall("calculator", {"expression": "1+1"})], interval=0.005)
    text = " ".join(f"Answer {number}" for number in numbers)
    return Reply([text, " and", " some", " more", " words"], interval=0.02)


class Bot:
    """The process under test."""

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until it says that it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from bridge.cli import main; main()", "run", "-c", str(self._config_file)),
            stderr=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        assert self._process.stderr is not None
        said = []
        async with asyncio.timeout(30):
            while line := await self._process.stderr.readline():
                said.append(line.decode())
                if b"app.ready" in line:
                    self._reading = asyncio.create_task(self._drain(self._process.stderr))
                    return
        raise AssertionError("it did not start: " + "".join(said[-5:]))

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever the test found: no bot is left behind."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    async def stop(self) -> int:
        """SIGTERM, as a service manager sends it; the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = await asyncio.wait_for(self._process.wait(), 30)
        if self._reading is not None:
            await self._reading
        return code

    @staticmethod
    async def _drain(stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass


class Town:
    """Both platforms, and the people on them who keep talking."""

    def __init__(self, telegram: TelegramServer, slack: SlackServer, dice: random.Random) -> None:
        self.telegram = telegram
        self.slack = slack
        self.said = 0
        self._dice = dice

    async def talk(self) -> None:
        """Says something somewhere every few hundredths of a second, until it is cancelled."""
        while True:
            await asyncio.sleep(self._dice.uniform(0.05, 0.2))
            await self.say()

    async def say(self) -> None:
        number, self.said = self.said, self.said + 1
        text = f"message #{number}#"
        if self._dice.random() < 0.5:
            person_id = self._dice.choice(PEOPLE)
            await self.telegram.say(private(person_id), person(person_id), text)
        else:
            await self.slack.say(text, channel=f"D{self._dice.randrange(1, 3)}")

    def shown(self) -> Counter[str]:
        """How many messages of the bot name each number now."""
        texts = [text for chat_id in PEOPLE for text in self.telegram.chats.texts(chat_id)]
        texts += [
            f"{message.get('text', '')} {message.get('blocks', '')}"
            for messages in self.slack.slack.messages.values()
            for message in messages
            if message["user"] == BOT_USER
        ]
        return Counter(number for text in texts for number in set(re.findall(r"Answer (#\d+#)", text)))

    def unanswered(self) -> list[int]:
        shown = self.shown()
        return [number for number in range(self.said) if f"#{number}#" not in shown]


def stored(path: Path) -> Iterator[tuple[str, str, Message]]:
    with sqlite3.connect(path) as db:
        for session_id, origin, message in db.execute(
            "SELECT session_id, origin, message FROM messages ORDER BY id"
        ):
            yield session_id, origin, json.loads(message)


async def wait_for_answers(town: Town, patience: float = 45) -> None:
    """Until everything is answered; fails where nothing was answered for `patience` seconds. The platforms' paces
    hold back what has piled up, so that all of it takes longer the more was killed."""
    left = town.unanswered()
    while left:
        async with asyncio.timeout(patience):
            while len(town.unanswered()) == len(left):  # noqa: ASYNC110  # two servers change it
                await asyncio.sleep(0.1)
        left = town.unanswered()


async def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    dice = random.Random(20_261_201)
    async with TelegramServer() as telegram, SlackServer(ack_within=1.0) as slack, ModelServer(answer) as model:
        text = config(tmp_path / "data", model, "anthropic", telegram=telegram, slack=slack)
        text = text.replace(f"allow: [{PEOPLE[0]}]", f"allow: {list(PEOPLE)}")
        config_file = tmp_path / "config.yaml"
        config_file.write_text(f"log: {{level: info, format: json}}\n{text}", encoding="utf-8")
        town = Town(telegram, slack, dice)
        async with Bot(config_file) as bot:
            talking = asyncio.create_task(town.talk())
            for _ in range(KILLS):
                await bot.start()
                await asyncio.sleep(dice.uniform(0.0, 1.0))
                await bot.kill()
            await bot.start()
            talking.cancel()
            await wait_for_answers(town)
            assert await bot.stop() == 0
        shown = town.shown()

    rows = list(stored(tmp_path / "data" / "steadybot.sqlite3"))
    asked = Counter(
        number for _, origin, message in rows if origin == "user" for number in TOKEN.findall(json.dumps(message))
    )
    assert asked == Counter(f"#{number}#" for number in range(town.said)), "each message is stored once"
    for session in {session for session, _, _ in rows}:
        history = [message for where, _, message in rows if where == session]
        assert anthropic_violations(history) == [], session
    twice = [number for number, times in shown.items() if times > 1]
    print(f"{KILLS} kills, {town.said} messages, {len(twice)} shown twice")  # noqa: T201
    assert len(twice) <= KILLS, "at most what was on its way to the platform when the bot died"


async def test_a_kill_between_accept_and_answer_loses_no_message(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with TelegramServer() as telegram, ModelServer([Reply("never ", gates={0: hold})]) as model:
        config_file = tmp_path / "config.yaml"
        text = config(tmp_path / "data", model, "openai", telegram=telegram)
        config_file.write_text(f"log: {{level: info, format: json}}\n{text}", encoding="utf-8")
        async with Bot(config_file) as bot:
            await bot.start()
            await telegram.say(private(PEOPLE[0]), person(PEOPLE[0]), "are you there?")
            await asyncio.wait_for(model.arrived(1), 30)
            await bot.kill()
            assert [origin for _, origin, _ in stored(tmp_path / "data" / "steadybot.sqlite3")] == ["user"]
            model.say(Reply("I am back"))
            await bot.start()
            await telegram.wait_for(lambda: "I am back" in "".join(telegram.chats.texts(PEOPLE[0])))
            assert await bot.stop() == 0
    origins = [origin for _, origin, _ in stored(tmp_path / "data" / "steadybot.sqlite3")]
    assert origins == ["user", "run"]
