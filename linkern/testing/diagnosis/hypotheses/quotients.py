"""Divisors that are not the sum of the weights: epsilons, scales, other rows' sums."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded, Quotient
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    OPERATOR,
    Deviation,
    causal,
    gated,
    hypothesis,
    linear,
    normalized,
)
from linkern.testing.diagnosis.hypotheses.measuring import (
    decimals,
    fitted,
    geometric,
    spelt,
    typical_ratio,
)
from linkern.testing.diagnosis.hypotheses.pairs import Condition, Real
from linkern.testing.diagnosis.hypotheses.variant import variant
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import INVERSE_ROOT_KEY_DIM

Factor = Callable[[Problem], Real | float]

# Factors that kernels are known to put in or to forget, as powers of the key dimension.
_POWERS = {INVERSE_ROOT_KEY_DIM: -0.5, "K^-1": -1.0, "K^0.5": 0.5, "K": 1.0}
# Of a product or a quotient that is formed besides: the factor, and the result.
_ROUNDINGS = 3


@hypothesis("outputs", 130, normalized)
def epsilons(evidence: Evidence) -> Iterator[Deviation]:
    """Yield epsilons in the divisor, of measured size."""
    if evidence.scope.contract.eps:
        yield variant(
            "eps_missing",
            "the quotient without its declared epsilon",
            quotient=lambda q, _: replace(q, eps=0.0, eps_mode="denominator"),
        )
    for power, which in ((0.0, ""), (-0.5, " of scores scaled by K^-0.5")):
        for mode, name, phrase in (
            ("denominator", "eps", "`eps={}` added to the denominator"),
            ("normalizer", "eps_in_normalizer", "`eps={}` added to the normalizer"),
            ("clamp", "clamp", "a denominator of at least {}"),
        ):
            declared: tuple[str, ...] = ("scale=K^-0.5",) if power else ()
            if mode != evidence.scope.contract.eps_mode:
                declared += (f"eps_mode={mode}",)
            deviation = _with_eps(mode, name, phrase + which, power, declared)
            eps = fitted(evidence, deviation, geometric(-14, 1))
            yield from map(deviation, decimals(eps) if eps else ())


def _with_eps(
    mode: str, name: str, phrase: str, power: float, declared: tuple[str, ...]
) -> Callable[[float], Deviation]:
    """Return what makes a deviation of an epsilon."""

    def deviation(eps: float) -> Deviation:
        def quotient(declared: Quotient, key_dim: int) -> Quotient:
            scale = declared.scale * key_dim**power
            return replace(declared, scale=scale, eps=eps, eps_mode=mode)

        plain = variant(name, phrase.format(spelt(eps)), quotient=quotient)
        return replace(plain, declaration=(f"eps={spelt(eps)}", *declared))

    return deviation


@hypothesis("outputs", 110, linear)
def scales(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs that are not divided, or by something else, or have a factor.

    The factor is a power of the key dimension, or one over the number of keys, or a
    number that is measured.
    """
    contract = evidence.scope.contract
    declared = ("normalize=false",) if contract.eps == 0 else ()
    undivided = _divided(normalize=False)
    if contract.normalize:
        yield from _with_factors(evidence, "output_scaled", _divided(normalize=True))
        undivided = replace(undivided, declaration=declared)
        yield undivided
        yield from _with_factors(evidence, "not_normalised", undivided)
    else:
        yield from _with_factors(evidence, "output_scaled", undivided, scales=True)
        yield replace(_divided(normalize=True), declaration=("normalize=true",))


