"""Spelling of constants and products: the shortest text of a number that was measured.

A constant is a small fraction, a well known number, or a number of few digits, times a
power of the scale or of a size.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

__all__ = ["BASES", "CONSTANTS", "Spelled", "is_logarithm", "spell", "text_of"]

# Exponents that make powers of 2 of those of e, or the reverse.
BASES = {1 - np.log(2): "(1 - ln 2) * ", 1 / np.log(2) - 1: "(1/ln 2 - 1) * "}
# Quantities that all entries of one problem share.
CONSTANTS = (
    *("scale", "K", "V", "T", "chunk", "padded K", "B", "H"),
    "tokens of padding",
)
# Scales that are other ones than a call says: that by default, that of padded channels.
_SCALES = ({"scale": -1.0, "K": -0.5}, {"K": 0.5, "padded K": -0.5})
_KNOWN = {"pi": np.pi, "e": np.e, "ln 2": np.log(2), "2^0.5": 2**0.5}
_POWERS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0)
LARGEST, MOST_DIGITS = 16, 5
# Larger powers of two, by their exponents, that are fewer bits than other numbers.
LARGER = range(5, 11)
# Bits that a constant may have beyond those in which it was measured.
BY_CHANCE = 4.0


@dataclass(frozen=True)
class Spelled:
    """A positive constant.

    Parameters
    ----------
    text : str
        The number, without the powers of constants.
    number : float
        Its value.
    exponents : mapping of str to float
        Powers of constants of the problem.
    cost : float
        The length in bits.
    """

    text: str
    number: float
    exponents: Mapping[str, float] = field(default_factory=dict)
    cost: float = 0.0

    def log(self, constants: Mapping[str, float]) -> float:
        """Return the logarithm, with the logarithms of the constants of a problem."""
        powers = (x * constants[name] for name, x in self.exponents.items())
        return float(np.log(self.number)) + sum(powers)


def _small() -> list[Spelled]:
    """Return the constants that have names."""
    known = [Spelled("1", 1.0)]
    for top in range(1, LARGEST + 1):
        for below in range(1, LARGEST + 1):
            if top != below and np.gcd(top, below) == 1:
                text = f"{top}/{below}" if below > 1 else f"{top}"
                bits = sum(1.0 if x in (2, 4, 8, 16) else 2.0 for x in (top, below))
                cost = 1 + bits * float(np.log2(top * below))
                known.append(Spelled(text, top / below, cost=cost))
    for bits in LARGER:
        text, number, cost = f"{1 << bits}", float(1 << bits), 1.0 + bits
        known.append(Spelled(text, number, cost=cost))
        known.append(Spelled(f"1/{text}", 1 / number, cost=cost))
    known += [Spelled(text, number, cost=5.0) for text, number in _KNOWN.items()]
    return known + [Spelled(f"1/{x}", 1 / y, cost=6.0) for x, y in _KNOWN.items()]


_SMALL = _small()


def spell(
    levels: Sequence[float],
    constants: Sequence[Mapping[str, float]],
    spread: float,
    *,
    natural: bool,
) -> list[Spelled]:
    """Return names of a constant, shortest first.

    Parameters
    ----------
    levels : sequence of float
        The logarithm of the constant in every problem.
    constants : sequence of mapping of str to float
        The logarithms of the constants of every problem.
    spread : float
        How far the levels are off at most.
    natural : bool
        Whether a power of e is a constant as well.
    """
    shared: list[tuple[dict[str, float], float]] = [({}, 0.0)]
    shared += [(scales, 5.0) for scales in _SCALES]
    shared += [
        ({name: x}, 1 + i + 2 * abs(np.log2(abs(x))))
        for i, name in enumerate(CONSTANTS)
        for x in _POWERS
        if any(one.get(name) for one in constants)
    ]
    # Within what rounding allows, there is always some fraction of more bits.
    most = BY_CHANCE - np.log2(max(spread, 1e-300))
    spelled: list[Spelled] = []
    for powers, cost in shared:
        if not all(powers.keys() <= one.keys() for one in constants):
            continue
        known = Spelled("1", 1.0, powers)
        rest = [x - known.log(y) for x, y in zip(levels, constants, strict=True)]
        if max(rest) - min(rest) > 2 * spread:
            continue
        middle = (max(rest) + min(rest)) / 2
        spelled += [
            replace(one, exponents=powers, cost=one.cost + cost)
            for one in _SMALL
            if abs(np.log(one.number) - middle) <= spread and one.cost <= most
        ]
        if not powers:
            spelled += _digits(middle, spread, natural)
    return sorted(spelled, key=lambda one: one.cost)[:6]


def _digits(level: float, spread: float, natural: bool) -> list[Spelled]:
    """Return the numbers of fewest digits at a level: as such, and as a power of e.

    Closer to 1 a power of e says no more than the number.
    """
    if not -250 < level < 250 or spread > 0.2:
        return []
    spelled = []
    for digits in range(1, 3) if natural else ():
        exponent = float(f"{level:.{digits}g}")
        if abs(exponent) >= 0.01 and abs(exponent - level) <= spread:
            number = float(np.exp(exponent))
            spelled = [Spelled(f"exp({exponent:g})", number, cost=6 + 4.0 * digits)]
            break
    for digits in range(1, MOST_DIGITS + 1):
        number = float(f"{np.exp(level):.{digits - 1}e}")
        if abs(np.log(number) - level) <= spread:
            plain = f"{number:g}" if 1e-4 < number < 1e5 else f"{number:.{digits}g}"
            bits = 4.0 * digits + float(np.log2(1 + abs(level)))
            spelled.append(Spelled(plain.replace("e-0", "e-"), number, cost=3 + bits))
            break
    return spelled


def text_of(
    kind: str, sign: float, constant: Spelled, powers: Mapping[str, float]
) -> str:
    """Return the text of a formula of a kind.

    Examples
    --------
    >>> text_of("product", -1.0, Spelled("1/2", 0.5), {"beta[row]": 1.0})
    '-beta[row] / 2'
    >>> text_of("in the denominator", 1.0, Spelled("3", 3.0), {"denominator": -1.0})
    'denominator / (denominator + 3)'
    """
    divided = [name for name, x in powers.items() if x == -1]
    if kind != "in the denominator":
        words = _product(sign, constant, powers)
        return f"plus {words}" if kind == "added" else words
    if not divided:
        return f"1 / (1 + {_product(sign, constant, powers)})"
    rest = {name: x for name, x in powers.items() if name != divided[0]}
    added = f"{'-' if sign < 0 else '+'} {_product(1.0, constant, rest)}"
    return f"{divided[0]} / ({divided[0]} {added})"


def is_logarithm(name: str) -> bool:
    """Return True for a quantity that is named by its logarithm.

    Examples
    --------
    >>> is_logarithm("sum of log_decay over (source, row]"), is_logarithm("beta[row]")
    (True, False)
    >>> is_logarithm("log_decay_rate")
    False
    """
    return re.search(r"log_decay(?!_rate)", name) is not None


def _product(sign: float, constant: Spelled, exponents: Mapping[str, float]) -> str:
    """Return the text of a product."""
    powers = {**constant.exponents, **exponents}
    above, _, below = constant.text.partition("/")
    logs = [above[4:-1]] if above.startswith("exp(") else []
    up = [above] if above != "1" and not logs else []
    down = [below] if below else []
    for name, x in sorted(powers.items(), key=lambda item: item[1] < 0):
        if is_logarithm(name):
            logs.append(_term(name, x))
        elif name.startswith("e^("):
            up.append(_power_of_count(name[2:], x))
        elif name == "K" and x == -0.5:
            up.append("K^-0.5")
        else:
            size = "" if abs(x) == 1 else f"^{abs(x):g}"
            (up if x > 0 else down).append(name + size)
    if logs:
        up.append(f"exp({' + '.join(logs).replace('+ -', '- ')})")
    text = " * ".join(up) or "1"
    if down:
        text += f" / {down[0]}" if len(down) == 1 else f" / ({' * '.join(down)})"
    text = text if powers else constant.text
    return f"-{text}" if sign < 0 else text


def _power_of_count(count: str, power: float) -> str:
    """Return the text of a constant to the power of a number of tokens."""
    base = float(np.exp(power))
    short = float(f"{base:.2g}")
    if abs(short - base) <= 1e-3 * abs(base - 1):
        return f"{short:g}^{count}"
    if power == float(f"{power:.2g}"):
        return f"exp({power:g} * {count})"
    return f"{base:.7g}^{count}"


def _term(name: str, power: float) -> str:
    """Return a summand of an exponent."""
    text = {1.0: "", **BASES}.get(abs(power), f"{abs(power):g} * ")
    return "-" * (power < 0) + text + name
