"""Exact results and bounds for the inputs of a call, as the target takes them.

A target may take gates in another form (`linkern.testing.problems.forms`), or queries
and keys that it normalises itself. The oracle gets their meaning in float64, and its
gradients are carried back to the inputs of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import (
    FEATURE_MAPS,
    Bounded,
    ExactResult,
    Options,
    Precisions,
    Recording,
    unit_roundoff,
)
from linkern.oracle.operator import STATE_NAMES
from linkern.testing.problems.forms import form_of
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Operator

__all__ = [
    "OracleCall",
    "gradient_of_meaning",
    "gradient_without",
    "gradients",
    "kept_over",
    "of_declared",
    "output",
    "states",
]

# What decays are made of; but a momentum that forgets nothing runs away.
_DECAYS = frozenset({"log_decay", "log_decay_rate", "preconditioner_log_decay"})
Real = NDArray[np.float64]
_NORMALISED = ("query", "key")
# Logarithms above which a factor is no float64.
_LARGEST_LOG = 700.0


@dataclass(frozen=True, eq=False)
class OracleCall:
    """The inputs of one call, and their meaning for the oracle.

    Parameters
    ----------
    operator, contract, dtype : Operator, Contract, str
        The operator and the contract of the target; the dtype of its inputs.
    inputs : dict of str to array
        Its inputs by name; those that are missing are None.
    exact : bool
        Whether every sum is of numbers that add up exactly.
    initial_state : tuple of array, optional
        The state before the first token, memory first; None for no earlier tokens.
    meanings : dict of str to array, optional
        The inputs as the oracle takes them, where these are others than declared.
    """

    operator: Operator
    contract: Contract
    dtype: str
    inputs: dict[str, NDArray[Any]]
    exact: bool = False
    initial_state: tuple[Real, ...] | None = None
    meanings: dict[str, Real | None] | None = None

    @property
    def precisions(self) -> Precisions:
        """The declared arithmetic."""
        return self.contract.precisions(self.dtype)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter."""
        return self.operator.sizes(self.inputs)

    def evaluate(
        self, state: tuple[Real, ...] | None = None, position: int = 0
    ) -> ExactResult:
        """Return the exact output and state; a state may be in place of the first."""
        state = self.initial_state if state is None else state
        options = self.options()
        return self.operator.evaluate(self.meant, self.scale, state, position, options)

    def options(self, *, shared_features: bool = False) -> Options:
        """Return what is declared besides the arithmetic."""
        contract = self.contract
        key_map = contract.key_feature_map or contract.feature_map
        # Exact ones are chosen so that any evaluation of the map finds them.
        certain = shared_features or self.exact
        return Options(
            FEATURE_MAPS[contract.feature_map],
            FEATURE_MAPS[key_map],
            contract.normalize,
            contract.eps,
            contract.eps_mode,
            contract.constant_denominator,
            feature_error="none" if certain else contract.feature_error,
            exact=self.exact,
            output_dtype=contract.output_dtype or self.dtype,
        )

    @property
    def scale(self) -> float:
        """The factor on the scores."""
        return self.contract.factor(self.operator.scale, self.sizes["k"])

    @cached_property
    def meant(self) -> dict[str, Real | None]:
        """The inputs as the oracle takes them."""
        if self.meanings is not None:
            return self.meanings
        meanings: dict[str, Real | None] = {}
        for name in self.operator.names:
            x = self.inputs.get(name)
            meanings[name] = None if x is None else self._meaning(name, x)
        return meanings

    def _meaning(self, name: str, declared: NDArray[Any]) -> Real:
        x = declared.astype(np.float64)
        form = form_of(self.contract, self.operator.input(name))
        if form is not None:
            with np.errstate(divide="ignore"):
                return np.asarray(form.meaning(x))
        if name in _NORMALISED and self.contract.l2norm is not None:
            return np.asarray(x / self.norm(x))
        return x

    def norm(self, x: Real) -> Real:
        """Return what queries or keys are divided by."""
        assert self.contract.l2norm is not None
        squares = (x * x).sum(axis=-1, keepdims=True) + self.contract.l2norm
        return np.asarray(np.sqrt(np.where(squares == 0, 1.0, squares)))

    def widened(self, bounded: Bounded) -> Bounded:
        """Admit the error with which a target normalises queries and keys.

        The sum of squares, its root and the quotient are at most K + 4 roundings of
        each entry, so a product of both is off by 2 (K + 4) units relatively. The
        oracle's bound grows at least in proportion to the roundings that it counts of
        such products, which are K + 1 or more: to admit 2 (K + 4) others enlarges it by
        the ratio at most. Where rows erase, keys that are off leave a residual of
        2 (K + 4) u N~ |U|, of which `linkern.oracle.enclosures` admits 3 e,
        e >= (K + 13) u: so the residual grows by a factor below 5/3, whose square, by
        which the terms of second order grow, is below the ratio as well.
        """
        if self.contract.l2norm is None:
            return bounded
        key_dim = self.sizes["k"]
        more = 1 + 2 * (key_dim + 4) / (key_dim + 1)
        return Bounded(bounded.output, more * bounded.bound)

    # Several laws ask for the same answer.
    @cached_property
    def _known(self) -> dict[tuple[float | None, bool, bool], Recording]:
        return {}

    def recorded(
        self,
        confidence: float | None,
        *,
        shared_features: bool = False,
        open_gates: bool = False,
    ) -> Recording:
        """Return the call on the oracle's tape, with its gates or as if all were 1."""
        key = confidence, shared_features, open_gates
        if key not in self._known:
            self._known[key] = self.operator.recorded(
                {**self.meant, **dict.fromkeys(_DECAYS)} if open_gates else self.meant,
                self.scale,
                self.precisions,
                state=self.initial_state,
                chunk_size=self.contract.chunk_size,
                confidence=confidence,
                options=self.options(shared_features=shared_features),
            )
        return self._known[key]

    def forget_tapes(self) -> None:
        """Forget what was recorded; it is recorded again when it is asked for."""
        for recording in self._known.values():
            recording.tape.forget()
        self._known.clear()

    @cached_property
    def _exact_gates(self) -> ExactResult | None:
        """The results where all decays are 1 or 0, and so are exact.

        What else may round, the open gates tell.
        """
        if not self.exact or _DECAYS.isdisjoint(self.meant):
            return None
        return self.operator.evaluate(self.meant, self.scale, self.initial_state)

    def output(
        self, confidence: float | None, *, shared_features: bool = False
    ) -> Bounded:
        """Return the output with its bound."""
        exact = self._exact_gates
        if exact is None:
            recording = self.recorded(confidence, shared_features=shared_features)
            return recording.bounded_output()
        rounded = self.recorded(confidence, open_gates=True).bounded_output()
        return Bounded(exact.output, rounded.bound)

    def states(self) -> tuple[Bounded, ...]:
        """Return the states with their bounds."""
        exact = self._exact_gates
        if exact is None:
            return self.recorded(None).bounded_states()
        rounded = self.recorded(None, open_gates=True).bounded_states()
        pairs = zip(exact.state, rounded, strict=True)
        return tuple(Bounded(x, other.bound) for x, other in pairs)


