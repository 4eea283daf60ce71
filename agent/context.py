"""What goes to the model: the budget, what it weighs, and the in-place work on the list of messages.

One per run. It remembers what of the list was weighed and repaired already, so that a call in the loop costs
what is new and not what is old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agent.events import DefenceActed, Usage
from agent.messages import Message, blocks_of
from agent.ports import Model, ModelFacts, ToolSpec
from agent.repair import Repairer
from agent.texts import Texts
from agent.tokens import estimate_text_tokens, estimate_tokens, estimate_tools_tokens
from agent.trimming import TrimReport, smart_compact_to_budget, trim_messages
from agent.turns import Turn, identify_complete_turns
from agent.windows import context_budget, context_window


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """The part of the agent's settings that a context is cut by; `max_context_tokens` None: from the window."""

    system_prompt: str
    max_context_turns: int = 20
    max_context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What an overflow's compaction did; `smaller` False: nothing could be taken away."""

    smaller: bool
    dropped: tuple[Turn, ...]


class ContextKeeper:
    """Weighs, trims, compacts and repairs the messages of one run."""

    def __init__(self, limits: ContextLimits, tools: Sequence[ToolSpec], facts: ModelFacts, texts: Texts) -> None:
        self.tool_specs = tuple(tools)
        self._texts = texts
        self._limits = limits
        self._facts = facts
        self._fixed = estimate_text_tokens(limits.system_prompt) + estimate_tools_tokens(self.tool_specs)
        self._repairer = Repairer(texts)
        self._weighed = 0
        self._weight = 0

    def window(self, model: Model) -> int:
        return context_window(model.model, model.context_window, self._facts.limit(model.model))

    def tokens(self, messages: Sequence[Message], model: Model) -> int:
        """The calibrated estimate of a whole request with these messages."""
        return round((self._fixed + self._raw(messages)) * self._facts.ratio(model.model))

    def trim(self, messages: list[Message], model: Model) -> TrimReport:
        report = trim_messages(
            messages,
            max_turns=self._limits.max_context_turns,
            budget=self._budget(model, self.window(model)),
            measure=self._measure(model),
            texts=self._texts,
        )
        self._changed()
        return report

    @staticmethod
    def acted(report: TrimReport) -> Iterator[DefenceActed]:
        if report.truncated:
            yield DefenceActed("trim.results", {"cut": report.truncated})
        if report.compressed:
            yield DefenceActed("trim.compress", {"turns": report.compressed})
        if report.dropped:
            fields = {
                "dropped": len(report.dropped),
                "tokens_before": report.tokens_before,
                "tokens_after": report.tokens_after,
            }
            yield DefenceActed("trim.turns", fields)

    def compact(self, messages: list[Message], model: Model, limit: int | None) -> CompactReport:
        """Against the provider's own limit, which is remembered for this model (§5.4)."""
        if limit is not None:
            self._facts.learn_limit(model.model, limit)
        dropped: list[Turn] = []
        smaller = smart_compact_to_budget(
            messages,
            budget=None if limit is None else self._budget(model, limit),
            measure=self._measure(model),
            texts=self._texts,
            on_drop=dropped.extend,
        )
        self._changed()
        return CompactReport(smaller, tuple(dropped))

    def repair(self, messages: list[Message]) -> Iterator[DefenceActed]:
        """Defence 2, before every model call; costs what is new since the last call."""
        repairs = self._repairer.repair(messages)
        if repairs:
            self._weighed = self._weight = 0
            yield DefenceActed("repair", {"repairs": repairs})

    def sanitize_all(self, messages: list[Message], *, drop_thinking: bool) -> DefenceActed:
        """The whole list anew, after a provider refused its form."""
        if drop_thinking:
            self.drop_thinking(messages)
        self._changed()
        return DefenceActed("recovery.sanitize", {"repairs": self._repairer.repair(messages)})

    def drop_thinking(self, messages: list[Message]) -> None:
        """Takes thinking blocks out: another model can't check their signatures."""
        for message in messages:
            blocks = blocks_of(message)
            kept = [block for block in blocks if block["type"] not in ("thinking", "redacted_thinking")]
            if len(kept) != len(blocks):
                message["content"] = kept
        self._changed()

    def clear(self, messages: list[Message], head: Message) -> list[Turn]:
        """Leaves only this run's query, and returns the turns that went."""
        gone = identify_complete_turns([message for message in messages if message is not head])
        messages[:] = [head]
        self._changed()
        return gone

    def learn(self, messages: Sequence[Message], model: Model, usage: Usage) -> None:
        """Calibrates the estimate by what the provider counted for these messages, before the answer is added."""
        estimated = self._fixed + self._raw(messages)
        if usage.input_tokens > 0 and estimated > 0:
            self._facts.learn_ratio(model.model, usage.input_tokens / estimated)

    def _budget(self, model: Model, window: int) -> int:
        return context_budget(
            window=window,
            configured=self._limits.max_context_tokens,
            max_output=model.max_output_tokens,
            fixed_tokens=round(self._fixed * self._facts.ratio(model.model)),
        )

    def _measure(self, model: Model) -> Callable[[Sequence[Message]], int]:
        ratio = self._facts.ratio(model.model)
        return lambda messages: round(estimate_tokens(messages) * ratio)

    def _raw(self, messages: Sequence[Message]) -> int:
        if self._weighed > len(messages):
            self._weighed = self._weight = 0
        self._weight += estimate_tokens(messages[self._weighed :])
        self._weighed = len(messages)
        return self._weight

    def _changed(self) -> None:
        self._repairer.forget()
        self._weighed = self._weight = 0
