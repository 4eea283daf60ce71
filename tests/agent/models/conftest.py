from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.openai import OpenAIModel
from tests.agent.models.driving import WIRES, model_for
from tests.servers.model_replies import Wire
from tests.servers.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture
async def model(wire: Wire, server: ModelServer) -> AsyncIterator[AnthropicModel | OpenAIModel]:
    """The adapter of each wire, connected to `server`."""
    made = model_for(wire, server)
    yield made
    await made.aclose()
