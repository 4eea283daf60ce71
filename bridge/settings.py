"""The config file's contract as pydantic models: every key, its default, its bounds (bridge-and-channels §2).

Reading the file and telling what is wrong in it is bridge.config; what each kind of value may be, bridge._values.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, Field, SecretStr, Tag, model_validator
from pydantic.fields import FieldInfo

from bridge._values import (
    AnthropicUrl,
    Delays,
    OpenAIUrl,
    Seconds,
    SecondsOrNone,
    Secret,
    SlackAppToken,
    SlackBotToken,
    SlackId,
    SlackUrl,
    TelegramId,
    TelegramToken,
    TelegramUrl,
    Whole,
    Workspace,
)


class Section(BaseModel):
    """One block of the file: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, data: object) -> object:
        """An empty block (all its keys are commented out) is its defaults; an empty text is null where null may
        be, so that `base_url: "${NAME:-}"` works."""
        if not isinstance(data, dict):
            return data
        return {
            key: None if value == "" and _may_be_null(cls.model_fields.get(key)) else value
            for key, value in data.items()
            if value is not None or not _is_block(cls.model_fields.get(key))
        }


def types_in(annotation: object) -> Iterator[object]:
    """The types an annotation is made of: a union's members, an Annotated's type, a list's or mapping's values."""
    if get_origin(annotation) in (Annotated, Union, UnionType, dict, tuple):
        for part in get_args(annotation):
            yield from types_in(part)
    else:
        yield annotation


def _may_be_null(field: FieldInfo | None) -> bool:
    """Whether null is among the values. A secret that is empty is a slip and stays one."""
    types = list(types_in(field.annotation)) if field is not None else []
    return type(None) in types and SecretStr not in types


def _is_block(field: FieldInfo | None) -> bool:
    annotation = field.annotation if field is not None else None
    return get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section))


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="with the console channel on: warning, unless set"
    )
    format: Literal["auto", "pretty", "json"] = Field(
        "auto", description="auto: pretty on a terminal, JSON lines elsewhere"
    )


class _Remote(Section):
    model: str = Field(min_length=1, description="the model's id, as the provider names it")
    api_key: Secret = Field(description="a server without keys still wants a word here, such as none")
    max_output_tokens: Whole = Field(4096, ge=1, description="the longest answer")
    context_window: Whole | None = Field(None, ge=1024, description="tokens; null: from the table of known models")
    timeout: Seconds = Field(120, description="seconds, also the longest silence inside a stream")


class AnthropicProvider(_Remote):
    """Anthropic, and what speaks its Messages API."""

    kind: Literal["anthropic"] = Field(description="anthropic, openai or offline")
    base_url: AnthropicUrl | None = Field(None, description="null: Anthropic's own; without /v1")


class OpenAIProvider(_Remote):
    """OpenAI, and everything that speaks its Chat Completions."""

    kind: Literal["openai"] = Field(description="anthropic, openai or offline")
    base_url: OpenAIUrl | None = Field(None, description="null: OpenAI's own; most others end in /v1")


class OfflineProvider(Section):
    """Built in, no key, no network."""

    kind: Literal["offline"] = Field(description="anthropic, openai or offline")


Provider = Annotated[AnthropicProvider | OpenAIProvider | OfflineProvider, Field(discriminator="kind")]

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant in a chat. Answer in the language of the person you talk to, briefly and "
    "plainly, in Markdown where it helps."
)


class RetrySettings(Section):
    rate_limit_delays: Delays = Field((30, 45, 60), description="seconds before each retry after a rate limit")
    delays: Delays = Field((2, 4, 6), description="seconds before each retry after other passing errors")
    max_wait: SecondsOrNone = Field(120, description="seconds; the longest wait that a provider may ask for")


class AgentSection(Section):
    provider: str | None = Field(None, description="a name from providers; null: the only one there, else offline")
    fallback: tuple[str, ...] = Field((), description="provider names, tried in order when the first can't answer")
    system_prompt: str = Field(DEFAULT_SYSTEM_PROMPT, description="what the model is told before everything else")
    language: Literal["auto", "en", "zh"] = Field("auto", description="of the bot's own texts; auto: the user's")
    max_turns: Whole = Field(100, ge=1, description="steps (model calls) in one run")
    max_context_turns: Whole = Field(20, ge=1, description="turns of the conversation that the model is given")
    max_context_tokens: Whole | None = Field(None, ge=1000, description="null: from the model's window")
    retry: RetrySettings = Field(RetrySettings(), description="how often and after how long to ask again")
    tool_timeout: Seconds = Field(60, description="seconds for one tool call")


class Switch(Section):
    enabled: bool = Field(True, description="false: the model does not get this tool")


