"""Keeps packages out of memory that libraries load although we never use them from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_rich() -> Iterator[None]:
    """Imports inside go without rich: structlog would load it for tracebacks, httpx for a command line of its own.

    That is a tenth of the whole bot's memory (`python -m bench.overhead`). The console imports rich itself, when
    there is a terminal to render on.
    """
    if "rich" in sys.modules:
        yield
        return
    # None in sys.modules makes an import fail, and both are prepared for that.
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import system's documented way
    try:
        yield
    finally:
        del sys.modules["rich"]
