"""The state of one run, and what all runs of a process share. No behaviour but what reads or ends that state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.breaker import LoopBreaker
from agent.cancel import CancelToken
from agent.context import ContextKeeper, ContextLimits
from agent.events import Outcome, Usage
from agent.messages import Message, assistant_message, text_block, without_injected
from agent.ports import Clock, Memory, Model, ModelAnswer, ModelFacts, Tool, ToolContext
from agent.recovery import Recovery, RetryPolicy
from agent.shown import ShownText
from agent.texts import Language, Texts
from agent.toolrun import ToolRunner


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The agent section of the config; `max_turns` counts model calls in one run."""

    context: ContextLimits
    language: Language = "auto"
    max_turns: int = 100
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What all runs of this process share. `models` is the provider and its fallbacks, in order."""

    models: Sequence[Model]
    tools: Mapping[str, Tool]
    settings: AgentSettings
    runner: ToolRunner
    memory: Memory
    facts: ModelFacts
    clock: Clock


class RunEnds(Exception):
    """The run ends here, with a line for the user."""

    def __init__(self, outcome: Outcome, notice: str) -> None:
        super().__init__(notice)
        self.outcome = outcome
        self.notice = notice


@dataclass(slots=True)
class Run:
    """One run. `head` is its user message, found again by identity; `models` shrinks with each fallback;
    `kept` is what was new when a reset cleared the messages."""

    head: Message
    messages: list[Message]
    token: CancelToken
    tool_context: ToolContext
    texts: Texts
    models: list[Model]
    keeper: ContextKeeper
    recovery: Recovery
    breaker: LoopBreaker
    shown: ShownText = field(default_factory=ShownText)
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    answer: ModelAnswer | None = None
    kept: list[Message] | None = None

    @property
    def model(self) -> Model:
        return self.models[0]

    def keep_partial(self) -> None:
        """Text of a step whose answer never came whole, as far as it was shown; a whole one is kept already."""
        partial = self.shown.step_text
        if self.answer is None and partial.strip() and self.messages[-1]["role"] == "user":
            self.messages.append(assistant_message(text_block(partial)))

    def new_messages(self) -> list[Message]:
        """What this run added, its head included: from the tail back to the head, by identity (§6)."""
        if self.kept is not None:
            return self.kept
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index] is self.head:
                return without_injected(self.messages[index:])
        raise AssertionError("the user's message is never dropped from its own run")
