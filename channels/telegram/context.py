"""A group's other talk, kept for a short while: when we are called, it is what was said before."""

from __future__ import annotations

from collections import OrderedDict, deque

from channels.base import Place
from channels.telegram.updates import Heard

LINES = 20  # of a group
LINE_LENGTH = 300  # characters
GROUPS = 500


class GroupTalk:
    """The last lines of each group, in memory only; what was given once is not given again."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Place, deque[str]] = OrderedDict()

    def note(self, heard: Heard) -> None:
        if not heard.text.strip():
            return
        lines = self._lines.setdefault(heard.place, deque(maxlen=LINES))
        self._lines.move_to_end(heard.place)
        lines.append(f"{heard.sender.name}: {heard.text}"[:LINE_LENGTH])
        while len(self._lines) > GROUPS:
            self._lines.popitem(last=False)

    def take(self, place: Place) -> tuple[str, ...]:
        return tuple(self._lines.pop(place, ()))
