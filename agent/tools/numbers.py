"""The calculator's numbers: exact fractions, and floats where roots and angles need them; each value bounded.

Every bound is checked before the work it bounds, so that no operation takes long or much memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import NoReturn, TypeAlias

from agent.errors import ToolError

Number: TypeAlias = "Fraction | float"

MAX_BITS = 4096  # of a numerator or denominator: some 1,230 digits
MAX_FACTORIAL = 450
SHOWN_DIGITS = 15
_EXACT_DECIMALS = 30
_ANY_COUNT = 1000


def show(value: Number) -> tuple[str, bool]:
    """The value in decimal digits, and whether that is exact."""
    if isinstance(value, float):
        nearest = Decimal(value).normalize(Context(prec=SHOWN_DIGITS))
        return _plain(nearest), False
    if value.denominator == 1:
        return str(value.numerator), True
    decimals = _decimal_places(value.denominator)
    if decimals is not None:
        digits = f"{abs(value.numerator) * 10**decimals // value.denominator:0{decimals + 1}d}"
        return f"{'-' if value < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}", True
    return _plain(Context(prec=SHOWN_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))), False


def _plain(value: Decimal) -> str:
    """Without an exponent where that stays short."""
    if value == 0:
        return "0"
    return f"{value:f}" if -7 <= value.adjusted() <= SHOWN_DIGITS else f"{value:e}".replace("e+", "e")


def _decimal_places(denominator: int) -> int | None:
    """How many decimals a fraction with this denominator has; None: it never ends, or is long."""
    for places in range(1, _EXACT_DECIMALS + 1):
        if 10**places % denominator == 0:
            return places
    return None


def too_large() -> NoReturn:
    raise ToolError(f"a value grows too large (more than about {int(MAX_BITS * math.log10(2))} digits)")


def bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            too_large()
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        too_large()
    return value


def literal(text: str) -> Number:
    mantissa, _, exponent = text.lower().replace("_", "").partition("e")
    if exponent and abs(int(exponent)) > MAX_BITS:
        too_large()
    scale = Fraction(10) ** int(exponent) if exponent else 1
    return bounded(Fraction(mantissa if mantissa[-1] != "." else mantissa[:-1]) * scale)


def power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return _whole_power(base, exponent.numerator)
        if exponent == Fraction(1, 2):
            return _root(base)
    if base < 0 and exponent != int(exponent):
        raise ToolError("a negative number has no real power with a fraction as exponent")
    return bounded(float(base) ** float(exponent))


def _whole_power(base: Fraction, exponent: int) -> Number:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) in (0, 1):
        exponent = (2 - exponent % 2) if exponent > 0 else -(exponent % 2)  # the same value, at no cost
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
    elif (bits - 1) * abs(exponent) > MAX_BITS:
        too_large()
    return bounded(base**exponent)


def _root(value: Number) -> Number:
    if value < 0:
        raise ToolError("a negative number has no real square root")
    if isinstance(value, Fraction):
        upper, lower = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if upper * upper == value.numerator and lower * lower == value.denominator:
            return Fraction(upper, lower)
    return math.sqrt(value)


def _whole(value: Number, what: str) -> int:
    if value != int(value):
        raise ToolError(f"{what} needs whole numbers, got {show(value)[0]}")
    return int(value)


def factorial(value: Number) -> Number:
    count = _whole(value, "a factorial")
    if count < 0:
        raise ToolError("a negative number has no factorial")
    if count > MAX_FACTORIAL:
        too_large()
    return Fraction(math.factorial(count))


def _round(value: Number, places: Number = Fraction(0)) -> Number:
    """Half away from zero, as people round."""
    digits = _whole(places, "round")
    if abs(digits) > _EXACT_DECIMALS:
        raise ToolError(f"round takes at most {_EXACT_DECIMALS} decimals")
    scale = Fraction(10) ** digits
    rounded = math.floor(abs(Fraction(value)) * scale + Fraction(1, 2)) / scale
    return -rounded if value < 0 else rounded


def _logarithm(value: Number, base: Number | None = None) -> Number:
    if base is not None:
        return _logarithm(value) / _logarithm(base)
    if isinstance(value, Fraction):  # also where the value is too large for a float
        return math.log(value.numerator) - math.log(value.denominator)
    return math.log(value)


def _logarithm_of_base(base: int) -> Callable[[Number], Number]:
    def call(value: Number) -> Number:
        result = _logarithm(value, Fraction(base))
        nearest = Fraction(round(float(result)))
        exact = value == _whole_power(Fraction(base), int(nearest))
        return nearest if exact else result

    return call


def _angle(function: Callable[[float], float]) -> Callable[[Number], Number]:
    def call(value: Number) -> Number:
        result = function(float(value))
        # sin(pi) is zero, not 1e-16.
        return 0.0 if abs(result) < 1e-15 and not -1 <= value <= 1 else result

    return call


def _inexact(function: Callable[[float], float]) -> Callable[[Number], Number]:
    return lambda value: function(float(value))


@dataclass(frozen=True, slots=True)
class Function:
    call: Callable[..., Number]
    least: int = 1
    most: int = 1


PRODUCTS: dict[str, Callable[[Number, Number], Number]] = {
    "*": lambda a, b: a * b,
    "of": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: Fraction(a // b),
    "%": lambda a, b: a % b,
}
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
FUNCTIONS: dict[str, Function] = {
    "sqrt": Function(_root),
    "abs": Function(abs),
    "round": Function(_round, 1, 2),
    "floor": Function(lambda value: Fraction(math.floor(value))),
    "ceil": Function(lambda value: Fraction(math.ceil(value))),
    "min": Function(lambda *values: min(values), 1, _ANY_COUNT),
    "max": Function(lambda *values: max(values), 1, _ANY_COUNT),
    "sum": Function(lambda *values: bounded(sum(values, Fraction(0))), 1, _ANY_COUNT),
    "gcd": Function(lambda *values: Fraction(math.gcd(*(_whole(v, "gcd") for v in values))), 1, _ANY_COUNT),
    "factorial": Function(factorial),
    "exp": Function(_inexact(math.exp)),
    "log": Function(_logarithm, 1, 2),
    "ln": Function(_logarithm),
    "log2": Function(_logarithm_of_base(2)),
    "log10": Function(_logarithm_of_base(10)),
    "sin": Function(_angle(math.sin)),
    "cos": Function(_angle(math.cos)),
    "tan": Function(_angle(math.tan)),
    "asin": Function(_inexact(math.asin)),
    "acos": Function(_inexact(math.acos)),
    "atan": Function(_inexact(math.atan)),
    "degrees": Function(_inexact(math.degrees)),
    "radians": Function(_inexact(math.radians)),
}
