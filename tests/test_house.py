"""The rules of the house that a machine can hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("agent", "bridge", "channels")
SDKS = {"anthropic", "openai", "telegram", "slack_bolt", "slack_sdk", "prompt_toolkit", "aiohttp", "httpx"}


def test_imports_point_in_the_directions_of_the_house() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["bridge.cli", "bridge.app", "agent.executor", "channels.base"])
def test_sdks_of_what_is_switched_off_are_not_imported(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert SDKS.isdisjoint(done.stdout.split())


def test_modules_stay_small() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_broad_excepts_stay_in_single_digits() -> None:
    broad = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert len(broad) < 10, broad


def test_every_room_is_typed() -> None:
    assert all((ROOT / room / "py.typed").exists() for room in ROOMS)
