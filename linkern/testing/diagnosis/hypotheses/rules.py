"""Rules: an operator with gates, or another such operator, on changed inputs.

The oracle says what comes of a rule, and how far rounding can be from that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from linkern.oracle import OPERATORS, Bounded, Operator
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.problem import Problem

__all__ = [
    "Reading",
    "Rule",
    "as_low_rank",
    "by_rule",
    "first_only",
    "meaning",
    "operator_of",
    "predicted",
    "silenced",
]

Inputs = Mapping[str, Real | None]


@dataclass(frozen=True)
class Reading:
    """The call of an operator that a kernel computes instead of its own.

    Parameters
    ----------
    operator : str
        The operator.
    inputs : mapping of str to array or None
        Its inputs.
    scale : float
        Its scale.
    each : int
        The number of rows of each token; the last of them is returned.
    """

    operator: str
    inputs: Inputs
    scale: float
    each: int = 1

    def get(self, name: str) -> Real | None:
        """Return an input, None if it was left out."""
        return self.inputs.get(name)

    def require(self, name: str) -> Real:
        """Return an input that was given."""
        x = self.inputs[name]
        assert x is not None
        return x

    def with_inputs(self, **inputs: Real | None) -> "Reading":
        """Return the same call on other inputs."""
        return replace(self, inputs={**self.inputs, **inputs})


# None where it does not apply to the operator.
Rule = Callable[[Reading], Reading | None]


def meaning(problem: Problem) -> OracleCall:
    """Return the meaning of the inputs of a problem, as the oracle takes them."""
    scope = problem.scope
    inputs = dict(problem.inputs)
    return OracleCall(scope.operator, scope.contract, scope.dtype, inputs)


def operator_of(problem: Problem) -> Operator:
    """Return the oracle of an operator with gates."""
    return problem.scope.operator


def predicted(problem: Problem, rule: Rule) -> Bounded | None:
    """Return the prediction of a rule, with the error of a kernel that follows it.

    It may round as often as the operator and as the other one together.
    """
    asked, contract = meaning(problem), problem.scope.contract
    name = problem.scope.operator.name
    reading = rule(Reading(name, asked.meant, asked.scale))
    if reading is None:
        return None
    with np.errstate(all="ignore"):
        output, _ = OPERATORS[reading.operator].bounded(
            reading.inputs,
            reading.scale,
            asked.precisions,
            chunk_size=contract.chunk_size,
        )
    output = asked.widened(output)
    last = (..., slice(reading.each - 1, None, reading.each), slice(None))
    return Bounded(output.output[last], output.bound[last] + problem.solve().bound)


def by_rule(
    name: str, phrase: str, rule: Rule, declaration: tuple[str, ...] = ()
) -> Deviation:
    """Return the deviation that follows a rule."""
    return Deviation(
        name,
        phrase,
        lambda problem: predicted(problem, rule),
        declaration=declaration,
    )


def first_only(x: Real, axis: int) -> Real:
    """Return an array whose first part along an axis takes the place of all."""
    return np.repeat(np.take(x, [0], axis), x.shape[axis], axis)


def silenced(problem: Problem, first: int) -> Problem:
    """Return the problem whose tokens from `first` on neither write nor erase."""
    changed = {}
    for name in {"key", "removal_key", "a"} & {*problem.inputs}:
        x = problem.inputs[name].copy()
        x[..., first * (x.shape[-2] // max(problem.length, 1)) :, :] = 0
        changed[name] = x
    return problem.with_inputs(**changed)


def as_low_rank(reading: Reading) -> Reading | None:
    """Return an operator as ``S = e^g S + b (a^T S) + k v^T``, S before its decay."""
    name = reading.operator
    if name not in _LOW_RANK:
        return None
    value = reading.require("value")
    groups = value.shape[-3] // max(reading.require("key").shape[-3], 1)
    query, key = (
        np.repeat(reading.require(x), groups, axis=-3) for x in ("query", "key")
    )
    g = reading.get("log_decay")
    if g is None:
        g = np.zeros(key.shape)
    elif g.ndim < value.ndim:
        g = np.broadcast_to(g[..., None], key.shape)
    beta = reading.get("beta")
    written = key if beta is None else beta[..., None] * key
    nothing = np.zeros_like(key)
    parts = {"a": nothing, "b": nothing, "key": key}
    if name in ("delta_rule", "gated_delta_rule", "kda"):
        parts = {"a": -np.exp(g) * key, "b": written, "key": written}
    elif name == "comba":
        p = np.repeat(reading.require("auxiliary_key"), groups, axis=-3)
        parts = {"a": -p, "b": written, "key": written}
    elif name == "rwkv7":
        removal, rate = reading.require("removal_key"), reading.require("removal_rate")
        parts |= {"a": -removal, "b": rate * removal}
    elif name in ("dplr", "iplr"):
        parts |= {"a": reading.require("a"), "b": reading.require("b")}
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
