"""The config file's contract as pydantic models: every key, its default, its bounds (bridge-and-channels §2).

Reading the file, and telling what is wrong with it, is bridge.config. Where a check here raises ValueError, its
text is what the person reads behind file, line and key.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

NOT_YET = "is not in this version yet; take it out"


class Section(BaseModel):
    """One block of the file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _filled(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise ValueError("is empty; put the key in, or set the environment variable that it names")
    return secret


def _telegram_token(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"\d+:[A-Za-z0-9_-]{30,}", _filled(secret).get_secret_value()):
        raise ValueError("is no bot token (they look like 123456789:AA…); @BotFather gives one with /newbot")
    return secret


def _slack_bot_token(secret: SecretStr) -> SecretStr:
    return _slack_token(secret, "xoxb-", "the Bot User OAuth Token, under OAuth & Permissions of your app")


def _slack_app_token(secret: SecretStr) -> SecretStr:
    return _slack_token(secret, "xapp-", "an App-Level Token with connections:write, under Basic Information")


def _slack_token(secret: SecretStr, prefix: str, where: str) -> SecretStr:
    value = _filled(secret).get_secret_value()
    if not value.startswith(prefix):
        kinds = {"xoxb-": "a bot token", "xapp-": "an app token", "xoxp-": "a user token"}
        kind = next((name for start, name in kinds.items() if value.startswith(start)), "something else")
        raise ValueError(f"must start with {prefix} and this is {kind}; take {where}")
    return secret


def _telegram_url(url: str) -> str:
    if not re.fullmatch(r"https?://.+/bot", url):
        raise ValueError('must be an http(s) address that ends in "/bot", as https://api.telegram.org/bot does')
    return url


def _http_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise ValueError("must be an http(s) address")
    return url


def _anthropic_url(url: str) -> str:
    if _http_url(url).rstrip("/").endswith("/v1"):
        raise ValueError('must not end in "/v1"; the SDK adds that')
    return url


Key = Annotated[SecretStr, AfterValidator(_filled)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "pretty", "json"] = Field(
        "auto", description="auto: pretty on a terminal, else JSON lines"
    )


class _Remote(Section):
    model: str = Field(min_length=1, description="the model's id, as the provider names it")
    api_key: Key
    max_output_tokens: int = Field(4096, ge=1)
    context_window: int | None = Field(None, ge=1024, description="tokens; null: from the table of known models")
    timeout: float = Field(120, gt=0, description="seconds, also the longest silence inside a stream")


class AnthropicProvider(_Remote):
    kind: Literal["anthropic"]
    base_url: Annotated[str, AfterValidator(_anthropic_url)] | None = Field(
        None, description="null: Anthropic's own"
    )


class OpenAIProvider(_Remote):
    kind: Literal["openai"]
    base_url: HttpUrl | None = Field(None, description="null: OpenAI's own; most others end in /v1")


class OfflineProvider(Section):
    kind: Literal["offline"]


Provider = Annotated[AnthropicProvider | OpenAIProvider | OfflineProvider, Field(discriminator="kind")]

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant in a chat. Answer in the language of the person you talk to, briefly and "
    "plainly, in Markdown where it helps."
)

Delays = Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=10)]


class RetrySettings(Section):
    rate_limit_delays: Delays = Field((30, 45, 60), description="seconds before each retry after a 429")
    delays: Delays = Field((2, 4, 6), description="seconds before each retry after other passing errors")
    max_wait: float = Field(120, ge=0, description="seconds; the longest Retry-After that is obeyed")


class AgentSection(Section):
    provider: str | None = Field(None, description="a name from providers; null: the only one there, else offline")
    fallback: tuple[str, ...] = Field((), description="provider names, tried in order")
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    language: Literal["auto", "en", "zh"] = Field("auto", description="of the bot's own texts; auto: the user's")
    max_turns: int = Field(100, ge=1, description="steps in one run")
    max_context_turns: int = Field(20, ge=1)
    max_context_tokens: int | None = Field(None, ge=1000, description="null: from the model's window")
    retry: RetrySettings = RetrySettings()
    tool_timeout: float = Field(60, gt=0, description="seconds for one tool call")


