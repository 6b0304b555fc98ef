"""The bits of the normalizer that survive, as quotients show them.

The normalizer comes to D and then, with one key more, to ``D + 1``; the numerator stays
what it is, and few bits long. Where the output has fewer bits than D, it cannot show
the difference of two quotients, unless the middle of two neighbours among its numbers
lies between them: D is chosen for that.
"""

from functools import cache

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.fingerprint.probing import (
    Prober,
    Question,
    Token,
    powers_of_two,
)
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["limit", "shows", "survives"]

# A quotient is rounded two or three times on its way to an output of fewer bits.
QUOTIENT_BITS = 3


def limit(prober: Prober) -> int:
    """Return the most bits that can be shown; 0 if there is no normalizer."""
    contract = prober.scope.contract
    if not contract.normalize:
        return 0
    largest, room = prober.power_limit, prober.length // 2
    # Keys of the largest weight, and one for each smaller power of two.
    total = (max(room - largest, 1) << largest) * 16 // 17
    bits = total.bit_length()
    if bits > prober.output_bits:
        accumulator = contract.precisions(prober.scope.dtype).accumulator
        told = min(SIGNIFICAND_BITS[accumulator] - QUOTIENT_BITS, room)
        bits = max(prober.output_bits, min(bits, told))
    return bits


def survives(prober: Prober, p: int) -> bool:
    """Return True if ``D + 1`` survives in the normalizer; D has ``p + 1`` bits."""
    value, total = _quotient(prober, p)
    first, *others = powers_of_two(total, 2**prober.power_limit)
    tokens = [Token(0, (first,), value)]
    tokens += [Token(at, (weight,)) for at, weight in enumerate(others, start=1)]
    return _told_apart(prober, (1,), tokens, Token(prober.length // 2, (1,)))


def shows(prober: Prober, p: int) -> bool:
    """Return True if the output tells the two denominators apart at all.

    Here each is the sum of two entries of the normalizer with half of its bits.
    """
    value, total = _quotient(prober, p)
    first, *others = powers_of_two(total, 2**prober.power_limit)
    half = p // 2
    high, low = divmod(sum(others), 2**half)
    largest = max(2**half, high, first >> half)
    if prober.key_dim < 2 or largest > 2**prober.power_limit:
        return False
    tokens = [Token(0, (0, first >> half), value), Token(1, (low, high))]
    return _told_apart(prober, (1, 2**half), tokens, Token(2, (1,)))


def _quotient(prober: Prober, p: int) -> tuple[float, int]:
    """Return a value, up to a power of two, and the denominator D of `p` + 1 bits."""
    if p < prober.output_bits:
        return 1.0, 2**p
    value, total = straddling(p, prober.output_bits)
    return float(value), total


def _told_apart(
    prober: Prober, query: tuple[int, ...], tokens: list[Token], more: Token
) -> bool:
    """Return True if the last row tells if there is one token more."""
    rounded = numpy_dtype(prober.output_dtype)
    questions = [Question(query, (*tokens, *extra)) for extra in ((), (more,))]
    got = [prober.answers(question)[-1] for question in questions]
    exact = [
        np.float64(prober.exact(question)).astype(rounded).astype(np.float64)
        for question in questions
    ]
    return all(abs(got[i] - exact[i]) < abs(got[i] - exact[1 - i]) for i in (0, 1))


@cache
def straddling(p: int, bits: int) -> tuple[int, int]:
    """Return c and D in ``2^p .. 17/16 2^p`` with ``c/D`` and ``c/(D+1)`` far apart.

    Between the two, up to powers of two, lies the middle of two neighbours in a format
    of so many `bits`. c has 8 bits. D ends in binary ``11`` and at least two zeros, so
    that it rounds to the same number as ``D + 1`` in any format with no bit for the 1.

    Examples
    --------
    >>> straddling(12, bits=8)
    (196, 4236)
    >>> 196 / 4236 * 2**12 > 189.5 > 196 / 4237 * 2**12
    True
    """
    errors = {}
    for c in range(2**7, 2**8):
        for middle in range(2**bits + 1, 2**bits + min(2**bits, 2**9), 2):
            shift = p + bits - 7 + (c << (bits - 7) < middle)
            total, rest = divmod(c << shift, middle)
            last = total & -total
            if 16 * total > 17 << p or last < 4 or not total & 2 * last:
                continue
            errors[c, total] = min(rest, middle - rest) / middle
    return max(errors, key=lambda pair: errors[pair])
