"""Number formats as functions that round to them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from linkern.oracle import Bounded
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.hypotheses.pairs import Real

__all__ = ["Format", "formats_of", "known_formats", "rounded"]


@dataclass(frozen=True)
class Format:
    """A precision that numbers are rounded to.

    Parameters
    ----------
    bits : int
        Significand bits.
    name : str
        Its name; empty for a number of bits that has none.
    truncates : bool
        Whether it drops digits and does not round to nearest.
    """

    bits: int
    name: str = ""
    truncates: bool = False

    def __call__(self, x: Real) -> Real:
        """Round numbers.

        Examples
        --------
        >>> Format(2)(np.asarray([1.25, 1.75, 5.0])).tolist()
        [1.0, 2.0, 4.0]
        """
        if self.name == "float16" and not self.truncates:
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float64)
        mantissa, exponent = np.frexp(x)
        whole = np.ldexp(mantissa, self.bits)
        kept = np.trunc(whole) if self.truncates else np.rint(whole)
        return np.asarray(np.ldexp(kept, exponent - self.bits))

    @property
    def unlimited(self) -> "Format":
        """The same precision with exponents that never run out."""
        return Format(self.bits, truncates=self.truncates)

    @property
    def phrase(self) -> str:
        """Its effect in words: ``rounded to bfloat16``."""
        return f"{'cut off' if self.truncates else 'rounded'} to {self.spelt}"

    @property
    def spelt(self) -> str:
        """Its name, or its bits."""
        return self.name or f"{self.bits} bits"

    @property
    def bound_dtype(self) -> str:
        """A dtype whose unit roundoff is at least its own."""
        bits = self.bits - self.truncates
        coarser = [n for n, b in SIGNIFICAND_BITS.items() if b <= bits]
        return max(coarser or ["bfloat16"], key=SIGNIFICAND_BITS.__getitem__)


def known_formats(than: str) -> list[Format]:
    """Return the formats that have a name and are narrower than a dtype."""
    names = [n for n, bits in SIGNIFICAND_BITS.items() if bits < SIGNIFICAND_BITS[than]]
    names.sort(key=SIGNIFICAND_BITS.__getitem__)
    return [
        Format(SIGNIFICAND_BITS[name], name, truncates)
        for truncates in (False, True)
        for name in names
    ]


def formats_of(bits: int, *, truncates: bool) -> Iterator[Format]:
    """Yield the formats of so many bits; one without a name if none has one."""
    named = [
        Format(bits, name, truncates)
        for name, size in SIGNIFICAND_BITS.items()
        if size == bits
    ]
    yield from named or [Format(bits, truncates=truncates)]


def rounded(expected: Bounded, to: Format) -> Bounded:
    """Return bounded numbers after rounding, which is monotonic."""
    output, bound = expected.output, expected.bound
    with np.errstate(all="ignore"):
        middle = to(output)
        ends = abs(to(output + bound) - middle), abs(middle - to(output - bound))
    widest = np.where(np.isfinite(bound), np.maximum(*ends), np.inf)
    overflows = np.isfinite(output) & ~np.isfinite(middle) & np.isfinite(bound)
    return Bounded(
        np.where(overflows, np.nan, middle), np.where(overflows, 0.0, widest)
    )
