"""What the oracle says of the inputs of a call, as the target takes them.

A target may take logarithms to another base, decays in place of their logarithms, or
queries and keys that it normalises itself. The oracle gets what they mean, in float64,
and what it says of gradients is carried back to what the target was given.
"""

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
    Played,
    Precisions,
    unit_roundoff,
)
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Operator

__all__ = ["Consultation", "gradients", "output", "states"]

Real = NDArray[np.float64]
_NORMALISED = ("query", "key")


@dataclass(frozen=True, eq=False)
class Consultation:
    """The inputs of one call, and what they mean.

    Parameters
    ----------
    operator, contract, dtype : Operator, Contract, str
        What the target claims and declares; of its inputs.
    given : dict of str to array
        Its inputs by name; those that are missing are None.
    exact : bool
        Whether every sum is of numbers that add up exactly.
    """

    operator: Operator
    contract: Contract
    dtype: str
    given: dict[str, NDArray[Any]]
    exact: bool = False

    @property
    def precisions(self) -> Precisions:
        """The declared arithmetic."""
        return self.contract.precisions(self.dtype)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by its letter."""
        return self.operator.sizes(self.given)

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
        found: dict[str, Real | None] = {}
        for name in self.operator.names:
            x = self.given.get(name)
            found[name] = None if x is None else self._meaning(name, x)
        return found

    def _meaning(self, name: str, given: NDArray[Any]) -> Real:
        x = given.astype(np.float64)
        if name == "log_decay" and self.contract.decay_log_base == "2":
            return np.asarray(x * np.log(2.0))
        if name == "log_decay" and self.contract.decay_form == "factor":
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(x))
        if name in _NORMALISED and self.contract.l2norm is not None:
            return np.asarray(x / self._norm(x))
        return x

    def _norm(self, x: Real) -> Real:
        assert self.contract.l2norm is not None
        squares = (x * x).sum(axis=-1, keepdims=True) + self.contract.l2norm
        return np.asarray(np.sqrt(np.where(squares == 0, 1.0, squares)))

    def widened(self, found: Bounded) -> Bounded:
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
            return found
        key_dim = self.sizes["k"]
        more = 1 + 2 * (key_dim + 4) / (key_dim + 1)
        return Bounded(found.output, more * found.bound)

    # Several laws ask for the same answer.
    @cached_property
    def _known(self) -> dict[tuple[float | None, bool, bool], Played]:
        return {}

    def played(
        self,
        confidence: float | None,
        *,
        shared_features: bool = False,
        as_if_open: bool = False,
    ) -> Played:
        """Return the call on the oracle's tape, with its gates or as if all were 1."""
        asked = confidence, shared_features, as_if_open
        if asked not in self._known:
            self._known[asked] = self.operator.played(
                {**self.meant, "log_decay": None} if as_if_open else self.meant,
                self.scale,
                self.precisions,
                chunk_size=self.contract.chunk_size,
                confidence=confidence,
                options=self.options(shared_features=shared_features),
            )
        return self._known[asked]

    @cached_property
    def _exact_gates(self) -> ExactResult | None:
        """The results where all decays are 1 or 0, and so are exact.

        What else may round, the open gates tell.
        """
        if not self.exact or "log_decay" not in self.meant:
            return None
        return self.operator.evaluate(self.meant, self.scale)

    def output(
        self, confidence: float | None, *, shared_features: bool = False
    ) -> Bounded:
        """Return the output with its bound."""
        exact = self._exact_gates
        if exact is None:
            played = self.played(confidence, shared_features=shared_features)
            return played.bounded_output()
        rounded = self.played(confidence, as_if_open=True).bounded_output()
        return Bounded(exact.output, rounded.bound)

    def states(self) -> tuple[Bounded, ...]:
        """Return the states with their bounds."""
        exact = self._exact_gates
        if exact is None:
            return self.played(None).bounded_states()
        rounded = self.played(None, as_if_open=True).bounded_states()
        pairs = zip(exact.state, rounded, strict=True)
        return tuple(Bounded(x, other.bound) for x, other in pairs)


def output(
    asked: Consultation,
    confidence: float | None = None,
    *,
    shared_features: bool = False,
) -> Bounded:
    """Return the exact output with its bound, and a sharp one for exact sums."""
    if asked.contract.l2norm is not None:
        confidence = None  # one error for a whole row does not cancel
    found = asked.widened(asked.output(confidence, shared_features=shared_features))
    if not asked.exact or found.sharp is not None:
        return found
    power = bool(np.frexp(abs(asked.scale))[0] == 0.5)
    return Bounded(
        found.output, found.bound, np.zeros_like(found.bound) if power else None
    )


def states(asked: Consultation) -> tuple[Bounded, ...]:
    """Return the exact state, memory first."""
    return tuple(asked.widened(one) for one in asked.states())


def gradients(
    asked: Consultation, cotangent: Real, confidence: float | None = None
) -> dict[str, Bounded]:
    """Return the gradients of what the target was given."""
    if asked.contract.l2norm is not None:
        confidence = None
    found = asked.played(confidence).bounded_gradients(cotangent)
    with np.errstate(all="ignore"):
        return {name: _pulled_back(asked, name, found[name]) for name in asked.given}


def _pulled_back(asked: Consultation, name: str, found: Bounded) -> Bounded:
    """Return the gradient of an input from that of what it means."""
    x = asked.given[name].astype(np.float64)
    contract, u = asked.contract, asked.precisions.unit
    if name == "log_decay" and contract.decay_log_base == "2":
        of_log = np.log(2.0) * found.output
        return Bounded(of_log, np.log(2.0) * found.bound + 2 * u * abs(of_log))
    if name == "log_decay" and contract.decay_form == "factor":
        of_log, bound = found.output / x, found.bound / x
        bound = bound + 2 * u * abs(of_log)
        # What a decay of zero would have let through, its logarithm does not say.
        known = x > 0
        return Bounded(np.where(known, of_log, 0.0), np.where(known, bound, np.inf))
    if name in _NORMALISED and contract.l2norm is not None:
        return _through_norm(asked, x, asked.widened(found))
    return asked.widened(found)


def _through_norm(asked: Consultation, x: Real, found: Bounded) -> Bounded:
    """Return ``(dy - y (y.dy)) / r`` where ``y = x / r``, ``r^2 = x.x + eps``."""
    r, u = asked._norm(x), asked.precisions.unit
    y = x / r

    def along(gradient: Real, direction: Real) -> Real:
        inner = (direction * gradient).sum(axis=-1, keepdims=True)
        return np.asarray(direction * inner)

    size = abs(found.output) + found.bound
    error = found.bound + along(found.bound, abs(y))
    # The norm, both products with it and the sum along the channels.
    roundings = 4 * (x.shape[-1] + 4) * (u + unit_roundoff("float64"))
    error = error + roundings * (size + along(size, abs(y)))
    return Bounded((found.output - along(found.output, y)) / r, error / r)
