"""What happened, in numbers, under the names of the log's events; for /status and, in Prometheus' form, /metrics.

Counting is plain Python; prometheus-client is imported by whoever renders (bridge.health), when health is on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from agent.events import Outcome, Usage
from channels.base import Accepted

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of all histograms; what took longer is in one more bucket."""

FROM_THE_START = (
    *(f"accept.{accepted}" for accepted in Accepted),
    *(f"run.{outcome}" for outcome in Outcome),
    *(f"delivery.{what}" for what in ("sent", "retry", "given_up")),
    *(f"recovery.{what}" for what in ("resumed", "asked", "set_aside")),
    "cancel",
)
"""Events that are shown as 0 before the first one: an alarm on an increase would else miss that one."""


@dataclass(slots=True)
class Histogram:
    """How long something took: `counts` by bucket, not added up; `total` in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    """Counters, gauges and histograms of this process. A gauge is a function that is asked when somebody looks."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter(dict.fromkeys(FROM_THE_START, 0))
        self._tokens: Counter[str] = Counter()
        self._times: dict[str, Histogram] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def count(self, event: str, by: int = 1) -> None:
        self._events[event] += by

    def count_tokens(self, usage: Usage) -> None:
        self._tokens["input"] += usage.input_tokens
        self._tokens["output"] += usage.output_tokens
        self._tokens["cache_read"] += usage.cache_read_tokens
        self._tokens["cache_write"] += usage.cache_write_tokens

    def observe(self, what: str, seconds: float) -> None:
        self._times.setdefault(what, Histogram()).observe(seconds)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Observes how long the block took, if it came to its end."""
        before = perf_counter()
        yield
        self.observe(what, perf_counter() - before)

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        self._gauges[name] = value

    def counts(self) -> Mapping[str, int]:
        return dict(self._events)

    def tokens(self) -> Mapping[str, int]:
        return dict(self._tokens)

    def times(self) -> Mapping[str, Histogram]:
        return dict(self._times)

    def gauges(self) -> Mapping[str, int]:
        return {name: value() for name, value in self._gauges.items()}