class Switch(Section):
    enabled: bool = True


def _not_yet(switch: OffSwitch) -> OffSwitch:
    if switch.enabled:
        raise ValueError(NOT_YET)
    return switch


class OffSwitch(Section):
    enabled: bool = False


Later = Annotated[OffSwitch, AfterValidator(_not_yet)]


def _empty(value: dict[str, object] | None) -> dict[str, object] | None:
    if value:
        raise ValueError(NOT_YET)
    return value


LaterMapping = Annotated[dict[str, object], AfterValidator(_empty)]


class ToolsSection(Section):
    time: Switch = Switch()
    calculator: Switch = Switch()
    memory: Later = OffSwitch()
    reminders: Later = OffSwitch()
    web_fetch: Later = OffSwitch()
    mcp: LaterMapping = Field(default_factory=dict)


Busy = Literal["queue", "interrupt", "steer"]
BUSY_HELP = "a message during a run: answered next (queue), instead (interrupt) or within it (steer)"


class SessionSection(Section):
    busy: Busy = Field("queue", description=BUSY_HELP)
    queue_limit: int = Field(20, ge=1, description="messages that wait in one conversation")
    max_running: int = Field(64, ge=1, description="answers that run at the same time")
    idle_evict: float = Field(3600, gt=0, description="seconds until an idle conversation leaves memory")
    shutdown_grace: float = Field(20, ge=0, description="seconds that running answers get at shutdown")


class ConsoleSettings(Section):
    busy: Busy | None = Field(None, description="null: as session.busy")


class TelegramSettings(Section):
    token: Annotated[SecretStr, AfterValidator(_telegram_token)]
    base_url: Annotated[str, AfterValidator(_telegram_url)] = "https://api.telegram.org/bot"
    mode: Literal["polling", "webhook"] = "polling"
    webhook: dict[str, object] | None = None
    allow: tuple[int | str, ...] = Field((), description="user ids; others pair with a code (steadybot allow)")
    admins: tuple[int | str, ...] = Field((), description="user ids that may stop anybody's answer")
    group_trigger: Literal["mention", "all"] = "mention"
    busy: Busy | None = Field(None, description="null: as session.busy")


class SlackSettings(Section):
    bot_token: Annotated[SecretStr, AfterValidator(_slack_bot_token)]
    app_token: Annotated[SecretStr, AfterValidator(_slack_app_token)]
    signing_secret: SecretStr | None = Field(None, description="for mode http only")
    base_url: HttpUrl = "https://slack.com/api/"
    mode: Literal["socket", "http"] = "socket"
    http: dict[str, object] | None = None
    allow: Literal["workspace"] | tuple[str, ...] = Field("workspace", description="or a list of member ids")
    admins: tuple[str, ...] = ()
    thread_replies: bool = Field(True, description="answer in a thread the bot is in without a new mention")
    busy: Busy | None = Field(None, description="null: as session.busy")


class ChannelsSection(Section):
    console: ConsoleSettings | None = None
    telegram: TelegramSettings | None = None
    slack: SlackSettings | None = None


class HealthSection(Section):
    host: str = "127.0.0.1"
    port: Annotated[int | None, Field(ge=1, le=65535)] = Field(
        None, description="set: /healthz, /readyz, /metrics"
    )


class Settings(Section):
    """The whole config file."""

    data_dir: str = Field("./data", min_length=1, description="the database, memory files, the lock")
    log: LogSettings = LogSettings()
    providers: dict[str, Provider] = Field(default_factory=dict, description="any number, any names")
    agent: AgentSection = AgentSection()
    tools: ToolsSection = ToolsSection()
    session: SessionSection = SessionSection()
    channels: ChannelsSection = ChannelsSection(console=ConsoleSettings())
    health: HealthSection = HealthSection()
