"""Features and values that are not what the contract says."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from linkern.oracle import FEATURE_MAPS, Bounded, FeatureMap
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    hypothesis,
    linear,
)
from linkern.testing.diagnosis.hypotheses.measuring import (
    decimals,
    fitted,
    geometric,
    spelt,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.spans import after, from_state
from linkern.testing.diagnosis.hypotheses.variant import Inputs, variant
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.contract import Contract

Change = Callable[[Real], Real]
Declaration = tuple[str, ...]


def _elu(x: Real) -> Real:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _sigmoid(x: Real) -> Real:
    return np.asarray(1 / (1 + np.exp(-x)))


def _other(name: str, value: Callable[[Real], Real], roundings: float) -> FeatureMap:
    """Return a map that no contract knows, with a relative and an absolute error."""
    return replace(
        FEATURE_MAPS["identity"],
        name=name,
        value=value,
        error=lambda x, u: roundings * u * (abs(value(x)) + np.minimum(abs(x), 1)),
        from_integers=None,
        homogeneous=False,
    )


_MAPS = (
    *FEATURE_MAPS.values(),
    _other("elu", _elu, 4),
    _other("one_plus_x", lambda x: 1 + x, 2),
    _other("square", np.square, 2),
    _other("relu_squared", lambda x: np.maximum(x, 0) ** 2, 2),
    _other("absolute", np.abs, 0),
    _other("sigmoid", _sigmoid, 8),
    _other("silu", lambda x: x * _sigmoid(x), 10),
    _other("tanh", np.tanh, 8),
    _other("softplus", lambda x: np.logaddexp(0, x), 16),
)


@hypothesis("outputs", 150, linear)
def feature_maps(evidence: Evidence) -> Iterator[Deviation]:
    """Yield other feature maps, on queries, keys or both."""
    scope = evidence.scope
    declared = scope.query_map, scope.key_map
    for which, query, key in (
        ("queries and keys", 1, 1),
        ("queries", 1, 0),
        ("keys", 0, 1),
    ):
        for other in _MAPS:
            used = other if query else declared[0], other if key else declared[1]
            if used == declared:
                continue
            what = "no feature map" if other.name == "identity" else f"`{other.name}`"
            mapped = variant(
                "feature_map",
                f"{what} on the {which}",
                query_map=used[0],
                key_map=used[1],
            )
            yield replace(mapped, declaration=_declared(scope.contract, *used))
    yield from _shifted_features(evidence)


def _declared(contract: Contract, query: FeatureMap, key: FeatureMap) -> Declaration:
    """Return the declarations of two feature maps; none where a contract has none."""
    maps = {"feature_map": query.name, "key_feature_map": key.name}
    if not {*maps.values()} <= {*FEATURE_MAPS}:
        return ()
    if contract.key_feature_map is None and query == key:
        del maps["key_feature_map"]
    return tuple(f"{k}={v}" for k, v in maps.items() if v != getattr(contract, k))


def _shifted_features(evidence: Evidence) -> Iterator[Deviation]:
    """Yield an epsilon that is added to every feature."""
    scope = evidence.scope

    def shifted(eps: float) -> Deviation:
        return variant(
            "eps_in_features",
            f"`eps={spelt(eps)}` added to the features",
            query_map=_plus(scope.query_map, eps),
            key_map=_plus(scope.key_map, eps),
        )

    eps = fitted(evidence, shifted, geometric(-12, 0))
    yield from map(shifted, decimals(eps) if eps else ())


def _plus(feature_map: FeatureMap, eps: float) -> FeatureMap:
    def value(x: Real) -> Real:
        return feature_map.value(x) + eps

    def error(x: Real, u: float) -> Real:
        return feature_map.error(x, u) + 2 * u * (abs(feature_map.value(x)) + eps)

    return replace(feature_map, value=value, error=error)


@hypothesis("outputs", 160, linear)
def padding(evidence: Evidence) -> Iterator[Deviation]:
    """Yield keys of padding, which are zeros, but whose features are not."""
    for chunk in evidence.chunk_sizes:
        phrase = f"padding to chunks of {chunk} counted in the normalizer"
        yield Deviation("padding_counted", phrase, partial(_padded, chunk=chunk))


def _padded(problem: Problem, chunk: int) -> Bounded:
    shape = problem.shape
    if shape.keys % chunk == 0:
        return problem.solve()
    lead = shape.batch, shape.heads, -shape.keys % chunk
    dims = {"query": shape.key_dim, "key": shape.key_dim, "value": shape.value_dim}
    zeros = {name: np.zeros((*lead, dim)) for name, dim in dims.items()}
    return from_state(problem, after(problem.with_inputs(**zeros)))


@hypothesis("outputs", 40, linear)
def lost_features(evidence: Evidence) -> Iterator[Deviation]:
    """Yield features, or channels of values, of which only the first ones are there."""
    scope, shape = evidence.scope, evidence.informative[0].problem.shape
    for kept in range(1, shape.key_dim):
        yield variant(
            "features_lost",
            f"only the first {kept} features of queries and keys",
            query_map=_first_features(scope.query_map, kept),
            key_map=_first_features(scope.key_map, kept),
        )
    for kept in range(1, shape.value_dim):
        phrase = f"only the first {kept} channels of the values"
        yield variant("channels_lost", phrase, arrange=_on_values(_first(kept)))


def _first(kept: int) -> Change:
    return lambda x: np.where(np.arange(x.shape[-1]) < kept, x, 0.0)


def _first_features(feature_map: FeatureMap, kept: int) -> FeatureMap:
    first = _first(kept)

    def value(x: Real) -> Real:
        return first(feature_map.value(x))

    def error(x: Real, u: float) -> Real:
        return first(feature_map.error(x, u))

    return replace(feature_map, value=value, error=error)


def _on_values(change: Change) -> Callable[[Inputs], Inputs]:
    return lambda given: (given[0], given[1], change(given[2]))


@hypothesis("outputs", 170, linear)
def value_maps(evidence: Evidence) -> Iterator[Deviation]:
    """Yield values that are clipped, or taken for zero, beyond a measured threshold."""
    for name, phrase, change in (
        ("values_clipped", "values clipped to {} in size", _clipped),
        ("large_values_as_zero", "values beyond {} in size taken for zero", _zeroed),
        ("small_values_as_zero", "values below {} in size taken for zero", _flushed),
    ):
        for threshold in _thresholds(evidence):
            arrange = _on_values(change(threshold))
            yield variant(name, phrase.format(spelt(threshold)), arrange=arrange)
    absolute = _on_values(np.abs)
    phrase = "the absolute values of the values"
    yield variant("values_absolute", phrase, arrange=absolute)


@hypothesis("with_nan", 10, linear)
def swallowed(evidence: Evidence) -> Iterator[Deviation]:
    """Yield values that are taken for another number if they are not one."""
    del evidence
    phrase = "NaN among the values taken for zero"
    swallowing = variant("swallows_nan", phrase, arrange=_on_values(np.nan_to_num))
    yield replace(swallowing, declaration=("nan_policy=any",))


def _clipped(threshold: float) -> Change:
    return lambda value: np.clip(value, -threshold, threshold)


def _zeroed(threshold: float) -> Change:
    return lambda value: np.where(abs(value) > threshold, 0.0, value)


def _flushed(threshold: float) -> Change:
    return lambda value: np.where(abs(value) < threshold, 0.0, value)


def _thresholds(evidence: Evidence) -> list[float]:
    """Return what lies between right and wrong single tokens, or usual thresholds.

    A sequence of one token returns its own value, whatever its weight.
    """
    usual = [float(f"{m}e{e}") for e in range(-4, 8) for m in (1, 2, 5)]
    usual += [float(np.finfo(np.float16).max), 448.0, 57344.0]
    for probe in evidence.informative:
        if probe.problem.length > 1 or probe.got.shape != probe.problem.value.shape:
            continue
        sizes = abs(probe.problem.value.astype(np.float64))
        wrong, right = sizes[probe.violated], sizes[~probe.violated]
        if right.size and wrong.min() > right.max():
            low, high = float(right.max()), float(wrong.min())
        elif right.size and wrong.max() < right.min():
            low, high = float(wrong.max()), float(right.min())
        else:
            continue
        # Clipped values are the threshold itself.
        clipped = float(abs(probe.got[probe.violated]).max())
        inside = [threshold for threshold in usual if low <= threshold <= high]
        return [clipped, *inside, *decimals(float(np.sqrt(low * high)), 3)]
    return usual
