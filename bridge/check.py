"""`steadybot check`: asks each platform and each provider whether the keys work, and what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agent.errors import ErrorKind, classify
from agent.ports import Model
from bridge.parts import open_channels, open_models
from bridge.settings import Settings
from channels.base import Channel, ChannelError, Finding

MENDS = {
    ErrorKind.AUTH: "the key was refused; look at providers.{name}.api_key",
    ErrorKind.MODEL: "the provider does not know this model; look at providers.{name}.model",
    ErrorKind.QUOTA: "the account has no credit; top it up with the provider",
    ErrorKind.RATE_LIMIT: "the rate limit is reached now; the key works, try again later",
    ErrorKind.TRANSIENT: "the provider can't be reached; look at providers.{name}.base_url and the network",
}


async def check(settings: Settings) -> list[Finding]:
    """All findings, platforms first."""
    channels = open_channels(settings, Path(settings.data_dir))
    models = open_models(settings)
    try:
        found = await asyncio.gather(
            *(_check_channel(channel) for channel in channels.values()), *(_check_model(model) for model in models)
        )
    finally:
        for channel in channels.values():
            await channel.aclose()
        for model in models:
            await model.aclose()
    return [finding for findings in found for finding in findings]


async def _check_channel(channel: Channel) -> Sequence[Finding]:
    try:
        return await channel.check()
    except ChannelError as error:
        return [Finding(False, f"channel {channel.name}", str(error))]


async def _check_model(model: Model) -> Sequence[Finding]:
    what = f"provider {model.name} (model {model.model})"
    try:
        await model.check()
    # The border to the providers' SDKs: whatever they raise is a finding.
    except Exception as error:  # noqa: BLE001
        mend = MENDS.get(classify(error), "{error}").format(name=model.name, error=str(error)[:300])
        return [Finding(False, what, mend)]
    return [Finding(True, what)]
