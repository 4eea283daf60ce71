"""Groups that became supergroups: their conversation goes on under its first id, messages go to the new one."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

FILE = "telegram-chats.json"

log = structlog.get_logger()


class Migrations:
    """Chat ids, from a group's first one to its current one, kept in a small file."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self._path = data_dir / FILE if data_dir is not None else None
        self._moved: dict[str, int] = self._read()
        self._homes = {str(new): old for old, new in self._moved.items()}

    def target(self, chat: str) -> int:
        """Where messages for this chat go now."""
        return self._moved.get(chat, int(chat))

    def home(self, chat: int) -> str:
        """The id under which this chat's conversation is known."""
        return self._homes.get(str(chat), str(chat))

    def note(self, old: int, new: int) -> None:
        """Telegram says it twice, once in each chat; the second time changes nothing."""
        home = self.home(old)
        if old == new or self._moved.get(home) == new:
            return
        self._moved[home] = new
        self._homes[str(new)] = home
        log.info("telegram.migrated", chat=home, now=new)
        self._write()

    def _read(self) -> dict[str, int]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(old): int(new) for old, new in found.items()}
        except (OSError, ValueError, AttributeError) as error:
            log.warning("telegram.migrations_unreadable", file=str(self._path), error=type(error).__name__)
            return {}

    def _write(self) -> None:
        """Happens a few times in a bot's life and is a few bytes, so the loop can wait for it."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(self._moved), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            log.warning("telegram.migrations_unsaved", file=str(self._path), error=str(error))
