"""Problems: the inputs of one call, with what the referee knows about them.

A problem is a draw of shape, kind and seed; its arrays follow from those. That keeps a
draw small enough for Hypothesis to shrink a sequence of 600 tokens to the 17 that matter.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import (
    FEATURE_MAPS,
    Bounded,
    FeatureMap,
    bounded_output,
    evaluate,
    evaluate_integers,
    exact_integer_output,
)
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.contract import Contract
from linkern.testing.frameworks import numpy_dtype
from linkern.testing.operators import Operator

__all__ = [
    "Problem",
    "Scope",
    "Shape",
    "integer_problem",
    "real_problem",
    "tiny_feature_exponent",
]


@dataclass(frozen=True)
class Scope:
    """What every problem of one run has in common.

    Parameters
    ----------
    operator : Operator
        What the target claims to be.
    contract : Contract
        What it declares.
    dtype : str
        Dtype of the inputs.
    exposes : frozenset of str
        Keywords of the target, ``form`` and ``chunk_size`` among them if it has forms.
    """

    operator: Operator
    contract: Contract
    dtype: str
    exposes: frozenset[str] = frozenset()

    @property
    def query_map(self) -> FeatureMap:
        """The feature map of queries."""
        return FEATURE_MAPS[self.contract.feature_map]

    @property
    def key_map(self) -> FeatureMap:
        """The feature map of keys."""
        name = self.contract.key_feature_map or self.contract.feature_map
        return FEATURE_MAPS[name]

    @property
    def narrowest_bits(self) -> int:
        """Significand bits of the narrowest stage that a sum of integers goes through."""
        stages = self.contract.precisions(self.dtype)
        names = (
            stages.accumulator,
            stages.score,
            stages.state,
            stages.normalizer,
        )
        return min(SIGNIFICAND_BITS[name] for name in names if name)

    @property
    def input_bits(self) -> int:
        """Significand bits of the narrowest stage that an input goes through."""
        stages = self.contract.precisions(self.dtype)
        names = (self.dtype, stages.feature, stages.operand)
        return min(SIGNIFICAND_BITS[name] for name in names if name)


@dataclass(frozen=True)
class Shape:
    """Sizes of one problem: inputs are ``(batch, heads, length or keys, dim)``."""

    batch: int
    heads: int
    length: int
    keys: int
    key_dim: int
    value_dim: int

    @property
    def query(self) -> tuple[int, int, int, int]:
        """Shape of the query."""
        return (self.batch, self.heads, self.length, self.key_dim)

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Shape of the key."""
        return (self.batch, self.heads, self.keys, self.key_dim)

    @property
    def value(self) -> tuple[int, int, int, int]:
        """Shape of the value."""
        return (self.batch, self.heads, self.keys, self.value_dim)


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """One set of inputs.

    Parameters
    ----------
    scope : Scope
        Operator, contract and dtype.
    kind : str
        Which generator made it.
    query, key, value : array (B, H, T, K), (B, H, S, K), (B, H, S, V)
        Inputs in the dtype of the scope.
    integers : tuple of arrays, optional
        The integer features and values behind them, if sums are exact.
    knobs : dict
        What a check drew besides: a cut, an exponent, a chunk size.
    """

    scope: Scope
    kind: str
    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    integers: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None = None
    knobs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Name the shape, kind and knobs; the arrays are saved, not printed."""
        batch, heads, length, key_dim = self.query.shape
        keys, value_dim = self.value.shape[-2:]
        sizes = f"B={batch} H={heads} T={length}"
        sizes += "" if keys == length else f" S={keys}"
        knobs = "".join(f" {name}={value}" for name, value in self.knobs.items())
        return (
            f"{sizes} K={key_dim} V={value_dim} {self.scope.dtype}, {self.kind}{knobs}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001
        """Do the same for Hypothesis, which would print every field."""
        del cycle
        printer.text(repr(self))

    @property
    def length(self) -> int:
        """``T``, the number of queries."""
        return self.query.shape[-2]

    @property
    def shape(self) -> Shape:
        """The sizes of the problem."""
        return Shape(*self.query.shape[:3], *self.key.shape[2:], self.value.shape[3])

    def with_inputs(self, **inputs: NDArray[Any]) -> "Problem":
        """Return the problem with other inputs, whose sums are not known exactly."""
        return replace(self, integers=None, **inputs)

    def prefix(self, length: int) -> "Problem":
        """Return the problem of the first tokens."""
        integers = self.integers and tuple(x[..., :length, :] for x in self.integers)
        return replace(
            self,
            query=self.query[..., :length, :],
            key=self.key[..., :length, :],
            value=self.value[..., :length, :],
            integers=integers,
        )

    def solve(self, *, shared_features: bool = False) -> Bounded:
        """Return the exact output and the bound on a correct target's error.

        `shared_features` leaves out the error of the feature map, for laws in which the
        numerator and the denominator see the same features whatever they are.
        """
        contract = self.scope.contract
        quotient = contract.quotient(self.query.shape[-1])
        precisions = contract.precisions(self.scope.dtype)
        causal = self.scope.operator.causal
        if self.integers is not None:
            exact_sums = evaluate_integers(*self.integers, causal=causal)
            return exact_integer_output(exact_sums, quotient, precisions.accumulator)
        query, key, value = (
            x.astype(np.float64) for x in (self.query, self.key, self.value)
        )
        errors: dict[str, Any] = {}
        if not shared_features:
            u = 2.0 ** -SIGNIFICAND_BITS[precisions.accumulator]
            errors["query_error"] = self.scope.query_map.error(query, u)
            errors["key_error"] = self.scope.key_map.error(key, u)
        with np.errstate(all="ignore"):
            exact = evaluate(
                self.scope.query_map.value(query),
                self.scope.key_map.value(key),
                value,
                causal=causal,
                **errors,
            )
        return bounded_output(
            exact, quotient, precisions, chunk_size=contract.chunk_size
        )


def integer_problem(
    scope: Scope, shape: Shape, kind: str, density: str, rng: np.random.Generator
) -> Problem:
    """Make inputs whose sums are exact integers in any order, at any declared precision.

    Kinds, by the defect each can reach: ``dense`` small numbers everywhere, so that any
    key lost, doubled or misplaced shows; ``onehot`` few keys per query, so that weights
    stay large at the end of long sequences; ``wide`` values that fill every bit of the
    narrowest stage, so that one rounding shows; ``cancelling`` large values that are
    taken back later, so that what was rounded away while they were held shows.
    """
    present = {"zeros": 0.0, "sparse": 0.2, "dense": 1.0}[density]
    a, b = _integer_features(scope, shape, kind, present, rng)
    room = 2 ** (scope.narrowest_bits - 1) // _reach(a, b)
    v = _integer_values(scope, shape.value, kind, room, max(present, 0.05), rng)
    return Problem(
        scope,
        f"{kind} integers",
        _inputs(scope.query_map, a, scope.dtype),
        _inputs(scope.key_map, b, scope.dtype),
        v.astype(numpy_dtype(scope.dtype)),
        integers=(a, b, v),
    )


def _integer_features(
    scope: Scope, shape: Shape, kind: str, present: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return features whose denominators are powers of two, as far as that can be."""
    most = min(3, scope.query_map.largest_integer, scope.key_map.largest_integer)

    def features(of: tuple[int, ...], present: float) -> NDArray[np.int64]:
        drawn = rng.integers(0, most + 1, of) * (rng.random(of) < present)
        if kind == "onehot" and present:
            drawn = np.arange(of[-1]) == rng.integers(0, of[-1], (*of[:-1], 1))
        # Feature 0 is 1 in every query and key, so that no denominator is zero.
        drawn[..., 0] = 1
        return drawn.astype(np.int64)

    a, b = features(shape.query, present), features(shape.key, present)
    # Twice: the filler at most doubles a denominator.
    if 2 * _reach(a, b) > 2 ** (scope.narrowest_bits - 1):
        a, b = features(shape.query, 0.0), features(shape.key, 0.0)
    largest = min(scope.query_map.largest_integer, 2**scope.input_bits)
    if shape.key_dim > 1 and shape.keys and 2 * _reach(a, b) <= largest:
        # The last feature of the first key is 1, and 0 in all others: what a query has
        # there is added to its denominator, and fills it up to a power of two.
        a[..., -1] = b[..., -1] = 0
        b[..., 0, -1] = 1
        seen = np.cumsum(b, axis=-2) if scope.operator.causal else b.sum(-2)[..., None, :]
        denominator = (a * seen).sum(axis=-1)
        a[..., -1] = 2 ** np.ceil(np.log2(denominator)).astype(np.int64) - denominator
    return a, b


