from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.ports import ToolContext
from agent.tools.arithmetic import MAX_CHARS, evaluate
from agent.tools.calculator import calculator
from agent.tools.numbers import MAX_BITS, Number, show

HERE = ToolContext(session_id="console/local", request_id="r1")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(17 + 4) * 2", "42"),
        ("12*7", "84"),
        ("12*7 =", "84"),
        ("0.1+0.2", "0.3"),
        ("1.10 - 1", "0.1"),
        ("(1/3)*3", "1"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("2**3**2", "512"),
        ("2^64", "18446744073709551616"),
        ("-7 // 2", "-4"),
        ("7 % 3", "1"),
        ("-7 % 3", "2"),
        ("15% of 80", "12"),
        ("200 + 10%", "220"),
        ("200 - 10%", "180"),
        ("50% + 50%", "1"),
        ("200 * 10%", "20"),
        ("200 + (10%)", "200.1"),
        ("(10%)", "0.1"),
        ("5!", "120"),
        ("1,000,000 / 4", "250000"),
        ("1,234.5 * 2", "2469"),
        ("max(1,000)", "1"),
        ("max(3, 7, 5)", "7"),
        ("min(3, 7) + sum(1, 2, 3)", "9"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(2.675, 2)", "2.68"),
        ("round(1234, -2)", "1200"),
        ("floor(-1.5) + ceil(1.2)", "0"),
        ("sqrt(16)", "4"),
        ("sqrt(0.25)", "0.5"),
        ("9 ** 0.5", "3"),
        ("gcd(12, 18)", "6"),
        ("log10(1000)", "3"),
        ("log2(2**3000)", "3000"),
        ("1.5e3", "1500"),
        ("1_000 + 1", "1001"),
        ("７×６", "42"),
        ("（３＋４）÷２", "3.5"),
        ("3²", "9"),
        ("0**0", "1"),
        ("(-1)**999999999999999999999", "-1"),
        ("0 ** 99999999999999999999", "0"),
        ("1e-20", "0.00000000000000000001"),
        ("+5 - -5", "10"),
    ],
)
def test_exact_results(expression: str, value: str) -> None:
    assert show(evaluate(expression)) == (value, True)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1/3", "0.333333333333333"),
        ("-2/3", "-0.666666666666667"),
        ("sqrt(2)", "1.4142135623731"),
        ("sqrt(2)**2", "2"),
        ("pi", "3.14159265358979"),
        ("sin(pi)", "0"),
        ("cos(pi)", "-1"),
        ("tan(radians(45))", "1"),
        ("degrees(pi)", "180"),
        ("log(e)", "1"),
        ("ln(2**2000)", "1386.29436111989"),
        ("log(8, 2)", "3"),
        ("8 ** (1/3)", "2"),
        ("exp(1)", "2.71828182845905"),
        ("2/3*10**30", "6.66666666666667e29"),
        ("1/3/10**20", "3.33333333333333e-21"),
    ],
)
def test_rounded_results(expression: str, value: str) -> None:
    assert show(evaluate(expression)) == (value, False)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "ends where a value is expected"),
        ("1 +", "ends where a value is expected"),
        ("1 2", r"at '2' \(character 3\)"),
        ("2 $ 3", r"at '\$ 3' \(character 2\)"),
        ("*2", r"a value is expected at '\*'"),
        ("(1", "not closed"),
        ("max(1, 2", "not closed"),
        ("1)", r"at '\)'"),
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(2) / 0", "division by zero"),
        ("sqrt(-1)", "no real square root"),
        ("(-8)**(1/3)", "no real power"),
        ("log(0)", "not defined for 0"),
        ("log(2, 1)", "division by zero"),
        ("asin(2)", "not defined for 2"),
        ("foo(1)", "unknown name 'foo'; known are: sqrt"),
        ("__import__('os')", "unknown name|can't read"),
        ("().__class__", "can't read"),
        ("sqrt 2", "in parentheses"),
        ("sqrt(1, 2)", "takes 1 to 1 values, got 2"),
        ("(1.5)!", "whole numbers, got 1.5"),
        ("(-1)!", "no factorial"),
        ("gcd(1.5, 2)", "whole numbers"),
        ("round(1, 99)", "at most 30"),
        ("9**9**9", "too large"),
        ("10**10**10", "too large"),
        ("2**-999999999", "too large"),
        ("99999!", "too large"),
        ("3!!!!", "too large"),
        ("1e999999999", "too large"),
        ("1e-999999999", "too large"),
        ("e**800", "too large"),
        ("exp(10**9)", "too large"),
        ("sqrt(2)**99999", "too large"),
        ("*".join(["10**400"] * 12), "too large"),
        ("9" * 501, "at most 500"),
        ("(" * 60 + "1" + ")" * 60, "nested"),
        ("-" * 400 + "1", "nested"),
        ("2**" * 100 + "2", "nested|too large"),
    ],
)
def test_what_is_no_expression_or_too_much_is_refused_with_a_reason(expression: str, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        evaluate(expression)


_PIECES = st.sampled_from(
    [*"0123456789+-*/%^!(),.e ", "**", "//", "9**", "sqrt(", "log(", "max(", "10**400", "1e308", "pi", "of", "!"]
)
_texts = st.lists(_PIECES, max_size=40).map("".join) | st.text(max_size=40)


@given(_texts)
def test_any_text_gives_a_bounded_value_or_a_reason(text: str) -> None:
    value: Number | ToolError
    try:
        value = evaluate(text)
    except ToolError as error:
        value = error
    if isinstance(value, ToolError):
        assert 0 < len(str(value)) < 400
        return
    if isinstance(value, float):
        assert math.isfinite(value)
    else:
        assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS
    assert len(show(value)[0]) < MAX_BITS


_numbers = st.decimals(-(10**6), 10**6, places=4, allow_nan=False).map(lambda number: f"{number:f}")


@given(_numbers, _numbers, st.sampled_from("+-*"))
def test_decimals_are_added_and_multiplied_without_an_error(left: str, right: str, operator: str) -> None:
    wanted = eval(f"Fraction('{left}') {operator} Fraction('{right}')")  # noqa: S307 - our own numbers
    digits, exact = show(evaluate(f"({left}) {operator} ({right})"))
    assert exact
    assert Fraction(digits) == wanted


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda e: st.builds("({} {} {})".format, e, st.sampled_from(["+", "-", "*", "//", "%"]), e),
        max_leaves=12,
    )
)
def test_whole_numbers_agree_with_pythons_own_arithmetic(expression: str) -> None:
    if len(expression) > MAX_CHARS:
        return
    try:
        wanted = eval(expression)  # noqa: S307 - digits and operators that we made
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == wanted


async def test_the_tool_gives_expression_and_value() -> None:
    tool = calculator
    assert tool.spec.name == "calculator"
    assert not tool.effects
    assert await tool.run({"expression": " (17 + 4) * 2"}, HERE) == "(17 + 4) * 2 = 42"
    assert await tool.run({"expression": "1/3"}, HERE) == "1/3 ≈ 0.333333333333333"
    with pytest.raises(ToolError, match="lacks the required field expression"):
        await tool.run({}, HERE)
