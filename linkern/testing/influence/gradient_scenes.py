"""Scenes of gradients: impulses in values and cotangents, one pair for each gradient.

A value that is 1 at one token, and a cotangent that is 1 at another, leave one pair of
tokens in a gradient: one product where keys have one channel each.
"""

from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.influence.maps import Index
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.packing import Packing
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.problems.tokens import uniform
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["NOWHERE", "Impulses", "every_row", "one_pair", "one_row"]

# The token of a channel without impulse.
NOWHERE = -1
# By what mild log-decays are multiplied.
GENTLE = 0.25
# Inputs that write, erase or read along a direction of their own in each token.
DIRECTIONS = ("key", "auxiliary_key", "removal_key", "a", "b")


@dataclass(frozen=True, eq=False)
class Impulses:
    """A problem whose value and cotangent are 1 at one token of each value channel.

    Parameters
    ----------
    problem : Problem
        The inputs and the cotangent.
    rows, sources : array (B, G, V)
        The token of the cotangent and the token of the value of each channel, or
        `NOWHERE`; micro-steps count as tokens of a value.
    cuts : tuple of int
        First tokens of the spans after the first.
    packing : Packing or None
        The packed sequences, if there are several.
    scene : str
        ``every row``: each row has a source; ``one pair``: one in each batch entry and
        head, so that gates have the gradient of that pair alone; ``one row``: values
        are not zero anywhere, cotangents in one row of each batch entry and head.
    """

    problem: Problem
    rows: Index
    sources: Index
    cuts: tuple[int, ...] = ()
    packing: Packing | None = None
    scene: str = "every row"

    def cut(self, *cuts: int) -> "Impulses":
        """Return the same, cut as far as the contract allows."""
        step = self.problem.scope.contract.length_multiple_of
        inner = sorted({n // step * step for n in cuts})
        fitting = tuple(n for n in inner if 0 < n < self.problem.length)
        return replace(self, cuts=fitting)

    def packed(self, lengths: tuple[tuple[int, ...], ...]) -> "Impulses":
        """Return the same in packed sequences, of so many tokens in each call."""
        packing = Packing(lengths)
        problem = self.problem.told(packing=packing)
        return replace(self, problem=problem, packing=packing, cuts=packing.cuts)


def every_row(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Impulses:
    """Return impulses in which each row has one source, as far back as its head says.

    Where there are fewer channels than rows, the batch is multiplied if it may be. Rows
    whose source would lie before the first token have none.
    """
    shape = nearest_shape(scope, sizes)
    channels, length = shape.value_dim, shape.length
    copies = -(-length // channels) if "b" in scope.contract.layout else 1
    copies = 1 if sizes[0] == 1 else copies
    shape = replace(shape, batch=shape.batch * copies)
    batch, head, channel = np.indices((shape.batch, shape.sizes["g"], channels))
    # In no order, so that a row is told from a channel.
    rows = rng.permutation(copies * channels)[batch % copies * channels + channel]
    # Of heads that share a query, each has rows of its own.
    used = (rows < length) & (rows % shape.groups == head % shape.groups)
    place = batch // copies * shape.heads + head // shape.groups
    lags = rng.permutation(_lags(length // 2, int(place.max()) + 1))
    sources = np.minimum(rows - lags[place], shape.keys - 1)
    rows, sources = (np.where(used, x, NOWHERE) for x in (rows, sources))
    return _impulses(scope, shape, rows, np.maximum(sources, NOWHERE), rng)


def one_pair(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Impulses:
    """Return impulses of one pair in each batch entry and head, near ones and far."""
    shape = nearest_shape(scope, sizes)
    batch, head, channel = np.indices((shape.batch, shape.sizes["g"], shape.value_dim))
    place = batch * shape.heads + head // shape.groups
    pairs = shape.batch * shape.heads
    lags = rng.permutation(_lags(shape.length, pairs))
    first = rng.integers(0, np.maximum(min(shape.length, shape.keys) - lags, 1))
    # One of the value heads that share a key.
    used = head % shape.groups == place % shape.groups
    used &= channel == np.asarray(rng.integers(shape.value_dim, size=pairs))[place]
    ends = np.asarray(np.minimum(first + lags, shape.length - 1))
    rows, sources = (np.where(used, x[place], NOWHERE) for x in (ends, first))
    made = _impulses(scope, shape, rows, sources, rng)
    return replace(made, scene="one pair")


def one_row(
    scope: Scope, sizes: Sizes, kind: str, rng: np.random.Generator
) -> Impulses:
    """Return values that are not zero anywhere, and one row in each cotangent.

    Gradients of tokens behind the row are zero; those before it have many terms.
    """
    shape = nearest_shape(scope, sizes)
    drawn = with_cotangent(real_problem(scope, shape, kind, "normal", rng), rng)
    assert drawn.cotangent is not None
    row = rng.integers(shape.length, size=(shape.batch, shape.heads, 1, 1))
    row = np.repeat(row, shape.groups, axis=1)
    there = np.arange(shape.length)[:, None] == row
    problem = replace(drawn, cotangent=drawn.cotangent * there)
    rows = np.repeat(row[:, :, 0], shape.value_dim, axis=-1)
    return Impulses(problem, rows, np.full_like(rows, NOWHERE), scene="one row")


def _lags(length: int, count: int) -> Index:
    """Return distances of pairs, from none to almost the whole sequence."""
    if count == 1:
        return np.array([3 * (length - 1) // 4])
    far = np.geomspace(1, max(length - 2, 1), count - 1)
    return np.concatenate([[0], far.round()]).astype(np.int64)


def _impulses(
    scope: Scope, shape: Shape, rows: Index, sources: Index, rng: np.random.Generator
) -> Impulses:
    """Return a problem with impulses in its cotangent and in its values."""
    kind = "normal" if scope.operator.feature_map else "mild"
    drawn = real_problem(scope, shape, kind, "normal", rng)
    drawn = _one_channel(_gentle(drawn), rng)
    if scope.operator.micro_steps:
        each = shape.keys // shape.length
        steps = sources * each + rng.integers(each, size=sources.shape)
        sources = np.where(sources == NOWHERE, NOWHERE, steps)
    value = np.zeros(drawn.value.shape, drawn.value.dtype)
    cotangent = np.zeros(shape.of("bgtv"), numpy_dtype(scope.output_dtype))
    for x, tokens in ((value, sources), (cotangent, rows)):
        b, g, v = np.nonzero(tokens != NOWHERE)
        x[b, g, tokens[b, g, v], v] = 1
    problem = replace(drawn.with_inputs(value=value), cotangent=cotangent)
    return Impulses(problem, rows, sources)


def _gentle(problem: Problem) -> Problem:
    """Return the problem with weaker decays, so that far pairs keep their digits."""
    if "log_decay" not in problem.inputs or problem.scope.operator.normalised:
        return problem
    call = OracleCall(
        problem.scope.operator,
        problem.scope.contract,
        problem.scope.dtype,
        dict(problem.inputs),
    )
    decays = call.meant["log_decay"]
    assert decays is not None
    return with_decays(problem, GENTLE * decays)


def _one_channel(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem with keys of one channel each, so that weights are products.

    Features are never zero, so keys that a feature map takes stay as they are.
    """
    if problem.scope.operator.feature_map or problem.scope.operator.normalised:
        return problem
    width = problem.shape.key_dim
    channel = rng.integers(width, size=max(problem.shape.keys, problem.length))
    inputs = {}
    for one in problem.scope.operator.inputs:
        x = problem.inputs[one.name]
        if one.name in DIRECTIONS and one.axes.endswith("k"):
            size = uniform(rng, x.shape, 0.3, 0.8)
            there = np.arange(width) == channel[: x.shape[-2], None]
            sign = np.where(x.astype(np.float64) < 0, -1.0, 1.0)
            inputs[one.name] = np.where(there, sign * size, 0.0).astype(x.dtype)
        elif one.name == "query":
            away = x.astype(np.float64)
            away = away + np.where(away < 0, -0.2, 0.2)
            inputs[one.name] = away.astype(x.dtype)
    return problem.with_inputs(**inputs)
