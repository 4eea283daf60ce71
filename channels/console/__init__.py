"""The console: a line to type on in a terminal, or lines in a pipe."""

from channels.console.adapter import ConsoleChannel, open_channel

__all__ = ["ConsoleChannel", "open_channel"]
