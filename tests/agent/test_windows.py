"""Windows by model name, the budget they leave, and what is learned of a model."""

from __future__ import annotations

import math

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.calibration import Facts, calibrated
from agent.messages import text_block, user_message
from agent.tokens import estimate_tokens
from agent.windows import UNKNOWN_WINDOW, context_budget, context_window

K = 1024


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("claude-haiku-4-5-20251001", 200_000),
        ("claude-opus-4-20250514", 200_000),
        ("claude-3-5-sonnet-latest", 200_000),
        ("claude-opus-4-6", 1_000_000),
        ("claude-sonnet-5-5", 1_000_000),
        ("claude-fable-5-1", 1_000_000),
        ("anthropic/claude-opus-4.6", 1_000_000),
        ("openrouter: anthropic/claude-sonnet-4.5", 200_000),
        ("openrouter/anthropic/claude-3.7-sonnet:thinking", 200_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("global.anthropic.claude-opus-4-6-v1", 1_000_000),
        ("claude-sonnet-4@20250514", 200_000),
        ("gpt-4o", 128_000),
        ("gpt-4o-mini-2024-07-18", 128_000),
        ("ft:gpt-4o-mini-2024-07-18:org::id", 128_000),
        ("gpt-4.1-nano", 1_047_576),
        ("gpt-4", 8_192),
        ("gpt-4-32k-0613", 32 * K),
        ("gpt-4-turbo", 128_000),
        ("gpt-3.5-turbo", 16_385),
        ("gpt-5-mini", 400_000),
        ("gpt-5.1-codex", 400_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-5.4", 1_050_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-5.6-terra", 1_050_000),
        ("openai/gpt-oss-120b", 131_072),
        ("o1-mini", 128_000),
        ("o3", 200_000),
        ("openai/o4-mini", 200_000),
        ("gemini-2.5-pro", 1_048_576),
        ("models/gemini-3-flash-preview", 1_048_576),
        ("gemini-1.5-pro-002", 2_097_152),
        ("gemma3:12b", 131_072),
        ("deepseek-chat", 131_072),
        ("deepseek/deepseek-v3.2", 131_072),
        ("deepseek-v4-pro", 1_000_000),
        ("deepseek-r1:8b", 131_072),
        ("qwen3", 40_960),
        ("qwen3:8b", 40_960),
        ("qwen3-max", 262_144),
        ("qwen/qwen3-235b-a22b-2507", 262_144),
        ("qwen-plus", 1_000_000),
        ("qwen2.5:7b", 32_768),
        ("glm-4.6", 200_000),
        ("z-ai/glm-5", 200_000),
        ("glm-4-flash", 131_072),
        ("moonshot-v1-8k", 8 * K),
        ("moonshot-v1-128k", 128 * K),
        ("kimi-k2-0905-preview", 262_144),
        ("moonshotai/kimi-k2.5", 262_144),
        ("MiniMax-M2.5", 204_800),
        ("MiniMax-Text-01", 1_000_000),
        ("mistral-large-2512", 262_144),
        ("mistral-large-latest", 131_072),
        ("mistral:7b", 32_768),
        ("codestral-2508", 262_144),
        ("llama-3.3-70b-versatile", 131_072),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 10_000_000),
        ("llama3.1:8b", 131_072),
        ("llama3:8b", 8_192),
        ("grok-4", 256_000),
    ],
)
def test_a_model_is_known_by_its_name_with_any_prefix(model: str, window: int) -> None:
    assert context_window(model, None, None) == window


@pytest.mark.parametrize("model", ["", "my-deployment", "foo1", "proto3", "video3", "gp-t4", "solo1"])
def test_an_unknown_name_gets_a_small_window(model: str) -> None:
    assert context_window(model, None, None) == UNKNOWN_WINDOW


def test_an_unknown_model_is_told_of_once() -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            context_window("never-heard-of-it", None, None)
        context_window("nor-of-this", None, None)
        context_window("claude-sonnet-4-5", None, None)
    assert [(entry["event"], entry["model"]) for entry in logs] == [
        ("windows.unknown_model", "never-heard-of-it"),
        ("windows.unknown_model", "nor-of-this"),
    ]


