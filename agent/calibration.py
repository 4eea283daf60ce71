"""What is learned of a model while talking to it: how far the estimate is off, and its true limit (§2, beyond)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from agent.messages import Message

SMOOTHING = 0.3
"""Weight of the newest answer in the smoothed ratio."""

LEAST_RATIO, MOST_RATIO = 0.5, 2.0

OnChange = Callable[[str, float, int | None], None]
Measure = Callable[[Sequence[Message]], int]


class Facts:
    """agent.ports.ModelFacts in memory. `on_change(model, ratio, limit)` is called when something worth keeping
    changed, on the caller's thread; it must not block."""

    def __init__(self, on_change: OnChange | None = None) -> None:
        self._ratios: dict[str, float] = {}
        self._limits: dict[str, int] = {}
        self._on_change = on_change

    def restore(self, model: str, ratio: float, limit: int | None) -> None:
        """What was kept of a model before; calls nobody."""
        self._ratios[model] = _clamped(ratio) if math.isfinite(ratio) else 1.0
        if limit is not None and limit > 0:
            self._limits[model] = limit

    def ratio(self, model: str) -> float:
        """Reported input tokens over estimated ones, smoothed, within 0.5 to 2.0; 1.0 where nothing is known."""
        return self._ratios.get(model, 1.0)

    def learn_ratio(self, model: str, ratio: float) -> None:
        """The first answer counts whole, each later one by its weight; nonsense (0, NaN) is passed over."""
        if not math.isfinite(ratio) or ratio <= 0:
            return
        old = self._ratios.get(model)
        new = _clamped(ratio)
        if old is not None:
            new = old + SMOOTHING * (new - old)
        self._ratios[model] = new
        if old is None or round(new, 2) != round(old, 2):
            self._changed(model)

    def limit(self, model: str) -> int | None:
        """The input limit in tokens that the provider named in an error."""
        return self._limits.get(model)

    def learn_limit(self, model: str, tokens: int) -> None:
        if tokens > 0 and self._limits.get(model) != tokens:
            self._limits[model] = tokens
            self._changed(model)

    def _changed(self, model: str) -> None:
        if self._on_change is not None:
            self._on_change(model, self.ratio(model), self.limit(model))


def calibrated(measure: Measure, ratio: float) -> Measure:
    """The measure times the ratio; additive over messages up to rounding, as trimming wants it."""
    return lambda messages: round(measure(messages) * ratio)


def _clamped(ratio: float) -> float:
    return min(MOST_RATIO, max(LEAST_RATIO, ratio))
