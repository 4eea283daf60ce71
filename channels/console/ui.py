"""What the console's two faces, terminal and pipe, have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from channels.base import CommandInfo
from channels.console.progress import Live, Piece


class Host(Protocol):
    """What the part that the person types into can ask for."""

    async def send(self, text: str) -> None:
        """Takes one message or command in; says so where that can't be done."""

    async def answered(self) -> None:
        """Returns when nothing of this console is running, waiting or being delivered."""

    def is_running(self) -> bool: ...

    async def cancel(self) -> None:
        """Stops what is being answered."""


class Ui(Protocol):
    """A terminal or a pipe: where the person types, and where answers are shown."""

    async def run(self, host: Host, commands: Sequence[CommandInfo]) -> None:
        """Until the person leaves or the input ends."""

    def finished(self, text: str) -> int:
        """How many characters of a growing text can be shown for good."""

    async def show(self, pieces: Sequence[Piece], live: Live | None) -> None:
        """Shows the pieces for good and `live` as what may still change. Raises Undeliverable."""

    async def start_answer(self) -> None:
        """What comes next does not go on in the line or paragraph before it."""

    async def end_answer(self) -> None: ...
