"""A problem: the inputs of one call, with their exact results and bounds."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.problems import expected
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.target.protocol import SCALES
from linkern.testing.target.ranks.sharding import Sharding

__all__ = ["Problem"]

Result = TypeVar("Result")
# The result that the others are made from.
_CALL = "oracle call"


# Several laws ask for the same sums in several ways: walk over the tokens once.
@dataclass(frozen=True, eq=False)
class _Known:
    """Results of one problem that were computed, and the problems of its parts."""

    results: dict[Hashable, Any] = field(default_factory=dict)
    parts: dict[Hashable, list["Problem"]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """One set of inputs.

    Parameters
    ----------
    scope : Scope
        Operator, contract and dtype.
    kind : str
        Name of the generator that made it.
    inputs : mapping of str to array
        The inputs by name, in the order of the operator and the dtype of the scope.
    integers : tuple of arrays, optional
        The integer features and values behind them, if sums are exact.
    sort : str
        Name of the strategy that drew it, a part of the mixture of all laws.
    exact : bool
        The same of an operator without features: whether every sum is exact.
    knobs : dict
        Further draws of a check: a cut, an exponent, a chunk size.
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
    sort: str = ""

    def __repr__(self) -> str:
        """Name the shape, kind and knobs; the arrays are saved, not printed."""
        shape = self.shape
        keys = "" if shape.keys == shape.length else f" S={shape.keys}"
        sizes = f"B={shape.batch} H={shape.heads} T={shape.length}{keys}"
        dims = f"K={shape.key_dim} V={shape.value_dim}"
        dims += f" M={shape.slots}" if shape.slots > 1 else ""
        dims += f" R={shape.rank}" if shape.rank > 1 else ""
        dims += f" groups={shape.groups}" if shape.groups > 1 else ""
        told = {n: x for n, x in self.knobs.items() if n != "sharding"}
        knobs = "".join(f" {name}={value}" for name, value in told.items())
        over = f" on {self.sharding.described(shape.length)}" if self.sharding else ""
        return f"{sizes} {dims} {self.scope.dtype}, {self.kind}{knobs}{over}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Do the same for Hypothesis, which would print every field."""
        del cycle
        printer.text(repr(self))

    @property
    def has_exact_sums(self) -> bool:
        """True if all sums are exact in any order."""
        return self.exact or self.integers is not None

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
    def scale(self) -> str:
        """The scale that a target with such a parameter is passed."""
        return str(self.knobs.get("scale", "declared"))

    @property
    def sharding(self) -> Sharding | None:
        """The division among ranks of a target that runs on several."""
        return self.knobs.get("sharding")

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
        sizes = self.sizes
        groups = sizes["g"] // max(sizes["h"], 1)
        b, h, t, s, k, v = (sizes[axis] for axis in "bhtskv")
        m, levels, rank = (sizes[axis] for axis in "mlr")
        return Shape(b, h, t, s, k, v, groups, m, levels, rank)

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
        return self.of_batch([0])

    def of_batch(self, entries: Sequence[int]) -> "Problem":
        """Return the problem of some batch entries, in this order."""
        inputs = self.scope.operator.inputs
        many = {x.name for x in inputs if "b" in x.axes}
        entries = [*entries]
        chosen = self.with_inputs(
            **{n: x[entries] for n, x in self.inputs.items() if n in many}
        )
        cotangent = None if self.cotangent is None else self.cotangent[entries]
        return replace(chosen, cotangent=cotangent)

    def of_tokens(self, name: str, first: int | None, last: int | None) -> Any:
        """Return the part of an input of the tokens from `first` to before `last`."""
        x, axis = self.inputs[name], self.scope.operator.input(name).token_axis
        if axis is None:
            return x
        each = x.shape[axis] // max(self.length, 1)  # keys of one query
        if not self.scope.operator.micro_steps:
            each = 1
        span = slice(*(n if n is None else n * each for n in (first, last)))
        return x[(*(slice(None),) * axis, span)]

    def told(self, **knobs: Any) -> "Problem":
        """Return the same problem with more knobs; computed results stay known."""
        same = replace(self, knobs={**self.knobs, **knobs})
        vars(same)["_known"] = self._known
        return same

    def scaled(self, scale: str) -> "Problem":
        """Return the same problem, called with one of the scales of `Call`."""
        if SCALES[scale] == 1:
            return self.told(scale=scale)
        scope = self.scope
        declared = scope.contract.factor(scope.operator.scale, self.sizes["k"])
        changed = replace(scope.contract, scale=SCALES[scale] * declared)
        scope = replace(scope, contract=changed)
        return replace(self, scope=scope, knobs={**self.knobs, "scale": scale})

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
        return self.recalled(
            ("output", shared_features, confidence),
            lambda: expected.output(
                self.oracle_call, confidence, shared_features=shared_features
            ),
        )

    def solve_state(self) -> tuple[Bounded, ...]:
        """Return the exact state after the last key: memory, normalizer if any."""
        # A view of the last token would hold the memory of them all.
        return self.recalled(
            "states",
            lambda: tuple(
                replace(x, output=x.output.copy(), bound=x.bound.copy())
                for x in expected.states(self.oracle_call)
            ),
        )

    def solve_gradients(self, *, confidence: float | None = None) -> dict[str, Bounded]:
        """Return the exact gradients of the inputs for the problem's cotangent."""
        assert self.cotangent is not None
        cotangent = self.cotangent.astype(np.float64)
        return self.recalled(
            ("gradients", confidence),
            lambda: expected.gradients(self.oracle_call, cotangent, confidence),
        )

    @cached_property
    def _known(self) -> "_Known":
        return _Known()

    def recalled(self, name: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result of `compute`, called once; nobody may change it."""
        results = self._known.results
        if name not in results:
            results[name] = compute()
        result: Result = results[name]
        return result

    def parts(
        self, name: Hashable, divide: Callable[[], list["Problem"]]
    ) -> list["Problem"]:
        """Return the problems of parts of the tokens, divided once.

        The tapes of parts are forgotten with that of the whole.
        """
        parts = self._known.parts
        if name not in parts:
            parts[name] = divide()
        return parts[name]

    def forget_tapes(self) -> None:
        """Forget how exact results came about; they stay known themselves.

        A tape holds the memory of every token, many times the size of the results.
        """
        if _CALL in self._known.results:
            self.oracle_call.forget_tapes()
        for part in chain.from_iterable(self._known.parts.values()):
            if part._known is not self._known:  # a part may be the whole
                part.forget_tapes()

    @property
    def oracle_call(self) -> expected.OracleCall:
        """The call as the oracle takes it."""
        scope = self.scope

        def make() -> expected.OracleCall:
            inputs, exact = dict(self.inputs), self.has_exact_sums
            return expected.OracleCall(
                scope.operator, scope.contract, scope.dtype, inputs, exact=exact
            )

        return self.recalled(_CALL, make)
