"""A problem: the inputs of one call, with what the referee knows about them."""

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
    unit_roundoff,
)
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.contract import Contract
from linkern.testing.operators import Operator

__all__ = ["Problem", "Scope", "Shape"]


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
    few_shapes : bool
        Whether each new shape is expensive, since it is compiled.
    """

    operator: Operator
    contract: Contract
    dtype: str
    exposes: frozenset[str] = frozenset()
    few_shapes: bool = False

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
    def stages(self) -> set[str]:
        """The dtypes that a number goes through, from input to output."""
        stages = self.contract.precisions(self.dtype)
        declared = (stages.feature, stages.operand, stages.score)
        carried = (stages.state, stages.normalizer)
        names = (self.dtype, stages.accumulator, *declared, *carried)
        return {name for name in names if name}

    @property
    def narrowest_bits(self) -> int:
        """Significand bits of the narrowest stage that sums go through."""
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
        """Significand bits of the narrowest stage that inputs go through."""
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
        of = self.shape
        keys = "" if of.keys == of.length else f" S={of.keys}"
        sizes = f"B={of.batch} H={of.heads} T={of.length}{keys}"
        dims = f"K={of.key_dim} V={of.value_dim}"
        knobs = "".join(f" {name}={value}" for name, value in self.knobs.items())
        return f"{sizes} {dims} {self.scope.dtype}, {self.kind}{knobs}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Do the same for Hypothesis, which would print every field."""
        del cycle
        printer.text(repr(self))

    @property
    def length(self) -> int:
        """``T``, the number of queries."""
        return int(self.query.shape[-2])

    @property
    def shape(self) -> Shape:
        """The sizes of the problem."""
        batch, heads, length, key_dim = self.query.shape
        keys, value_dim = self.value.shape[-2:]
        return Shape(batch, heads, length, keys, key_dim, value_dim)

    def with_inputs(self, **inputs: Any) -> "Problem":
        """Return the problem with other inputs, whose sums are not known exactly."""
        return replace(self, integers=None, **inputs)

    def prefix(self, length: int) -> "Problem":
        """Return the problem of the first tokens."""
        return self.with_inputs(
            query=self.query[..., :length, :],
            key=self.key[..., :length, :],
            value=self.value[..., :length, :],
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
            u = unit_roundoff(precisions.accumulator)
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
