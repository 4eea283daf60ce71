"""Defence 2: a history that the provider takes (four-defences §3)."""

from __future__ import annotations

from agent.repair_openai import drop_orphaned_tool_results_openai

__all__ = ["drop_orphaned_tool_results_openai"]
