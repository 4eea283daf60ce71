"""SIGKILL at random moments: what was said to be stored is stored, and the file is sound."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from agent.messages import blocks_of, text_of
from bridge.ports import StoredMessage
from bridge.store.sqlite import SqliteStore
from tests.bridge.store.making import HERE, NOON, answered, asked
from tests.bridge.store.test_faults import is_sound, opened

KILLS = int(os.environ.get("STEADYBOT_KILLS", "5"))

pytestmark = [pytest.mark.kill, pytest.mark.timeout(60 + 5 * KILLS)]


def say(*words: object) -> None:
    """In one write, so that a kill leaves no half of a line but the last."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def accept_and_finish_for_ever(path: Path, life: str) -> None:
    store = await SqliteStore.open(path)

    async def talk(person: int) -> None:
        number = 0
        while True:
            number += 1
            name = f"{life}-{person}-{number}"
            new = asked(f"{name} {'x' * 500}", keys=[name])
            say("accepted", name, await store.accept(new))
            row = await store.finish(answered(new, text=name))
            assert row is not None
            say("finished", name, row.id)

    async with asyncio.TaskGroup() as group:
        for person in range(8):
            group.create_task(talk(person))


def child() -> None:
    from itertools import count

    from tests.bridge.store import making

    # Ids that no earlier life used.
    making._numbers = count(int(sys.argv[2]) * 1_000_000)
    asyncio.run(accept_and_finish_for_ever(Path(sys.argv[1]), sys.argv[2]))


async def live_and_die(path: Path, life: int, lines: int) -> list[list[str]]:
    """Kills the child after it said about so many lines; what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from tests.bridge.store.test_killed import child; child()", str(path), str(life)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    said: list[bytes] = []
    while len(said) < lines:
        said.append(await process.stdout.readline())
        assert said[-1], "it ended by itself"
    process.send_signal(signal.SIGKILL)
    said += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    words = [line.decode().split() for line in said if line.endswith(b"\n")]
    return [line for line in words if line[0] in ("accepted", "finished")]


def name_in(row: StoredMessage) -> str:
    return text_of(blocks_of(row.message)).split()[0]


async def test_what_was_said_to_be_stored_is_there_after_each_kill(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    accepted: set[str] = set()
    finished: set[str] = set()
    for life in range(1, KILLS + 1):
        for what, name, _ in await live_and_die(path, life, random.randint(2, 300)):
            (accepted if what == "accepted" else finished).add(name)
        async with opened(path) as store:
            history = await store.history(HERE.session_id)
            asked_names = [name_in(row) for row in history if row.origin == "user"]
            answers = [name_in(row) for row in history if row.origin == "run"]
            replies = [row.outgoing.text for row in await store.outbox()]
            unfinished = await store.unfinished()
            for name in accepted:
                assert not await store.accept_event([name], NOON)
        assert len(set(asked_names)) == len(asked_names)
        assert accepted <= set(asked_names)
        assert sorted(answers) == sorted(replies)
        assert len(set(answers)) == len(answers)
        assert finished <= set(answers)
        assert len(unfinished) == len(asked_names) - len(answers)
        assert is_sound(path)
