"""Keeps what was learned of the models in the store: changes are gathered and written behind."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from agent.calibration import Facts
from bridge.errors import StoreError
from bridge.ports import ModelFact, Store

log = structlog.get_logger()


class StoredFacts:
    """`facts` is what the agent asks and tells; `save` writes what changed since the last call."""

    def __init__(self, store: Store, known: Mapping[str, ModelFact]) -> None:
        self._store = store
        self._dirty: dict[str, ModelFact] = {}
        self.facts = Facts(self._changed)
        for model, fact in known.items():
            self.facts.restore(model, fact.ratio, fact.limit)

    async def save(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for model, fact in dirty.items():
            try:
                await self._store.save_model_fact(model, fact)
            except StoreError as error:
                log.warning("facts.not_saved", model=model, error=str(error))

    def _changed(self, model: str, ratio: float, limit: int | None) -> None:
        self._dirty[model] = ModelFact(ratio, limit)
