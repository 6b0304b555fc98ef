"""Spelling of constants and products: the shortest text of a number that was measured.

A constant is a small fraction, a well known number, or a number of few digits, times a
power of the scale or of a size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["CONSTANTS", "Spelled", "formula", "spell"]

# Quantities that all entries of one problem share.
CONSTANTS = ("scale", "K", "V", "T", "chunk")
_KNOWN = (
    ("pi", np.pi, 6.0),
    ("1/pi", 1 / np.pi, 6.0),
    ("e", np.e, 6.0),
    ("1/e", 1 / np.e, 6.0),
    ("ln 2", np.log(2), 5.0),
    ("1/ln 2", 1 / np.log(2), 5.0),
    ("2^0.5", 2**0.5, 4.0),
    ("2^-0.5", 2**-0.5, 4.0),
)
_POWERS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0)
MOST_DIGITS = 5


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
    """Return the constants that have names, the shortest first."""
    known = [Spelled("1", 1.0)]
    for top in range(1, 17):
        for below in range(1, 17):
            if top != below and np.gcd(top, below) == 1:
                text = f"{top}/{below}" if below > 1 else f"{top}"
                bits = sum(1.0 if x in (2, 4, 8, 16) else 2.0 for x in (top, below))
                cost = bits * float(np.log2(top * below))
                known.append(Spelled(text, top / below, cost=1 + cost))
    known += [Spelled(text, number, cost=cost) for text, number, cost in _KNOWN]
    return sorted(known, key=lambda one: one.cost)


_SMALL = _small()
_LOGS = np.log([one.number for one in _SMALL])


def spell(
    levels: Sequence[float],
    constants: Sequence[Mapping[str, float]],
    spread: float,
    scatter: float,
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
    scatter : float
        How far they are off if errors are independent.
    natural : bool
        Whether a power of e is a constant as well.
    """
    powers: list[tuple[dict[str, float], float]] = [({}, 0.0)]
    for i, name in enumerate(CONSTANTS):
        if all(name in one for one in constants) and any(x[name] for x in constants):
            extra = 1.0 + i
            powers += [({name: x}, extra + 2 * abs(np.log2(abs(x)))) for x in _POWERS]
    spelled: list[Spelled] = []
    for exponents, cost in powers:
        rest = [
            level - sum(x * one[name] for name, x in exponents.items())
            for level, one in zip(levels, constants, strict=True)
        ]
        if max(rest) - min(rest) > 2 * spread:
            continue
        middle = (max(rest) + min(rest)) / 2
        for at in np.flatnonzero(abs(_LOGS - middle) <= spread):
            one = _SMALL[at]
            spelled.append(Spelled(one.text, one.number, exponents, one.cost + cost))
        if not exponents:
            spelled += _digits(middle, spread, natural)
            spelled += _digits(middle, scatter, natural)
    return sorted(spelled, key=lambda one: one.cost)[:6]


def _digits(level: float, spread: float, natural: bool) -> list[Spelled]:
    """Return the number of fewest digits at a level."""
    if not -250 < level < 250 or spread > 0.2:
        return []
    for digits in range(1, 3):
        exponent = float(f"{level:.{digits}g}")
        if natural and abs(exponent - level) <= spread:
            number = float(np.exp(exponent))
            return [Spelled(f"exp({exponent:g})", number, cost=6 + 4.0 * digits)]
    for digits in range(1, MOST_DIGITS + 1):
        text = f"{np.exp(level):.{digits - 1}e}"
        number = float(text)
        if abs(np.log(number) - level) <= spread:
            plain = f"{number:g}" if 1e-4 < number < 1e5 else f"{number:.{digits}g}"
            bits = 4.0 * digits + float(np.log2(1 + abs(level)))
            return [Spelled(plain.replace("e-0", "e-"), number, cost=3 + bits)]
    return []


def formula(sign: float, constant: Spelled, exponents: Mapping[str, float]) -> str:
    """Return the text of a product."""
    above, _, below = constant.text.partition("/")
    up = [above] if above != "1" else []
    down = [below] if below else []
    logs: list[str] = []
    if above.startswith("exp("):
        up, logs = [], [above[4:-1]]
    powers = {**constant.exponents, **exponents}
    if powers == {"K": -0.5} and not up and not down:
        return "-K^-0.5" if sign < 0 else "K^-0.5"
    for name, x in sorted(powers.items(), key=lambda item: item[1] < 0):
        if "log_decay" in name:
            logs.append(_term(name, x, first=not logs))
        elif name.startswith("e^("):
            up.append(_power_of_count(name[2:], x))
        elif x > 0:
            up.append(name if x == 1 else f"{name}^{x:g}")
        else:
            down.append(name if x == -1 else f"{name}^{-x:g}")
    if logs:
        up.append(f"exp({''.join(logs)})")
    text = " * ".join(up) or "1"
    if not up and below and len(down) == 1:
        text = f"1/{below}"
    elif up == [above] and down == [below]:
        text = constant.text
    elif down:
        text += f" / {down[0]}" if len(down) == 1 else f" / ({' * '.join(down)})"
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


def _term(name: str, power: float, *, first: bool) -> str:
    """Return a summand of an exponent."""
    size = abs(power)
    if np.isclose(size, 1 - np.log(2)):
        factor = "(1 - ln 2) * "
    elif np.isclose(size, 1 / np.log(2) - 1):
        factor = "(1/ln 2 - 1) * "
    else:
        factor = "" if size == 1 else f"{size:g} * "
    if first:
        return ("-" if power < 0 else "") + factor + name
    return (" - " if power < 0 else " + ") + factor + name
