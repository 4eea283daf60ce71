"""From the config to the parts it names: models, tools, channels, policies. SDKs that are off are not imported."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from agent.context import ContextLimits
from agent.executor import AgentSettings
from agent.ports import Model, Tool
from agent.recovery import RetryPolicy
from bridge.access import AccessPolicy
from bridge.sessions import Busy
from bridge.settings import AnthropicProvider, OfflineProvider, OpenAIProvider, Provider, Settings
from channels.base import Channel


class ChannelFactory(Protocol):
    """`open_channel` of a platform's package; `data_dir` is for what the channel itself keeps."""

    def __call__(self, settings: object, *, data_dir: Path) -> Channel: ...


CHANNELS = {
    "console": "channels.console",
    "telegram": "channels.telegram",
    "slack": "channels.slack",
}
"""A new platform is one folder and one line here; its `open_channel` takes its settings and the data directory."""


def open_models(settings: Settings) -> list[Model]:
    """The provider and its fallbacks, in the order in which they are tried."""
    name = settings.agent.provider or next(iter(settings.providers), "offline")
    providers = {"offline": OfflineProvider(kind="offline"), **settings.providers}
    return [_open_model(each, providers[each]) for each in (name, *settings.agent.fallback)]


def _open_model(name: str, provider: Provider) -> Model:
    match provider:
        case AnthropicProvider():
            from agent.models.anthropic import AnthropicModel

            return AnthropicModel(
                name=name,
                model=provider.model,
                api_key=provider.api_key.get_secret_value(),
                base_url=provider.base_url,
                max_output_tokens=provider.max_output_tokens,
                context_window=provider.context_window,
                timeout=provider.timeout,
            )
        case OpenAIProvider():
            from agent.models.openai import OpenAIModel

            return OpenAIModel(
                name=name,
                model=provider.model,
                api_key=provider.api_key.get_secret_value(),
                base_url=provider.base_url,
                max_output_tokens=provider.max_output_tokens,
                context_window=provider.context_window,
                timeout=provider.timeout,
            )
        case OfflineProvider():
            from agent.models.offline import OfflineModel

            return OfflineModel(name)


def summary_model(models: Sequence[Model]) -> Model | None:
    """The model that writes summaries; the offline one answers by rule and can't."""
    from agent.models.offline import OfflineModel

    return None if isinstance(models[0], OfflineModel) else models[0]


def open_tools(settings: Settings) -> dict[str, Tool]:
    from agent.tools.calculator import calculator
    from agent.tools.time import time

    tools: list[Tool] = []
    if settings.tools.time.enabled:
        tools.append(time)
    if settings.tools.calculator.enabled:
        tools.append(calculator)
    return {tool.spec.name: tool for tool in tools}


def open_channels(settings: Settings, data_dir: Path) -> dict[str, Channel]:
    """The channels that are on. Raises ChannelSetupError where one can tell from its settings alone."""
    channels: dict[str, Channel] = {}
    for name, module in CHANNELS.items():
        section = getattr(settings.channels, name)
        if section is not None:
            # By name, so that the bridge depends on no platform and an SDK that is off stays unimported.
            factory = cast("ChannelFactory", importlib.import_module(module).open_channel)
            channels[name] = factory(section, data_dir=data_dir)
    return channels


def agent_settings(settings: Settings) -> AgentSettings:
    agent = settings.agent
    return AgentSettings(
        context=ContextLimits(agent.system_prompt, agent.max_context_turns, agent.max_context_tokens),
        language=agent.language,
        max_turns=agent.max_turns,
        retry=RetryPolicy(agent.retry.rate_limit_delays, agent.retry.delays, agent.retry.max_wait),
    )


def access_policies(settings: Settings) -> dict[str, AccessPolicy]:
    policies = {"console": AccessPolicy("everyone")}
    if (telegram := settings.channels.telegram) is not None:
        policies["telegram"] = AccessPolicy(
            "listed",
            frozenset(str(user) for user in telegram.allow),
            frozenset(str(user) for user in telegram.admins),
        )
    if (slack := settings.channels.slack) is not None:
        admins = frozenset(slack.admins)
        if slack.allow == "workspace":
            policies["slack"] = AccessPolicy("members", admins=admins)
        else:
            policies["slack"] = AccessPolicy("listed", frozenset(slack.allow), admins)
    return policies


def busy_modes(settings: Settings) -> dict[str, Busy]:
    sections = {name: getattr(settings.channels, name) for name in CHANNELS}
    return {
        name: (section.busy if section else None) or settings.session.busy for name, section in sections.items()
    }
