"""Work on large texts beside the event loop, so that other chats don't wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LARGE = 8_000
"""Characters; rendering them takes about ten milliseconds."""

T = TypeVar("T")


async def by_size(text: str, work: Callable[[], T]) -> T:
    """The result of `work`, which reads `text` and nothing that changes; in a thread where the text is large."""
    return await asyncio.to_thread(work) if len(text) > LARGE else work()
