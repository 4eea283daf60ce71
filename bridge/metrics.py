"""Counters of what happened, under the names of the log's events; read by /status and, later, by /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Metrics:
    """In-memory counters of this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, event: str, by: int = 1) -> None:
        self._counts[event] += by

    def counts(self) -> Mapping[str, int]:
        return dict(self._counts)