def test_the_config_outranks_the_name_and_the_providers_word_outranks_both() -> None:
    assert context_window("gpt-4o", 64_000, None) == 64_000
    assert context_window("gpt-4o", 64_000, 48_000) == 48_000
    assert context_window("gpt-4o", 64_000, 128_000) == 64_000
    assert context_window("gpt-4o", None, 48_000) == 48_000
    assert context_window("gpt-4", None, 128_000) == 128_000
    with structlog.testing.capture_logs() as logs:
        assert context_window("learned-but-unknown", None, 9_000) == 9_000
    assert logs == []


def test_the_budget_leaves_room_for_answer_prompt_and_tools() -> None:
    assert context_budget(window=200_000, configured=None, max_output=4_096, fixed_tokens=3_000) == 177_000
    assert context_budget(window=32_000, configured=None, max_output=8_000, fixed_tokens=3_000) == 21_000


def test_a_configured_budget_is_clamped_to_what_the_window_leaves() -> None:
    assert context_budget(window=200_000, configured=50_000, max_output=4_096, fixed_tokens=3_000) == 50_000
    assert context_budget(window=32_000, configured=500_000, max_output=4_096, fixed_tokens=3_000) == 24_904


@given(
    st.integers(1, 2_000_000),
    st.none() | st.integers(1, 2_000_000),
    st.integers(0, 200_000),
    st.integers(0, 200_000),
)
def test_a_budget_is_sane_whatever_the_numbers(
    window: int, configured: int | None, max_output: int, fixed: int
) -> None:
    """An old table entry once left a budget of one token."""
    budget = context_budget(window=window, configured=configured, max_output=max_output, fixed_tokens=fixed)
    assert 1 <= budget <= window
    assert budget >= min(1_000, window // 2)


# --- what is learned --------------------------------------------------------------------------------------


def test_nothing_known_is_a_ratio_of_one() -> None:
    assert Facts().ratio("m") == 1.0
    assert Facts().limit("m") is None


@given(st.lists(st.floats(), max_size=30))
def test_a_ratio_stays_within_its_bounds(ratios: list[float]) -> None:
    facts = Facts()
    for ratio in ratios:
        facts.learn_ratio("m", ratio)
        assert 0.5 <= facts.ratio("m") <= 2.0


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_ratio_comes_near_what_is_reported_without_a_jump(first: float, then: float) -> None:
    facts = Facts()
    facts.learn_ratio("m", first)
    assert facts.ratio("m") == first
    facts.learn_ratio("m", then)
    assert abs(facts.ratio("m") - first) <= abs(then - first) / 2
    for _ in range(40):
        facts.learn_ratio("m", then)
    assert math.isclose(facts.ratio("m"), then, abs_tol=0.01)


def test_models_do_not_know_of_each_other() -> None:
    facts = Facts()
    facts.learn_ratio("a", 1.5)
    facts.learn_limit("a", 9_000)
    assert (facts.ratio("b"), facts.limit("b")) == (1.0, None)


def test_what_is_worth_keeping_is_told_and_nothing_else() -> None:
    told: list[tuple[str, float, int | None]] = []
    facts = Facts(lambda *fact: told.append(fact))
    facts.restore("m", 1.25, None)
    assert told == []
    assert facts.ratio("m") == 1.25
    facts.learn_ratio("m", 1.25)
    facts.learn_ratio("m", 0)
    facts.learn_ratio("m", math.nan)
    assert told == []
    facts.learn_limit("m", 8_000)
    facts.learn_limit("m", 8_000)
    facts.learn_limit("m", 0)
    assert told == [("m", 1.25, 8_000)]
    facts.learn_ratio("m", 2.0)
    assert len(told) == 2


def test_what_was_kept_badly_is_restored_sanely() -> None:
    facts = Facts()
    facts.restore("m", 99.0, -1)
    assert (facts.ratio("m"), facts.limit("m")) == (2.0, None)
    facts.restore("n", math.nan, 5_000)
    assert (facts.ratio("n"), facts.limit("n")) == (1.0, 5_000)


def test_a_calibrated_measure_weighs_by_the_ratio() -> None:
    messages = [user_message(text_block("x" * 396))]
    assert estimate_tokens(messages) == 100
    assert calibrated(estimate_tokens, 1.5)(messages) == 150
