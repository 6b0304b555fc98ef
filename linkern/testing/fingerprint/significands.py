r"""The significand bits of a number that survive each stage of a target.

A number ``2^p + 1`` has ``p + 1`` bits. It is laid where the stage must hold it, and
taken back from where it need not be held, so that what is left is 1, or 2, if it
survived, and something else if it did not. Sums have few terms, exact in any order,
their denominators are powers of two after each, and what is left is compared with a
tolerance of a quarter: neither the order of summation nor the rounding of the output is
measured. A stage that a target does not have loses nothing; one that its inputs, its
output, or the stages before it hide is capped at what they show.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.fingerprint import denominators
from linkern.testing.fingerprint.probing import (
    SAFE_EXPONENT,
    Prober,
    Question,
    Token,
    Unanswered,
    powers_of_two,
)

__all__ = ["Significands", "measure"]

# Digits of a score: three of 8 bits make one of 24, and even bfloat16 holds them.
SCORE_DIGITS = 3


@dataclass(frozen=True)
class Significands:
    """Bits by stage.

    Parameters
    ----------
    bits : dict of str to int
        How many survive, for the stages that could be measured.
    capped : frozenset of str
        Stages of which the inputs, or the output, cannot show more.
    ceiling : int
        Bits that were asked for at most: those of the accumulator.
    """

    bits: dict[str, int]
    capped: frozenset[str]
    ceiling: int

    @property
    def narrowest(self) -> int:
        """The fewest bits seen where more could have been."""
        seen = [n for stage, n in self.bits.items() if stage not in self.capped]
        return min((self.ceiling, *seen))

    @property
    def of_features(self) -> int:
        """The bits of features: those of keys, if more could have been seen."""
        known = "key" in self.bits and "key" not in self.capped
        return self.bits["key"] if known else self.narrowest


@dataclass(frozen=True)
class Stage:
    """One stage of the arithmetic.

    Parameters
    ----------
    limit : callable
        The most bits that can be shown, if the stages before it keep the bits given.
    survives : callable
        Returns True if ``2^p + 1`` survives.
    shows : callable
        Returns True if the output would show it, had it survived.
    """

    limit: Callable[[Prober, int], int]
    survives: Callable[[Prober, int], bool]
    shows: Callable[[Prober, int], bool] = lambda _prober, _p: True


def measure(prober: Prober) -> Significands:
    """Measure all stages that can be measured.

    Left out are those on which the target gave no answer, or a wrong one even for two
    bits.
    """
    dtype, contract = prober.scope.dtype, prober.scope.contract
    default = "float64" if dtype == "float64" else "float32"
    declared = contract.precisions(dtype).accumulator
    ceiling = max(SIGNIFICAND_BITS[default], SIGNIFICAND_BITS[declared])
    bits: dict[str, int] = {}
    capped = set()
    for name in MEASURED_IN_TURN:
        stage, inside = STAGES[name], [prober.input_bits, *bits.values()]
        limit = stage.limit(prober, min(inside))
        try:
            most = _most_bits(prober, stage, min(limit, ceiling))
            hidden = most < limit and not stage.shows(prober, most)
        except Unanswered:
            continue
        if most:
            bits[name] = most
            if hidden or most == limit < ceiling:
                capped.add(name)
    in_order = {name: bits[name] for name in STAGES if name in bits}
    return Significands(in_order, frozenset(capped), ceiling)


def _most_bits(prober: Prober, stage: Stage, limit: int) -> int:
    """Return the most bits that survive; 0 if not even two do."""

    def survive(bits: int) -> bool:
        return stage.survives(prober, bits - 1)

    if limit < 2 or not survive(2):
        return 0
    if survive(limit):
        return limit
    known, lost = 2, limit
    while lost - known > 1:
        middle = (known + lost) // 2
        known, lost = (middle, lost) if survive(middle) else (known, middle)
    return known


def _right(prober: Prober, question: Question, *rows: int) -> bool:
    """Return True if one of the rows is right to a quarter."""
    answers, exact = prober.answers(question), prober.exact(question)
    with np.errstate(all="ignore"):
        return any(abs(answers[row] / exact - 1) < 1 / 4 for row in rows)


def _two(
    prober: Prober,
    weight: int,
    value: float,
    other_weight: int,
    other_value: float,
    apart: int = 1,
) -> Question:
    """Return the question about two keys: of other directions if they erase."""
    other = (0, other_weight) if prober.erases else (other_weight,)
    tokens = Token(0, (weight,), value), Token(apart, other, other_value)
    return Question((1, 1) if prober.erases else (1,), tokens)


def _value_survives(prober: Prober, p: int) -> bool:
    """Two values at hand, ``2^p + 1`` and ``-2^p``, of weight 1."""
    question = _two(prober, 1, 2.0**p + 1, 1, -(2.0**p))
    # Seen through a score in one row, and through the state in the other.
    return _right(prober, question, question.last, prober.length - 1)


def _key_survives(prober: Prober, p: int) -> bool:
    """Two weights, ``2^p + 1`` and ``2^p - 1``, of values 1 and -1."""
    question = _two(prober, 2**p + 1, 1.0, 2**p - 1, -1.0)
    if not _right(prober, question, question.last, prober.length - 1):
        return False
    return prober.scope.key_map.homogeneous or _key_input_survives(prober, p)


def _key_input_survives(prober: Prober, p: int) -> bool:
    """Two weights, ``2^p + 2`` and ``2^p``: the former is made of ``2^p + 1``."""
    # Other keys, of value 0, bring the denominator to a power of two if there is room.
    others = powers_of_two(2 ** (p + 1) - 2, 2**prober.power_limit)
    others = others if len(others) < prober.length - 4 else []
    tokens = [Token(at, (weight,)) for at, weight in enumerate(others)]
    # An odd position and the one before it lie in one chunk of even size.
    last = len(others) // 2 * 2 + 1 + 2 * (len(others) % 2)
    tokens += [Token(last - 1, (2**p + 2,), 1.0), Token(last, (2**p,), -1.0)]
    question = Question((1,), tuple(tokens))
    return _right(prober, question, last, prober.length - 1)


def _key_limit(prober: Prober, kept: int) -> int:
    del kept  # it is what is measured
    if not prober.reads:
        return 0
    bits = prober.input_bits
    return bits if prober.power_limit >= bits - 1 else prober.power_limit


def _score_survives(prober: Prober, p: int) -> bool:
    """Two scores, ``2^p + 1`` and ``2^p - 1``, whose operands have a third of the bits.

    The query holds powers of ``2^h``, and ``2^p - 1`` is written in that base.
    """
    digits = min(SCORE_DIGITS, prober.key_dim)
    h = min(round(p / digits), prober.power_limit // (digits - 1))
    top = p - h * (digits - 1)
    query = tuple(2 ** (h * n) for n in range(digits))
    more = (1, *(0,) * (digits - 2), 2**top)
    less = (*(2**h - 1,) * (digits - 1), 2**top - 1)
    # The output is 2^-p times that, and no smaller than what float16 can hold.
    value = 2.0 ** max(0, p - SAFE_EXPONENT)
    question = Question(query, (Token(0, more, value), Token(1, less, -value)))
    return _right(prober, question, question.last)


def _score_limit(prober: Prober, kept: int) -> int:
    digits = min(SCORE_DIGITS, prober.key_dim)
    if prober.erases or digits < 2 or prober.power_limit < digits:
        return 0
    h = min(prober.power_limit // (digits - 1), kept)
    top = min(prober.power_limit, kept)
    return min(h * (digits - 1) + top + 1, _range(kept))


def _range(kept: int) -> int:
    """Return how many bits apart numbers can be that operands of `kept` bits hold."""
    if kept <= SIGNIFICAND_BITS["float16"]:
        return 2 * SAFE_EXPONENT + 1
    return SIGNIFICAND_BITS["float64"]  # every wider dtype has the range


def _state_survives(prober: Prober, p: int) -> bool:
    """One entry of the state comes to ``2^p + 1``, another one to ``-2^p``."""
    if prober.erases:  # each entry holds one value
        question = _two(prober, 1, 2.0**p + 1, 1, -(2.0**p), prober.length // 2)
        return _right(prober, question, prober.length - 1)
    unit = 2.0 ** -(p // 2)
    quarter = prober.length // 4
    # The weights 1, 1 and 2 bring the denominator to 1, 2 and 4.
    weights = powers_of_two(2, prober.largest_weight)
    back = (
        Token(2 * quarter + i, (0, weight), -(2.0 ** (p - 1)) * unit)
        for i, weight in enumerate(weights)
    )
    tokens = (Token(0, (1,), 2.0**p * unit), Token(quarter, (1,), unit), *back)
    return _right(prober, Question((1, 1), tokens), prober.length - 1)


def _state_limit(prober: Prober, kept: int) -> int:
    if prober.key_dim == 1:
        return 0
    return prober.input_bits if prober.erases else _range(kept)


STAGES = {
    "value": Stage(lambda prober, _: prober.input_bits, _value_survives),
    "key": Stage(_key_limit, _key_survives),
    "score": Stage(_score_limit, _score_survives),
    "state": Stage(_state_limit, _state_survives),
    "normalizer": Stage(
        lambda prober, _: denominators.limit(prober),
        denominators.survives,
        denominators.shows,
    ),
}
# A score may be summed from entries of a state: what that loses is not its own loss.
MEASURED_IN_TURN = ("value", "key", "state", "score", "normalizer")
