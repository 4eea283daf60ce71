"""How many tokens a model takes, and how many of them a context may use (four-defences §2, Budget)."""

from __future__ import annotations

import re

import structlog

log = structlog.get_logger()

UNKNOWN_WINDOW = 32_000
"""Tokens assumed for a model that no pattern names: small enough for most, corrected by the first overflow."""

ANSWER_SHARE = 0.1
"""Of the window, left free for the answer at least."""

LEAST_BUDGET = 1_000
"""Tokens; below this a context holds no conversation, however large the system prompt is."""

_K = 1_024
# The first pattern found in the name wins, so that the special stand before the general. Names come with
# prefixes (openrouter: anthropic/…, models/…, us.anthropic.…) and suffixes (:8b, -preview, @20250929).
_TABLE: tuple[tuple[str, int], ...] = (
    # A size in the name itself outranks a family: moonshot-v1-32k, gpt-3.5-turbo-16k, qwen-plus-128k.
    (r"[-_](\d{1,4})k(?![a-z0-9])", -1),
    (r"[-_\[]1m(?![a-z0-9])", 1_000_000),
    # Anthropic
    (r"claude-(?:instant|v?2\.0|v?1)", 100_000),
    (r"claude-(?:fable|mythos)|claude-(?:(?:opus|sonnet|haiku)-)?(?:4[-.][6-9](?!\d)|[5-9](?!\d))", 1_000_000),
    (r"claude|(?:^|[/.])(?:opus|sonnet|haiku)\b", 200_000),
    # OpenAI
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-5\.[4-9](?!.*(?:mini|nano))|gpt-[6-9]", 1_050_000),
    (r"gpt-5(?:\.\d)?-chat", 128_000),
    (r"gpt-5|codex", 400_000),
    (r"gpt-oss", 131_072),
    (r"gpt-4o|chatgpt-4o|gpt-4-(?:turbo|1106|0125|vision)|gpt-4\.5", 128_000),
    (r"gpt-4", 8_192),
    (r"gpt-3\.5-turbo-instruct", 4_096),
    (r"gpt-(?:3\.5|35)", 16_385),
    (r"(?:^|[/.:_-])o1-(?:mini|preview)", 128_000),
    (r"(?:^|[/.:_ -])o[1-9](?![a-z0-9])", 200_000),
    # Google
    (r"gemini-1\.5-pro", 2_097_152),
    (r"gemini-(?:1\.0|pro(?!-latest))", 32_768),
    (r"gemini-.*(?:image|tts|live|audio)", 32_768),
    (r"gemini", 1_048_576),
    (r"gemma-?[3-9](?::|-)(?:270m|1b)", 32_768),
    (r"gemma-?[3-9]", 131_072),
    (r"gemma|codegemma", 8_192),
    # DeepSeek (R1's distilled models have the window of what they were distilled into)
    (r"deepseek-?v[4-9]|deepseek-v\d{2}", 1_000_000),
    (r"deepseek", 131_072),
    # Qwen
    (r"qwen-?long", 10_000_000),
    (r"qwen-?(?:turbo|flash)|qwen-?plus|qwen3\.[5-9]-(?:plus|flash)|qwen3-coder-(?:plus|flash)", 1_000_000),
    (r"qwen3\.[5-9]|qwen3-(?:max|next|coder)|qwen3-.*-2507|qwen3-vl", 262_144),
    (r"qwen3(?::|-)(?:0\.6b|1\.7b|4b)", 32_768),
    (r"qwen3$|qwen3:", 40_960),
    (r"qwen3|qwq", 131_072),
    (r"qwen-?max", 32_768),
    (r"qwen-?vl-max", 131_072),
    (r"qwen", 32_768),
    # Zhipu
    (r"glm-?(?:4\.[6-9]v)", 131_072),
    (r"glm-?(?:4\.[6-9]|5)", 200_000),
    (r"glm-?4-long", 1_000_000),
    (r"glm|codegeex", 131_072),
    # Moonshot
    (r"kimi-?k2\.[5-9]|kimi-?k[3-9]|kimi-k2-(?:0905|thinking|turbo)|kimi-for-coding", 262_144),
    (r"kimi|moonshot", 131_072),
    # MiniMax
    (r"minimax-?(?:m1|text)", 1_000_000),
    (r"minimax|abab", 204_800),
    # Mistral
    (r"ministral-3|mistral-(?:large-25|large-3|medium-2[6-9])|codestral|devstral", 262_144),
    (r"mistral-(?:small|medium|large|nemo)|magistral|pixtral|ministral", 131_072),
    (r"mixtral-?(?:8x22b)", 65_536),
    (r"mistral|mixtral", 32_768),
    # Meta
    (r"llama-?4.*scout|llama-?4:16x17b", 10_000_000),
    (r"llama-?4", 1_048_576),
    (r"llama-?v?3(?:\.|p)?[1-3]", 131_072),
    (r"llama-?v?3", 8_192),
    (r"codellama|code-llama", 16_384),
    (r"llama-?2", 4_096),
    # Others
    (r"grok-(?:4(?:\.\d+)?-(?:\d-)?fast|4\.[1-9])", 2_000_000),
    (r"grok-(?:4|code)", 256_000),
    (r"grok", 131_072),
    (r"command-a", 256_000),
    (r"command-r|command", 128_000),
    (r"nova-(?:premier|2)", 1_000_000),
    (r"nova-(?:pro|lite)", 300_000),
    (r"nova-micro", 128_000),
    (r"phi-?(?:3|4)(?:\.5)?-(?:mini|small|medium|moe)|phi-?3(?:\.5)?|phi4-mini", 131_072),
    (r"phi-?4", 16_384),
    (
        r"granite-?(?:3\.[1-9]|4)|nemotron|hermes-[34]|hunyuan|ernie-[45]|doubao|seed-|step-[23]|mimo|longcat",
        131_072,
    ),
)
_PATTERNS = tuple((re.compile(pattern), window) for pattern, window in _TABLE)
_told: set[str] = set()


def context_window(model_id: str, configured: int | None, learned: int | None) -> int:
    """The model's window in tokens.

    As configured, but never above what the provider named in an error (`learned`); else what it named; else by
    the model's name. An unknown name gives 32,000, and one log line for each such model.
    """
    if configured is not None:
        return configured if learned is None else min(configured, learned)
    window = learned or _by_name(model_id)
    if window is None:
        _tell_once(model_id)
        window = UNKNOWN_WINDOW
    return window


def context_budget(*, window: int, configured: int | None, max_output: int, fixed_tokens: int) -> int:
    """Tokens that the messages may take.

    The window less 10 % or `max_output`, whichever is more, less `fixed_tokens`: system prompt and tool schemas.
    `configured` (max_context_tokens) where that is less. At least 1,000, or half of a window that is smaller
    than twice that.
    """
    room = window - max(int(window * ANSWER_SHARE), max_output) - fixed_tokens
    if configured is not None:
        room = min(configured, room)
    return max(room, min(LEAST_BUDGET, window // 2), 1)


def _by_name(model_id: str) -> int | None:
    name = model_id.strip().lower().replace(" ", "-")
    for pattern, window in _PATTERNS:
        if found := pattern.search(name):
            return window if window > 0 else int(found[1]) * _K
    return None


def _tell_once(model_id: str) -> None:
    if model_id not in _told:
        _told.add(model_id)
        log.warning(
            "windows.unknown_model",
            model=model_id,
            assumed=UNKNOWN_WINDOW,
            mend="set context_window of this provider in the config",
        )
