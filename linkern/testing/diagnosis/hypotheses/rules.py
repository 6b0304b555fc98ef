"""What kernels of the family compute instead: other gates, rates, scales, orders.

Each is the operator, or another of the family, on other inputs: the oracle says what
comes of it and how far rounding can be from that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FAMILY, Bounded
from linkern.testing.problems.expected import Consultation
from linkern.testing.problems.problem import Problem

__all__ = ["Reading", "Rule", "as_low_rank", "consulted", "own", "predicted"]

Real = NDArray[np.float64]
Inputs = Mapping[str, Real | None]


@dataclass(frozen=True)
class Reading:
    """What a kernel makes of the inputs that it was given.

    Parameters
    ----------
    operator : str
        The operator that it computes.
    inputs : mapping of str to array or None
        On these inputs.
    scale : float
        With this scale.
    each : int
        How many rows there are for each token; the last of them is what is returned.
    """

    operator: str
    inputs: Inputs
    scale: float
    each: int = 1

    def given(self, name: str) -> Real | None:
        """Return an input, None if it was left out."""
        return self.inputs.get(name)

    def of(self, name: str) -> Real:
        """Return an input that was given."""
        x = self.inputs[name]
        assert x is not None
        return x

    def with_inputs(self, **inputs: Real | None) -> "Reading":
        """Return the same on other inputs."""
        return replace(self, inputs={**self.inputs, **inputs})


# None where it cannot be said of the operator.
Rule = Callable[[Reading], Reading | None]


def consulted(problem: Problem) -> Consultation:
    """Return what the inputs of a problem mean."""
    of = problem.scope
    return Consultation(of.operator, of.contract, of.dtype, dict(problem.inputs))


def own(problem: Problem) -> Reading:
    """Return what the operator makes of a problem."""
    asked = consulted(problem)
    return Reading(str(problem.scope.operator.family), asked.meant, asked.scale)


def predicted(problem: Problem, rule: Rule) -> Bounded | None:
    """Return what comes of a rule, and how far a kernel with it may be off.

    It may round as often as the operator and as the other one together.
    """
    reading = rule(own(problem))
    if reading is None:
        return None
    asked, contract = consulted(problem), problem.scope.contract
    with np.errstate(all="ignore"):
        found, _ = FAMILY[reading.operator].bounded(
            reading.inputs,
            reading.scale,
            asked.precisions,
            chunk_size=contract.chunk_size,
        )
    found = asked.widened(found)
    last = (..., slice(reading.each - 1, None, reading.each), slice(None))
    return Bounded(found.output[last], found.bound[last] + problem.solve().bound)


def as_low_rank(reading: Reading) -> Reading | None:
    """Return an operator as ``S = e^g S + b (a^T S) + k v^T``, S before its decay."""
    name = reading.operator
    if name not in _LOW_RANK:
        return None
    value = reading.of("value")
    groups = value.shape[-3] // max(reading.of("key").shape[-3], 1)
    query, key = (np.repeat(reading.of(x), groups, axis=-3) for x in ("query", "key"))
    g = reading.given("log_decay")
    if g is None:
        g = np.zeros(key.shape)
    elif g.ndim < value.ndim:
        g = np.broadcast_to(g[..., None], key.shape)
    beta = reading.given("beta")
    written = key if beta is None else beta[..., None] * key
    nothing = np.zeros_like(key)
    parts: dict[str, Real] = {"a": nothing, "b": nothing, "key": key}
    if name in ("delta_rule", "gated_delta_rule", "kda"):
        parts = {"a": -np.exp(g) * key, "b": written, "key": written}
    elif name == "comba":
        p = np.repeat(reading.of("auxiliary_key"), groups, axis=-3)
        parts = {"a": -p, "b": written, "key": written}
    elif name == "rwkv7":
        removal, rate = reading.of("removal_key"), reading.of("removal_rate")
        parts |= {"a": -removal, "b": rate * removal}
    elif name in ("dplr", "iplr"):
        parts |= {"a": reading.of("a"), "b": reading.of("b")}
    inputs = {"query": query, "value": value, "log_decay": g, **parts}
    return Reading("dplr", inputs, reading.scale)


_LOW_RANK = (
    "simple_gla",
    "gla",
    "delta_rule",
    "gated_delta_rule",
    "kda",
    "comba",
    "rwkv7",
    "dplr",
    "iplr",
)
