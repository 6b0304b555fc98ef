"""Declarations that a measurement contradicts; none that a correct kernel could make.

A number that fits the dtype declared for a stage goes through it unharmed, so fewer
bits than that contradict the declaration. The accumulator is given the benefit of the
bound: a kernel may round between its sums, and loses a few bits of a sum by that. To
declare less than was measured is no contradiction.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import depth, gamma
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.fingerprint.epsilon import Epsilon
from linkern.testing.fingerprint.probing import Prober, power_of_four
from linkern.testing.fingerprint.significands import Significands

__all__ = ["about_chunks", "about_epsilon", "about_stages"]

# The stages that may round what the probe of a stage shows, itself included.
ON_THE_WAY = {
    "value": ("operand", "state"),
    "key": ("feature", "operand", "score", "state"),
    "score": ("feature", "operand", "score"),
    "state": ("operand", "state"),
    "normalizer": ("operand", "normalizer"),
}
HOW_IT_ENTERS = {
    "denominator": "{:g} is added to the denominator",
    "normalizer": "{:g} is added to each entry of the normalizer",
    "clamp": "the denominator never falls below {:g}",
}
# The most keys and features that are not zero at once where bits are counted.
MOST_TERMS, MOST_FEATURES = 4, 3


class _Finding(NamedTuple):
    """A stage with fewer bits than it was declared to keep."""

    stage: str
    bits: int
    declared: str


def about_stages(
    prober: Prober, measured: Significands, chunk_size: int | None
) -> Iterator[str]:
    """Yield one sentence for each stage that keeps fewer bits than it should."""
    findings = {}
    for stage, bits in measured.bits.items():
        declared, expected = _expected(prober, measured, stage, chunk_size)
        if bits < expected and stage not in measured.capped:
            findings[stage] = _Finding(stage, bits, declared)
    always = {"value", "key"} if prober.reads else {"value"}
    if always | (measured.bits.keys() - measured.capped) == findings.keys():
        # What is lost everywhere is lost by the sums themselves.
        yield _sentence("accumulator_dtype", list(findings.values()))
        return
    groups: dict[str, list[_Finding]] = {}
    for stage, finding in findings.items():
        groups.setdefault(_blamed(stage, findings), []).append(finding)
    for key, members in groups.items():
        yield _sentence(key, members)


def _blamed(stage: str, findings: dict[str, _Finding]) -> str:
    """Return the declaration that would have covered the measurement."""
    if stage == "value" or (stage == "key" and "value" in findings):
        return "operand_dtype"
    return "feature_dtype" if stage == "key" else f"{stage}_dtype"


def _expected(
    prober: Prober, measured: Significands, stage: str, chunk_size: int | None
) -> tuple[str, int]:
    """Return the dtype that a stage is declared to have, and the bits it must keep."""
    scope = prober.scope
    precisions = scope.contract.precisions(scope.dtype)
    # A sum of so many terms must be right to a quarter of what is left of it, which is
    # 2^-(p+1) of them.
    roundings = depth(np.full(1, MOST_TERMS), MOST_FEATURES)
    expected = _bits_within(gamma(roundings, precisions.unit))
    declared = precisions.accumulator
    for name in ON_THE_WAY[stage]:
        dtype = getattr(precisions, name)
        # What has more bits than that stage was not there; nor are, in the state, two
        # tokens of one chunk.
        avoided = measured.bits.get(name, measured.ceiling) < measured.bits[stage]
        inside = name == "state" != stage and chunk_size is not None
        if dtype is None or avoided or inside:
            continue
        bits = SIGNIFICAND_BITS[dtype]
        if bits < SIGNIFICAND_BITS[declared]:
            declared = dtype
        if not power_of_four(prober.key_dim):
            # A factor of K^-0.5 rounds, so that numbers no longer fit.
            bits = _bits_within(gamma(roundings, 2.0**-bits))
        expected = min(expected, bits)
    return declared, expected


def _bits_within(error: NDArray[np.float64]) -> int:
    """Return the bits that a relative error of sums must leave."""
    return int(np.floor(-np.log2(4 * error.item()))) - 1


def _sentence(key: str, findings: list[_Finding]) -> str:
    *stages, last = (f"the {finding.stage}" for finding in findings)
    listed = f"{', '.join(stages)} and {last}" if stages else last
    bits = min(finding.bits for finding in findings)
    declared = findings[0].declared
    most = max((w for w in SIGNIFICAND_BITS.values() if w <= bits), default=None)
    fitting = [name for name, width in SIGNIFICAND_BITS.items() if width == most]
    advice = (
        f"declare {key}={' or '.join(fitting)}" if fitting else "no dtype has so few"
    )
    return (
        f"`{key}` is declared {declared} ({SIGNIFICAND_BITS[declared]} bits), but "
        f"{bits} bits survive in {listed}: {advice}"
    )


def about_epsilon(prober: Prober, measured: Epsilon) -> Iterator[str]:
    """Yield a sentence if another epsilon was measured than was declared."""
    quotient = prober.quotient
    if not measured.intervals or _agrees(prober, measured):
        return
    declared = f"`eps` is declared {quotient.eps:g}"
    if quotient.eps:
        declared += f" with eps_mode={quotient.eps_mode}"
    if measured.mode is None:
        yield f"{declared}, but there is none above {measured.resolution:.2g}: omit it"
        return
    mode = "" if measured.mode == "denominator" else f" and eps_mode={measured.mode}"
    yield (
        f"{declared}, but {HOW_IT_ENTERS[measured.mode].format(measured.size)}: "
        f"declare eps={measured.size:g}{mode}"
    )


def _agrees(prober: Prober, measured: Epsilon) -> bool:
    """Return True if the declared epsilon can be the measured one."""
    quotient = prober.quotient
    if not quotient.eps:
        return measured.mode is None
    if quotient.eps_mode not in measured.intervals:
        return False
    low, high = measured.intervals[quotient.eps_mode]
    # A kernel rounds the epsilon it is given to the precision that it works in.
    scope = prober.scope
    unit = scope.contract.precisions(scope.dtype).unit
    return low <= quotient.eps * (1 + unit) and quotient.eps * (1 - unit) <= high


def about_chunks(prober: Prober, measured: int | None) -> Iterator[str]:
    """Yield a sentence if another chunk size was measured than was declared."""
    declared = prober.scope.contract.chunk_size
    if declared is not None and measured is not None and declared != measured:
        yield (
            f"`chunk_size` is declared {declared}, but sums have an edge every "
            f"{measured} tokens: declare chunk_size={measured}"
        )
