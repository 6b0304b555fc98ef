"""A problem: the inputs of one call, with what the referee knows about them."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import (
    Bounded,
    Differentiand,
    Evaluation,
    FeatureMap,
    Integers,
    bounded_gradients,
    bounded_output,
    bounded_state,
    evaluate,
    evaluate_integers,
    exact_integer_output,
)
from linkern.testing.problems import expected
from linkern.testing.problems.context import Scope, Shape

__all__ = ["Problem"]

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """One set of inputs.

    Parameters
    ----------
    scope : Scope
        Operator, contract and dtype.
    kind : str
        Which generator made it.
    inputs : mapping of str to array
        The inputs by name, in the order of the operator and the dtype of the scope.
    integers : tuple of arrays, optional
        The integer features and values behind them, if sums are exact.
    exact : bool
        The same of an operator without features: whether every sum is exact.
    knobs : dict
        What a check drew besides: a cut, an exponent, a chunk size.
    cotangent : array (B, H, T, V), optional
        Cotangent of the output, where gradients are judged.
    """

    scope: Scope
    kind: str
    inputs: Mapping[str, NDArray[Any]]
    integers: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    cotangent: NDArray[Any] | None = None
    exact: bool = False

    def __repr__(self) -> str:
        """Name the shape, kind and knobs; the arrays are saved, not printed."""
        of = self.shape
        keys = "" if of.keys == of.length else f" S={of.keys}"
        sizes = f"B={of.batch} H={of.heads} T={of.length}{keys}"
        dims = f"K={of.key_dim} V={of.value_dim}"
        dims += f" M={of.slots}" if of.slots > 1 else ""
        dims += f" groups={of.groups}" if of.groups > 1 else ""
        knobs = "".join(f" {name}={value}" for name, value in self.knobs.items())
        return f"{sizes} {dims} {self.scope.dtype}, {self.kind}{knobs}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Do the same for Hypothesis, which would print every field."""
        del cycle
        printer.text(repr(self))

    @property
    def query(self) -> NDArray[Any]:
        """The queries."""
        return self.inputs["query"]

    @property
    def key(self) -> NDArray[Any]:
        """The keys."""
        return self.inputs["key"]

    @property
    def value(self) -> NDArray[Any]:
        """The values."""
        return self.inputs["value"]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter."""
        return self.scope.operator.sizes(self.inputs)

    @property
    def length(self) -> int:
        """``T``, the number of queries."""
        return self.sizes["t"]

    @property
    def shape(self) -> Shape:
        """The sizes of the problem."""
        of = self.sizes
        tokens = (of["b"], of["h"], of["t"], of["s"], of["k"], of["v"])
        groups = of["g"] // max(of["h"], 1)
        return Shape(*tokens, groups=groups, slots=of["m"], levels=of["l"])

    def with_inputs(self, **inputs: Any) -> "Problem":
        """Return the problem with other inputs, whose sums are not known exactly."""
        changed = {**self.inputs, **inputs}
        return replace(self, integers=None, exact=False, inputs=changed)

    def without(self, *names: str) -> "Problem":
        """Return the problem with some inputs left out."""
        kept = {n: x for n, x in self.inputs.items() if n not in names}
        return replace(self, integers=None, exact=False, inputs=kept)

    def first_of_batch(self) -> "Problem":
        """Return the problem of the first batch entry."""
        inputs = self.scope.operator.inputs
        one = {x.name for x in inputs if "b" in x.axes}
        return self.with_inputs(
            **{name: x[:1] for name, x in self.inputs.items() if name in one}
        )

    def of_tokens(self, name: str, first: int | None, last: int | None) -> Any:
        """Return what an input holds of the tokens from `first` to before `last`."""
        x, axis = self.inputs[name], self.scope.operator.input(name).token_axis
        if axis is None:
            return x
        each = x.shape[axis] // max(self.length, 1)  # keys of one query
        if not self.scope.operator.family:
            each = 1
        span = slice(*(n if n is None else n * each for n in (first, last)))
        return x[(*(slice(None),) * axis, span)]

    def told(self, **knobs: Any) -> "Problem":
        """Return the same problem with more knobs; what is known of it stays known."""
        same = replace(self, knobs={**self.knobs, **knobs})
        vars(same)["_known"] = self._known
        return same

    def prefix(self, length: int) -> "Problem":
        """Return the problem of the first tokens; their sums are no less exact."""
        return replace(self.span(0, length), exact=self.exact)

    def span(self, first: int, last: int) -> "Problem":
        """Return the problem of the tokens from `first` to before `last`."""
        return self.with_inputs(
            **{name: self.of_tokens(name, first, last) for name in self.inputs}
        )

    def solve(
        self, *, shared_features: bool = False, confidence: float | None = None
    ) -> Bounded:
        """Return the exact output and the bound on a correct target's error.

        Parameters
        ----------
        shared_features : bool
            Leave out the error of the feature map, for laws in which the numerator and
            the denominator see the same features whatever they are.
        confidence : float, optional
            The lambda of the probabilistic tier, for independent draws only.
        """
        asked = ("output", shared_features, confidence)
        return self.recalled(
            asked, lambda: self._solved(shared_features, confidence=confidence)
        )

    def _solved(self, shared_features: bool, *, confidence: float | None) -> Bounded:
        if self.scope.operator.family:
            return expected.output(self._consultation, confidence)
        contract = self.scope.contract
        quotient = contract.quotient(self.query.shape[-1])
        precisions = contract.precisions(self.scope.dtype)
        if self.integers is not None:
            return exact_integer_output(self._integer_sums, quotient, precisions)
        return bounded_output(
            self._evaluated(shared_features=True)
            if shared_features
            else self._evaluation,
            quotient,
            precisions,
            chunk_size=contract.chunk_size,
            confidence=confidence,
        )

    def solve_state(self) -> tuple[Bounded, ...]:
        """Return the exact state after the last key: memory, normalizer if any."""
        if self.scope.operator.family:
            return expected.states(self._consultation)
        contract = self.scope.contract
        return bounded_state(
            self._evaluation,
            contract.precisions(self.scope.dtype),
            chunk_size=contract.chunk_size,
        )

    def solve_gradients(self, *, confidence: float | None = None) -> dict[str, Bounded]:
        """Return the exact gradients of the inputs for the problem's cotangent."""
        return self.recalled(
            ("gradients", confidence), lambda: self._solved_gradients(confidence)
        )

    def _solved_gradients(self, confidence: float | None) -> dict[str, Bounded]:
        assert self.cotangent is not None
        if self.scope.operator.family:
            cotangent = self.cotangent.astype(np.float64)
            return expected.gradients(self._consultation, cotangent, confidence)
        contract = self.scope.contract
        precisions = contract.precisions(self.scope.dtype)
        query, key = self._features()
        of = Differentiand(
            query.output,
            key.output,
            self.value.astype(np.float64),
            self.cotangent.astype(np.float64),
            query.bound,
            key.bound,
            self.scope.operator.causal,
        )
        found = bounded_gradients(
            of,
            contract.quotient(self.query.shape[-1]),
            precisions,
            output_dtype=self.scope.output_dtype,
            confidence=confidence,
        )
        maps = (self.scope.query_map, self.scope.key_map)
        through = (
            _pulled_back(feature_map, x.astype(np.float64), gradient, precisions.unit)
            for feature_map, x, gradient in zip(
                maps, (self.query, self.key), found[:2], strict=True
            )
        )
        return dict(zip(self.inputs, (*through, found[2]), strict=True))

    def _features(self) -> tuple[Bounded, Bounded]:
        """Return the features of queries and keys with their admitted errors."""
        contract = self.scope.contract
        u = contract.precisions(self.scope.dtype).unit
        found = []
        for feature_map, x in (
            (self.scope.query_map, self.query.astype(np.float64)),
            (self.scope.key_map, self.key.astype(np.float64)),
        ):
            with np.errstate(all="ignore"):
                error = feature_map.error(x, u)
                if contract.feature_error == "relative":
                    error = np.minimum(error, 8 * u * abs(feature_map.value(x)))
                found.append(Bounded(feature_map.value(x), error))
        query, key = found
        if self.integers is not None:
            # Chosen so that any evaluation of the map finds them exactly.
            query, key = (Bounded(x.output, np.zeros_like(x.bound)) for x in found)
        return query, key

    # Several laws ask for the same sums in several ways: walk over the tokens once.
    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def recalled(self, what: Hashable, find: Callable[[], Found]) -> Found:
        """Return what `find` finds, which is looked for once; nobody may change it."""
        if what not in self._known:
            self._known[what] = find()
        found: Found = self._known[what]
        return found

    @property
    def _evaluation(self) -> Evaluation:
        return self.recalled("evaluation", self._evaluated)

    @property
    def _consultation(self) -> expected.Consultation:
        of = self.scope

        def asked() -> expected.Consultation:
            inputs = dict(self.inputs)
            return expected.Consultation(
                of.operator, of.contract, of.dtype, inputs, exact=self.exact
            )

        return self.recalled("consultation", asked)

    @property
    def _integer_sums(self) -> Integers:
        assert self.integers is not None
        a, b, v = self.integers
        causal = self.scope.operator.causal
        return self.recalled(
            "integers", lambda: evaluate_integers(a, b, v, causal=causal)
        )

    def _evaluated(self, *, shared_features: bool = False) -> Evaluation:
        query, key = self._features()
        errors: dict[str, Any] = {}
        if not shared_features:
            errors = {"query_error": query.bound, "key_error": key.bound}
        with np.errstate(all="ignore"):
            return evaluate(
                query.output,
                key.output,
                self.value.astype(np.float64),
                causal=self.scope.operator.causal,
                **errors,
            )


def _pulled_back(
    feature_map: FeatureMap, x: NDArray[Any], gradient: Bounded, u: float
) -> Bounded:
    """Return the gradient of an input from that of its features, with its bound."""
    with np.errstate(all="ignore"):
        exact = feature_map.pullback(x, gradient.output)
        carried = feature_map.pullback_gauge(x, gradient.bound)
        size = feature_map.pullback_gauge(x, abs(gradient.output) + gradient.bound)
        # Two roundings more: the product with the derivative, and the result.
        bound = carried + (feature_map.pullback_error(x, u) + 2 * u) * size
    return Bounded(exact, np.where(np.isnan(bound), np.inf, bound))
