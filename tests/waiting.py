"""Waiting in tests: for a condition, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within: float = 30) -> None:
    """Lets the loop run until the condition holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # there is no event for "nothing is left to do"
            await asyncio.sleep(0.001)