def _reach(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return the largest sum of weights of a row, or of features of the keys."""
    total = b.sum(axis=-2, keepdims=True)
    return max(int((a * total).sum(axis=-1).max(initial=1)), int(total.max(initial=1)))


def _integer_values(
    scope: Scope,
    shape: tuple[int, ...],
    kind: str,
    room: int,
    present: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    most = max(1, min(room, 2**scope.input_bits))
    if kind in ("dense", "onehot"):
        most = min(most, 9)
    v = rng.integers(-most, most, shape, endpoint=True)
    v *= rng.random(shape) < present
    if kind == "cancelling":
        held = shape[-2] // 2
        v[..., held : 2 * held, :] = -v[..., :held, :]
        v += rng.integers(-1, 1, shape, endpoint=True)
        v = np.clip(v, -most, most)
    return v


def _inputs(
    feature_map: FeatureMap, features: NDArray[Any], dtype: str
) -> NDArray[Any]:
    assert feature_map.from_integers is not None
    return feature_map.from_integers(features).astype(numpy_dtype(dtype))


def tiny_feature_exponent(scope: Scope) -> int:
    """Return how small ``2^-n`` features can be and still be right as ``elu(x) + 1``.

    The textbook evaluation has an absolute error of one unit roundoff, so features of
    at least its 0.8th power keep some relative accuracy.
    """
    stages = scope.contract.precisions(scope.dtype)
    names = (stages.accumulator, stages.feature)
    return int(0.8 * min(SIGNIFICAND_BITS[name] for name in names if name))


def real_problem(
    scope: Scope, shape: Shape, kind: str, values: str, rng: np.random.Generator
) -> Problem:
    """Make inputs that round.

    Kinds of features: ``normal`` inputs; ``uniform`` features; ``wide`` features over
    twelve powers of two; ``constant``, whose rounding errors add up; ``bigfirst``, a
    first key that swamps the rest; ``needle``, one key that outweighs all; ``tiny``, as
    small as an honest ``elu(x) + 1`` can be, where any epsilon shows. Values:
    ``normal``, ``uniform``, ``constant`` per channel, ``alternating`` in sign.
    """
    a = _real_features(scope, shape.query, kind, rng)
    b = _real_features(scope, shape.key, kind, rng)
    if kind == "bigfirst" and shape.keys:
        b[..., 0, :] *= 2.0**10
    if kind == "needle" and shape.keys:
        b[..., rng.integers(shape.keys), :] *= 2.0**6
    dtype = numpy_dtype(scope.dtype)
    query = scope.query_map.preimage(a).astype(dtype)
    key = scope.key_map.preimage(b).astype(dtype)
    value = _real_values(shape.value, values, rng).astype(dtype)
    return Problem(scope, f"{kind} features, {values} values", query, key, value)


def _real_features(
    scope: Scope, shape: tuple[int, ...], kind: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    if kind == "normal":
        return np.exp(np.minimum(rng.normal(size=shape), 0)) + np.maximum(
            rng.normal(size=shape), 0
        )
    if kind == "wide":
        return np.exp2(rng.uniform(-6, 6, shape))
    if kind == "tiny":
        lowest = -tiny_feature_exponent(scope)
        return np.exp2(rng.uniform(lowest, lowest / 2, shape))
    if kind == "constant":
        return np.full(shape, rng.uniform(0.5, 1.5))
    return rng.uniform(0.1, 1.0, shape)


def _real_values(
    shape: tuple[int, ...], values: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    if values == "uniform":
        return rng.uniform(0, 1, shape)
    if values == "constant":
        # Whole numbers: exact in every dtype, so that the hull is what was passed.
        return np.broadcast_to(
            rng.integers(1, 8, (*shape[:-2], 1, shape[-1])), shape
        ).astype(np.float64)
    v = rng.normal(size=shape)
    if values == "alternating":
        v = abs(v) * np.where(np.arange(shape[-2]) % 2, -1.0, 1.0)[:, None]
    return v
