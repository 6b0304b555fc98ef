"""Changes of calls of the oracle: inputs that mean something else."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.problem import Problem

__all__ = [
    "Change",
    "Gradient",
    "Values",
    "axes_of",
    "keys_per_query",
    "meaning",
    "nudge",
    "nudged_input",
    "present_in",
    "with_defaults",
    "with_values",
]

Inputs = Mapping[str, Real | None]
# Returns a gradient of an input in a problem, and how far rounding may move it.
Gradient = Callable[[Problem, str], Bounded]
Change = Callable[[OracleCall], OracleCall]
Values = Callable[[OracleCall, Real], Real | None]


def present_in(call: OracleCall) -> dict[str, Real]:
    """Return the inputs of a call that are not left out."""
    return {name: x for name, x in call.meant.items() if x is not None}


def with_defaults(call: OracleCall) -> dict[str, Real]:
    """Return the inputs of a call, those by default among them."""
    made = {name: make(call.meant) for name, make in call.operator.defaults.items()}
    return {**made, **present_in(call)}


def axes_of(call: OracleCall, name: str) -> str:
    """Return the axes of an input; one that is no parameter has a number a head."""
    return call.operator.input(name).axes if name in call.operator.names else "g"


def keys_per_query(call: OracleCall) -> int:
    """Return 1 but for operators of micro-steps: others may have fewer keys."""
    steps = call.sizes["s"] // max(call.sizes["t"], 1)
    return steps if call.operator.micro_steps else 1


def meaning(call: OracleCall, inputs: Inputs) -> OracleCall:
    """Return a call in which some inputs mean something else."""
    return replace(call, meanings={**call.meant, **inputs})


def with_values(name: str, values: Values, *, erase: bool = False) -> Change:
    """Return the change of a call that changes an input, or in erases alone."""

    def changed(call: OracleCall) -> OracleCall:
        known = with_defaults(call)
        with np.errstate(all="ignore"):
            inputs = {name: values(call, known[name])} if name in known else {}
            if erase and inputs:  # What is written is as before.
                ratio = known[name] / np.asarray(inputs[name])
                inputs["value"] = known["value"] * ratio[..., None]
        return meaning(call, inputs)

    return changed


def nudge(x: Real) -> Real:
    """Return other numbers of about the same size, none of them as it was."""
    return np.asarray(0.75 * x - 0.125)


def nudged_input(name: str) -> Change:
    """Return the change of a call in which an input has other numbers everywhere."""
    return with_values(name, lambda _, x: nudge(x))
