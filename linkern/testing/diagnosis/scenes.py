"""Scenes: problems whose results are influence maps.

Each source token has a value of its own: 1 in one channel, 0 in all others. Where there
are more tokens than channels, further batch entries hold the rest.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.influence import Index, InfluenceMap
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["output_map", "value_impulses"]

# Of independent errors, hardly one in a million is beyond.
CONFIDENCE = 5.0


def value_impulses(
    scope: Scope, sizes: Sizes, rng: np.random.Generator, *, shift: int = 0
) -> Problem:
    """Return a problem whose output holds the weight of every token in every row.

    Parameters
    ----------
    scope : Scope
        Operator and contract.
    sizes : tuple of int
        Batch, heads, length, key and value dimension; the batch is multiplied until
        every source token has a value channel.
    rng : Generator
        Source of queries, keys and gates.
    shift : int
        By how many channels the impulse of a token moves: entries that are wrong with
        every shift belong to a token, others to a channel.
    """
    shape = nearest_shape(scope, sizes)
    channels = shape.value_dim
    copies = -(-shape.keys // channels)
    shape = replace(shape, batch=shape.batch * copies)
    kind = "normal" if scope.operator.feature_map else "mild"
    drawn = real_problem(scope, shape, kind, "normal", rng)
    batch, source, channel = np.ogrid[: shape.batch, : shape.keys, :channels]
    impulses = (batch % copies == source // channels) & (
        channel == (source + shift) % channels
    )
    value = np.broadcast_to(impulses[:, None], drawn.value.shape)
    made = drawn.with_inputs(value=value.astype(numpy_dtype(scope.dtype)))
    return made.told(copies=copies, shift=shift)


def output_map(target: Target, problem: Problem) -> InfluenceMap:
    """Return the weights of all tokens in all rows, of a problem of impulses.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    reply = target.call(Call(problem.inputs))
    exact, likely = problem.solve(), problem.solve(confidence=CONFIDENCE)
    shape = exact.output.shape
    measured = np.full(shape, np.nan)
    if reply.output is not None and reply.output.shape == shape:
        measured = reply.output.astype(np.float64)
    rounding = _half_ulp(measured, reply.dtype or problem.scope.output_dtype)
    keys = problem.shape.keys
    copies, shift = (problem.knobs[name] for name in ("copies", "shift"))
    batch, head, row, channel = np.indices(shape).astype(np.int64)
    place = (channel - shift) % shape[-1]
    source = place + batch % copies * shape[-1]
    present = source < keys
    micro = problem.scope.operator.micro_steps
    each = keys // max(shape[-2], 1) if micro else 1
    coordinates: dict[str, Index] = {
        "row": row,
        "source": source // each,
        "batch": batch // copies,
        "head": head,
        "value channel": channel,
    }
    if each > 1:
        coordinates["micro-step"] = source % each

    def chosen(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(x[present])

    return InfluenceMap(
        "output",
        problem,
        chosen(measured),
        chosen(exact.output),
        chosen(exact.bound + rounding),
        chosen(likely.bound + rounding),
        {name: x[present] for name, x in coordinates.items()},
    )


def _half_ulp(x: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Return the error of storing numbers in a dtype."""
    if not dtype or dtype == "float64":
        return np.zeros(x.shape)
    with np.errstate(all="ignore"):
        spacing = np.spacing(abs(x).astype(numpy_dtype(dtype))).astype(np.float64)
    return np.asarray(np.nan_to_num(spacing / 2, nan=0.0, posinf=0.0))