class OffSwitch(Section):
    enabled: bool = Field(False, description="true: the model gets this tool")


class ToolsSection(Section):
    time: Switch = Field(Switch(), description="what time it is, anywhere")
    calculator: Switch = Field(Switch(), description="arithmetic that is right")
    memory: OffSwitch = Field(OffSwitch(), description="what the bot keeps of a conversation")
    reminders: OffSwitch = Field(OffSwitch(), description="messages at a later time")
    web_fetch: OffSwitch = Field(OffSwitch(), description="reading public web pages")
    mcp: dict[str, object] = Field(default_factory=dict, description="name: {command: […], env: {…}} or {url: …}")


Busy = Literal["queue", "interrupt", "steer"]
BUSY_HELP = "a message during a run: answered next (queue), instead (interrupt) or within it (steer)"


class SessionSection(Section):
    busy: Busy = Field("queue", description=BUSY_HELP)
    queue_limit: Whole = Field(20, ge=1, description="messages that wait in one conversation")
    max_running: Whole = Field(64, ge=1, description="answers that run at the same time")
    idle_evict: Seconds = Field(3600, description="seconds until an idle conversation leaves memory")
    shutdown_grace: SecondsOrNone = Field(20, description="seconds that running answers get at shutdown")


BUSY_HERE = "as session.busy, for this channel; null: as there"


class ConsoleSettings(Section):
    busy: Busy | None = Field(None, description=BUSY_HERE)


class TelegramSettings(Section):
    token: TelegramToken = Field(description="from @BotFather")
    base_url: TelegramUrl = Field("https://api.telegram.org/bot", description="of your own Bot API server, if any")
    mode: Literal["polling", "webhook"] = Field("polling", description="how updates come in")
    webhook: dict[str, object] | None = Field(
        None, description="for mode webhook: {url: …, host: 127.0.0.1, port: 8443, secret: null}"
    )
    allow: tuple[TelegramId, ...] = Field((), description="user ids; others pair with a code (steadybot allow)")
    admins: tuple[TelegramId, ...] = Field((), description="user ids that may stop anybody's answer")
    group_trigger: Literal["mention", "all"] = Field(
        "mention", description="in groups: answer mentions and replies, or all that is said"
    )
    busy: Busy | None = Field(None, description=BUSY_HERE)


def _allow_tag(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


SlackAllow = Annotated[
    Annotated[Workspace, Tag("word")] | Annotated[tuple[SlackId, ...], Tag("list")],
    Discriminator(_allow_tag),
]


class SlackSettings(Section):
    bot_token: SlackBotToken = Field(description="xoxb-…")
    app_token: SlackAppToken = Field(description="xapp-…")
    signing_secret: Secret | None = Field(None, description="for mode http")
    base_url: SlackUrl = Field("https://slack.com/api/", description="for tests")
    mode: Literal["socket", "http"] = Field("socket", description="how events come in")
    http: dict[str, object] | None = Field(None, description="for mode http")
    allow: SlackAllow = Field("workspace", description="all members, or a list of member ids")
    admins: tuple[SlackId, ...] = Field((), description="member ids that may stop anybody's answer")
    thread_replies: bool = Field(True, description="answer in a thread the bot is in without a new mention")
    busy: Busy | None = Field(None, description=BUSY_HERE)


class ChannelsSection(Section):
    console: ConsoleSettings | None = Field(None, description="the terminal")
    telegram: TelegramSettings | None = Field(None, description="docs/setup-telegram.md")
    slack: SlackSettings | None = Field(None, description="docs/setup-slack.md")


class HealthSection(Section):
    host: str = Field("127.0.0.1", min_length=1, description="where to listen")
    port: Whole | None = Field(None, ge=1, le=65535, description="set: /healthz, /readyz, /metrics")


class Settings(Section):
    """The whole config file."""

    data_dir: str = Field("./data", min_length=1, description="the database, memory files, the lock")
    retention_days: Whole | None = Field(None, ge=1, description="older messages are deleted; null: none is")
    log: LogSettings = Field(LogSettings(), description="what is told, and how")
    providers: dict[str, Provider] = Field(default_factory=dict, description="models: any number, any names")
    agent: AgentSection = Field(AgentSection(), description="who answers, and within which bounds")
    tools: ToolsSection = Field(ToolsSection(), description="each can be switched off")
    session: SessionSection = Field(SessionSection(), description="conversations")
    channels: ChannelsSection = Field(
        ChannelsSection(console=ConsoleSettings()), description="where people talk to the bot; present: on"
    )
    health: HealthSection = Field(HealthSection(), description="for whoever watches over the bot")
