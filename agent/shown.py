"""What the user has seen of a run's text, so that a stream that is sent again shows nothing twice."""

from __future__ import annotations

from agent.events import TextDelta, TextReplaced

GAP = "\n\n"


class ShownText:
    """The reply of one run as it grows: texts of the steps, a blank line between them.

    After `restart` the new stream is compared with what was shown: while it says the same, nothing is shown;
    where it goes on, only the new part is; where it goes another way, the text is replaced.
    """

    def __init__(self) -> None:
        self._earlier = ""
        self._step: list[str] = []
        self._expected: str | None = None
        self._received = ""

    @property
    def step_text(self) -> str:
        """What is shown of the current step."""
        return self._expected if self._expected is not None else "".join(self._step)

    @property
    def text(self) -> str:
        step = self.step_text
        return f"{self._earlier}{GAP}{step}" if self._earlier and step else self._earlier or step

    def next_step(self) -> None:
        self._earlier = self.text
        self._step = []
        self._expected = None

    def restart(self) -> None:
        """The current step's stream is sent again from its start."""
        self._expected = self.step_text or None
        self._received = ""

    def feed(self, delta: str) -> TextDelta | TextReplaced | None:
        if not delta:
            return None
        if self._expected is None:
            first = not self._step
            self._step.append(delta)
            return TextDelta(GAP + delta) if first and self._earlier else TextDelta(delta)
        self._received += delta
        if self._expected.startswith(self._received):
            return None
        expected, self._expected = self._expected, None
        self._step = [self._received]
        if self._received.startswith(expected):
            return TextDelta(self._received[len(expected) :])
        return TextReplaced(self.text)

    def end_stream(self) -> TextReplaced | None:
        """The stream is complete; what it did not say again was not meant."""
        if self._expected is None:
            return None
        same = self._expected == self._received
        self._expected = None
        self._step = [self._received] if self._received else []
        return None if same else TextReplaced(self.text)

    def note(self, text: str) -> TextDelta:
        """Adds a line of our own at the end (a cut, a limit, an error)."""
        gap = GAP if self.text else ""
        self._earlier = f"{self.text}{gap}{text}"
        self._step, self._expected = [], None
        return TextDelta(gap + text)