def output(
    call: OracleCall,
    confidence: float | None = None,
    *,
    shared_features: bool = False,
) -> Bounded:
    """Return the exact output with its bound, and a sharp one for exact sums."""
    if call.contract.l2norm is not None:
        confidence = None  # one error for a whole row does not cancel
    result = call.widened(call.output(confidence, shared_features=shared_features))
    if not call.exact or result.sharp is not None:
        return result
    power = bool(np.frexp(abs(call.scale))[0] == 0.5)
    return Bounded(
        result.output, result.bound, np.zeros_like(result.bound) if power else None
    )


def states(call: OracleCall) -> tuple[Bounded, ...]:
    """Return the exact state, memory first."""
    return tuple(call.widened(one) for one in call.states())


def kept_over(
    operator: Operator, states: Sequence[NDArray[Any]], exact: Sequence[Bounded]
) -> tuple[Bounded, ...]:
    """Return the exact state over the weight that a target keeps it over.

    Where the normalizer is the logarithm of what the memory was divided by, any weight
    will do: that of the sum, or the largest logarithm of published kernels. The
    logarithm that a target returns is taken as it is, and its memory must fit to it.
    """
    if not operator.log_normalizer or len(states) < 2:
        return tuple(exact)
    memory, weight = exact
    kept = np.asarray(states[1], np.float64)
    known = np.isfinite(kept) & np.isfinite(weight.output)
    ahead = np.subtract(weight.output, kept, out=np.zeros(kept.shape), where=known)
    known &= ahead < _LARGEST_LOG
    factor = np.exp(np.where(known, ahead, 0.0))
    # Both logarithms are sums of the same gates; a bound may be too large for a factor.
    with np.errstate(over="ignore"):
        drift = np.expm1(np.where(known, 2 * weight.bound, 0.0))
    by_column = operator.state[1][-1] == operator.state[0][-1]
    factor, drift = (
        x[..., None, :] if by_column else x[..., None] for x in (factor, drift)
    )
    size = abs(memory.output) + memory.bound
    return (
        Bounded(factor * memory.output, factor * (memory.bound + drift * size)),
        Bounded(np.where(known, kept, weight.output), weight.bound),
    )


