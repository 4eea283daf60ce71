"""What can go wrong in the bridge. The text of each is one clear line for the person who runs the bot."""

from __future__ import annotations


class SteadybotError(Exception):
    """Something the person who runs the bot must know; `exit_code` is what the process ends with."""

    exit_code = 1


class ConfigError(SteadybotError):
    """The config file is wrong. `problems` holds one line per mistake, each with file:line and the mend."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StoreError(SteadybotError):
    """The database could not do what was asked (disk full, locked, damaged); nothing was written."""


class StoreUnusable(StoreError):
    """The database can't be opened at all: newer than this program, damaged, unreadable, or in use."""