@hypothesis("outputs", 118, gated)
def scaled_outputs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs of an operator with gates that have a factor."""
    scales = evidence.scope.operator.has_scale
    yield from _with_factors(evidence, "output_scaled", OPERATOR, scales=scales)


def _divided(*, normalize: bool) -> Deviation:
    """Return the operator, divided by the sum of its weights or not."""

    def quotient(declared: Quotient, key_dim: int) -> Quotient:
        del key_dim
        eps = declared.eps if normalize else 0.0
        return replace(declared, normalize=normalize, eps=eps)

    if normalize:
        phrase = "outputs divided by the sum of their weights"
        return variant("normalised", phrase, quotient=quotient)
    phrase = "outputs that are not normalised"
    return variant("not_normalised", phrase, quotient=quotient)


def _with_factors(
    evidence: Evidence, name: str, base: Deviation, *, scales: bool = False
) -> Iterator[Deviation]:
    """Yield a deviation times factors; of some, `scales` says so, a scale is one."""

    def declaring(
        deviation: Deviation, power: float = 0.0, factor: float = 1.0
    ) -> Deviation:
        scale = _scale(evidence.scope, power, factor)
        if not scale or not (scales or base.declaration):
            return deviation
        return replace(deviation, declaration=(*base.declaration, f"scale={scale}"))

    for spelling, power in _POWERS.items():
        times = _multiplied(base, name, f"times {spelling}", _power(power))
        yield declaring(times, power=power)
    yield _multiplied(base, name, "divided by the number of keys", _one_over_keys)
    yield _multiplied(base, name, "divided by the length", _one_over_length)
    typical = typical_ratio(evidence, base)
    if not typical:
        return
    for size in decimals(abs(typical)):
        factor = float(np.copysign(size, typical))
        times = _multiplied(base, name, f"times {spelt(factor)}", _constant(factor))
        yield declaring(times, factor=factor)


def _scale(scope: Scope, power: float, factor: float) -> str:
    """Return the declared scale that has a further factor; empty if none has."""
    default = 1.0 if scope.operator.feature_map else scope.operator.scale
    declared = scope.contract.scale
    scale = default if declared is None else declared
    if isinstance(scale, str):
        scale, power = 1.0, power - 0.5
    if power == 0:
        return spelt(scale * factor)
    only_power = power == -0.5 and scale * factor == 1
    return INVERSE_ROOT_KEY_DIM if only_power else ""


def _multiplied(base: Deviation, name: str, phrase: str, factor: Factor) -> Deviation:
    """Return a deviation whose output is multiplied by a factor."""

    def predict(problem: Problem) -> Bounded | None:
        plain = base.predict(problem)
        if plain is None:
            return None
        scope, by = problem.scope, np.asarray(factor(problem))
        u = scope.contract.precisions(scope.dtype).unit
        output, bound = by * plain.output, abs(by) * plain.bound
        return Bounded(output, bound + _ROUNDINGS * u * (abs(output) + bound))

    start = "outputs " if name == "output_scaled" else f"{base.phrase}, "
    return Deviation(name, start + phrase, predict)


def _constant(factor: float) -> Factor:
    return lambda _: factor


def _power(power: float) -> Factor:
    return lambda problem: float(problem.shape.key_dim) ** power


def _one_over_keys(problem: Problem) -> Real | float:
    if not problem.scope.operator.causal:
        return 1 / problem.shape.keys
    return np.asarray(1 / np.arange(1.0, problem.length + 1)[:, None])


def _one_over_length(problem: Problem) -> float:
    return 1 / problem.length


@hypothesis("outputs", 120, normalized)
def divisors(evidence: Evidence) -> Iterator[Deviation]:
    """Yield denominators of other keys than the numerator, or of other rows."""
    if causal(evidence.scope):
        yield variant(
            "noncausal_normalizer",
            "a normalizer of the whole sequence",
            denominator=lambda pairs: np.ones_like(pairs.seen),
        )
    else:
        yield variant(
            "causal_normalizer",
            "a normalizer of the keys so far",
            denominator=lambda pairs: pairs.key <= pairs.query,
        )
    for name, phrase, row in (
        ("normalizer_of_last_row", "the denominator of the last row", _last),
        ("normalizer_of_first_row", "the denominator of the first row", np.zeros_like),
        ("normalizer_late", "the denominator of the row before", _before),
        ("normalizer_early", "the denominator of the row after", _after),
    ):
        yield variant(name, f"{phrase} in every row", divisor_row=row)
    for chunk in evidence.chunk_sizes if causal(evidence.scope) else ():
        for end, keys in (("end", _until_end(chunk)), ("start", _until_start(chunk))):
            yield variant(
                "normalizer_of_chunk",
                f"a normalizer of the {end} of every chunk of {chunk}",
                denominator=keys,
            )


def _until_end(chunk: int) -> Condition:
    return lambda pairs: np.asarray(pairs.behind(chunk) >= 0)


def _until_start(chunk: int) -> Condition:
    return lambda pairs: np.asarray(pairs.key <= pairs.query // chunk * chunk)


def _last(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.full_like(rows, rows.size - 1)


def _before(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(rows - 1, 0)


def _after(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum(rows + 1, rows.size - 1)