def gradients(
    call: OracleCall, cotangent: Real, confidence: float | None = None
) -> dict[str, Bounded]:
    """Return the gradients of what the target was given, and of a state if it was."""
    if call.contract.l2norm is not None:
        confidence = None
    of_meaning = call.recorded(confidence).bounded_gradients(cotangent)
    with np.errstate(all="ignore"):
        results = {
            name: _pulled_back(call, name, of_meaning[name]) for name in call.inputs
        }
    if call.contract.beta_form != "rate":
        # Products with a rate that is itself off by no more than the bound counts.
        results = {n: Bounded(x.output, 2 * x.bound) for n, x in results.items()}
    if call.initial_state is not None:
        states = (name for name in STATE_NAMES if name in of_meaning)
        results |= {name: call.widened(of_meaning[name]) for name in states}
    return results


def gradient_without(call: OracleCall, name: str, cotangent: Real, part: str) -> Real:
    """Return the exact gradient of an input, one part of it left out.

    The part is what comes back to an operand of the recurrence: to its ``key``, for
    instance, and not to its ``erase``, where both are made from the input.
    """
    return of_declared(call, name, gradient_of_meaning(call, name, cotangent, part))


def gradient_of_meaning(
    call: OracleCall, name: str, cotangent: Real, part: str = ""
) -> Real:
    """Return the exact gradient of what an input means, one part of it left out."""
    options = call.options()
    gradients = call.operator.gradients(
        call.meant, cotangent, call.scale, options=options, without=part
    )
    return np.asarray(gradients[name])


def of_declared(call: OracleCall, name: str, gradient: Real) -> Real:
    """Return the gradient of an input as it is declared, from that of its meaning."""
    exact = Bounded(gradient, np.zeros(gradient.shape))
    with np.errstate(all="ignore"):
        return _pulled_back(call, name, exact).output


def _pulled_back(call: OracleCall, name: str, gradient: Bounded) -> Bounded:
    """Return the gradient of an input from that of what it means."""
    x = call.inputs[name].astype(np.float64)
    form = form_of(call.contract, call.operator.input(name))
    if form is not None:
        return form.pulled_back(x, call.widened(gradient), call.precisions.unit)
    if name in _NORMALISED and call.contract.l2norm is not None:
        return _through_norm(call, x, call.widened(gradient))
    return call.widened(gradient)


def _through_norm(call: OracleCall, x: Real, gradient: Bounded) -> Bounded:
    """Return ``(dy - y (y.dy)) / r`` where ``y = x / r``, ``r^2 = x.x + eps``."""
    r, u = call.norm(x), call.precisions.unit
    y = x / r

    def along(x: Real, direction: Real) -> Real:
        inner = (direction * x).sum(axis=-1, keepdims=True)
        return np.asarray(direction * inner)

    size = abs(gradient.output) + gradient.bound
    error = gradient.bound + along(gradient.bound, abs(y))
    # The norm, both products with it and the sum along the channels.
    roundings = 4 * (x.shape[-1] + 4) * (u + unit_roundoff("float64"))
    error = error + roundings * (size + along(size, abs(y)))
    return Bounded((gradient.output - along(gradient.output, y)) / r, error / r)
