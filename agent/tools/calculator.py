"""The calculator tool."""

from __future__ import annotations

from agent.ports import Tool
from agent.tools.arithmetic import evaluate
from agent.tools.function import function_tool
from agent.tools.numbers import show


def _calculate(expression: str) -> str:
    """Evaluates an arithmetic expression exactly. Use it for every calculation, however simple it looks.

    expression: such as (17 + 4) * 2, 15% of 80, 2**64, 10 % 3 (the remainder), 5!, or with sqrt, abs, round,
        floor, ceil, min, max, sum, gcd, exp, log, ln, log2, log10, sin, cos, tan (radians), degrees, radians,
        and the constants pi and e
    """
    value, exact = show(evaluate(expression))
    return f"{expression.strip()} {'=' if exact else '≈'} {value}"


calculator: Tool = function_tool(_calculate, name="calculator")
