"""Linear attention: features of queries and keys, and a normalised read."""

import numpy as np

from linkern.oracle.balls import Ball
from linkern.oracle.calls import Call
from linkern.oracle.features import FeatureMap
from linkern.oracle.normalized import normalized_read
from linkern.oracle.tape import Node, Tape

__all__ = ["linear_attention"]


def _mapped(tape: Tape, x: Node, feature_map: FeatureMap, error: str) -> Node:
    """Return the features of an input, with the error that a kernel may make.

    Parameters
    ----------
    tape : Tape
        Where to.
    x : Node (..., K)
        An exact input.
    feature_map : FeatureMap
        The map, its derivative and the errors of both.
    error : {"absolute", "relative", "none"}
        As in `linkern.oracle.calls.Options`.
    """
    exact, rounding = feature_map.value(x.value), tape.rounding
    radius = None
    if rounding is not None and error != "none":
        radius = feature_map.error(x.value, rounding.unit)
        if error == "relative":
            radius = np.minimum(radius, 8 * rounding.unit * abs(exact))

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        gradient = feature_map.pullback(x.value, g.value)
        if rounding is None:
            return [Ball(gradient)]
        carried = feature_map.pullback_gauge(x.value, g.radius)
        size = feature_map.pullback_gauge(x.value, g.reach)
        # Two roundings more: the product with the derivative, and the result.
        relative = feature_map.pullback_error(x.value, rounding.unit)
        bound = carried + (relative + 2 * rounding.unit) * size
        return [Ball(gradient, np.where(np.isnan(bound), np.inf, bound))]

    return tape.record([Ball(exact, radius)], [x], pullback)[0]


def linear_attention(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``phi(q)^T sum phi(k) v^T / (phi(q)^T sum phi(k))``, as declared."""
    options = call.options
    query, key = (
        _mapped(call.tape, call.shared(name), feature_map, options.feature_error)
        for name, feature_map in (
            ("query", options.query_map),
            ("key", options.key_map),
        )
    )
    output, *state = normalized_read(
        call.tape,
        query,
        key,
        call["value"],
        call.state,
        options.quotient(call.scale),
        causal=call.causal,
        exact=options.exact,
        output_dtype=options.output_dtype,
    )
    return output, tuple(state)
