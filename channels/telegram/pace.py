"""How often a chat may be written to: sliding windows, and the waits that Telegram names."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Window = tuple[int, float]
"""At most so many calls in any so many seconds."""

CHATS_REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The published limits (about 1 message a second in a chat with short bursts, 20 a minute in a group, 30 a
    second in all), with room that live showing leaves for final texts."""

    live_private: tuple[Window, ...] = ((2, 2.0),)
    live_group: tuple[Window, ...] = ((1, 3.0), (14, 60.0))
    final_private: tuple[Window, ...] = ((5, 5.0),)
    final_group: tuple[Window, ...] = ((3, 3.0), (19, 60.0))
    live_all: Window = (20, 1.0)
    final_all: Window = (28, 1.0)


class _History:
    """When calls were made, as far as a window can still ask for it; and until when none may be made."""

    def __init__(self, kept: int) -> None:
        self.times: deque[float] = deque(maxlen=kept)
        self.held_until = 0.0

    def wait(self, windows: Iterable[Window], now: float) -> float:
        waits = [self.held_until - now]
        for count, seconds in windows:
            if len(self.times) >= count:
                waits.append(self.times[-count] + seconds - now)
        return max(0.0, *waits)


class Pacer:
    """One for a bot. Ask `wait`; when it is zero, call `sent` before anything else runs, and make the call."""

    def __init__(self, clock: Callable[[], float], limits: Limits | None = None) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        self._limits = limits or Limits()
        self._chats: OrderedDict[str, _History] = OrderedDict()
        self._all = _History(kept=max(self._limits.live_all[0], self._limits.final_all[0]))
        windows = (
            *self._limits.live_private,
            *self._limits.live_group,
            *self._limits.final_private,
            *self._limits.final_group,
        )
        self._kept = max(count for count, _ in windows)

    def wait(self, chat: str, *, group: bool, live: bool) -> float:
        """Seconds until a call to this chat may be made; what Telegram told us to wait comes in as well."""
        limits, now = self._limits, self._clock()
        if live:
            windows, overall = limits.live_group if group else limits.live_private, limits.live_all
        else:
            windows, overall = limits.final_group if group else limits.final_private, limits.final_all
        history = self._chats.get(chat)
        own = history.wait(windows, now) if history is not None else 0.0
        return max(own, self._all.wait([overall], now))

    def held(self, chat: str) -> float:
        """Seconds for which Telegram wants this chat left alone."""
        history = self._chats.get(chat)
        return max(0.0, history.held_until - self._clock()) if history is not None else 0.0

    def sent(self, chat: str) -> None:
        now = self._clock()
        self._history(chat).times.append(now)
        self._all.times.append(now)

    def hold(self, chat: str, seconds: float) -> None:
        """Telegram named a time to wait for this chat; a shorter one never ends a longer one."""
        history = self._history(chat)
        history.held_until = max(history.held_until, self._clock() + seconds)

    def _history(self, chat: str) -> _History:
        history = self._chats.get(chat)
        if history is None:
            history = self._chats[chat] = _History(self._kept)
        self._chats.move_to_end(chat)
        while len(self._chats) > CHATS_REMEMBERED:
            self._chats.popitem(last=False)
        return history
