"""The config file's contract as pydantic models: every key, its default, its bounds (bridge-and-channels.md §2).

Reading the file, and telling what is wrong with it, is bridge.config.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "pretty", "json"] = "auto"


class _Remote(_Section):
    model: str
    api_key: SecretStr
    base_url: str | None = None
    max_output_tokens: int = Field(4096, ge=1)
    context_window: int | None = Field(None, ge=1024)
    timeout: float = Field(120, gt=0, description="seconds; also the longest silence inside a stream")


class AnthropicProvider(_Remote):
    kind: Literal["anthropic"]


class OpenAIProvider(_Remote):
    kind: Literal["openai"]


class OfflineProvider(_Section):
    kind: Literal["offline"]


Provider = Annotated[AnthropicProvider | OpenAIProvider | OfflineProvider, Field(discriminator="kind")]

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant in a chat. Answer in the language of the person you talk to, briefly and "
    "plainly, in Markdown where it helps."
)

Delays = Annotated[tuple[float, ...], Field(max_length=10)]


class RetrySettings(_Section):
    rate_limit_delays: Delays = (30, 45, 60)
    delays: Delays = (2, 4, 6)
    max_wait: float = Field(120, ge=0, description="seconds; the longest Retry-After that is obeyed")


class AgentSection(_Section):
    provider: str | None = Field(None, description="a name from providers; null: the only one, or offline")
    fallback: tuple[str, ...] = ()
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    language: Literal["auto", "en", "zh"] = "auto"
    max_turns: int = Field(100, ge=1)
    max_context_turns: int = Field(20, ge=1)
    max_context_tokens: int | None = Field(None, ge=1000)
    retry: RetrySettings = RetrySettings()
    tool_timeout: float = Field(60, gt=0)


class Switch(_Section):
    enabled: bool = True


class OffSwitch(_Section):
    enabled: bool = False


class ToolsSection(_Section):
    time: Switch = Switch()
    calculator: Switch = Switch()


class SessionSection(_Section):
    busy: Literal["queue", "interrupt", "steer"] = "queue"
    idle_evict: float = Field(3600, gt=0)
    shutdown_grace: float = Field(20, ge=0)


Busy = Literal["queue", "interrupt", "steer"]


class ConsoleSettings(_Section):
    busy: Busy | None = None


class TelegramSettings(_Section):
    token: SecretStr
    base_url: str = "https://api.telegram.org/bot"
    mode: Literal["polling"] = "polling"
    allow: tuple[int | str, ...] = Field((), description="numeric user ids; others pair with a code")
    admins: tuple[int | str, ...] = ()
    group_trigger: Literal["mention", "all"] = "mention"
    busy: Busy | None = None


class SlackSettings(_Section):
    bot_token: SecretStr
    app_token: SecretStr
    base_url: str = "https://slack.com/api/"
    mode: Literal["socket"] = "socket"
    allow: Literal["workspace"] | tuple[str, ...] = "workspace"
    admins: tuple[str, ...] = ()
    thread_replies: bool = Field(True, description="answer in a thread the bot is in without a new mention")
    busy: Busy | None = None


class ChannelsSection(_Section):
    console: ConsoleSettings | None = None
    telegram: TelegramSettings | None = None
    slack: SlackSettings | None = None


class Settings(_Section):
    """The whole config file."""

    data_dir: str = "./data"
    log: LogSettings = LogSettings()
    providers: dict[str, Provider] = Field(default_factory=dict)
    agent: AgentSection = AgentSection()
    tools: ToolsSection = ToolsSection()
    session: SessionSection = SessionSection()
    channels: ChannelsSection = ChannelsSection(console=ConsoleSettings())
