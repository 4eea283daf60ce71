"""Which updates Telegram may forget: all before the first one that is not stored yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class OffsetLedger:
    """Updates between the poll that brought them and the poll that confirms them.

    `offset` confirms everything below it. It is None where nothing waits for a confirmation: Telegram then gives
    what it has, also when its ids start anew somewhere else, as they do after a week of silence.
    """

    def __init__(self) -> None:
        self._pending: set[int] = set()
        self._done: set[int] = set()

    def __len__(self) -> int:
        """How many updates are being taken in."""
        return len(self._pending)

    @property
    def offset(self) -> int | None:
        if self._pending:
            return min(self._pending)
        return max(self._done) + 1 if self._done else None

    def take(self, update_ids: Iterable[int]) -> list[int]:
        """The ids that were not seen yet, in their order; they are pending from now on."""
        fresh = [number for number in dict.fromkeys(update_ids) if number not in self._pending | self._done]
        self._pending.update(fresh)
        return fresh

    def done(self, update_id: int) -> None:
        self._pending.discard(update_id)
        self._done.add(update_id)

    def confirmed(self, offset: int | None) -> None:
        """A poll with this offset was answered: Telegram has forgotten what is below it."""
        if offset is not None:
            self._done = {number for number in self._done if number >= offset}
