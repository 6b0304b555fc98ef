"""Scenes of gradients: impulses in values and cotangents, one pair for each gradient.

A value that is 1 at one token, and a cotangent that is 1 at another, leave one pair of
tokens in a gradient: one product where keys have one channel each.
"""

from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.influence.maps import Index
from linkern.testing.influence.scenes import (
    NOWHERE,
    calmed,
    per_token,
    product_scene,
)
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["Pairs", "every_row", "one_pair", "one_row"]


@dataclass(frozen=True, eq=False, repr=False)
class Pairs:
    """Tokens of the impulses in values and cotangents: a knob of the problem.

    Parameters
    ----------
    rows, sources : array (B, G, V)
        The token of the cotangent and the token of the value of each channel, or
        `NOWHERE`; micro-steps count as tokens of a value.
    scene : str
        ``every row``: each row has a source; ``one pair``: one in each batch entry and
        head, so that gates have the gradient of that pair alone; ``one row``: values
        are not zero anywhere, cotangents in one row of each batch entry and head.
    """

    rows: Index
    sources: Index
    scene: str

    def __repr__(self) -> str:
        """Say what they isolate."""
        return self.scene


def every_row(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Problem:
    """Return impulses in which each row has one source, as far back as its head says.

    Rows whose source would lie before the first token have none.
    """
    drawn = _drawn(scope, sizes, rng)
    shape = drawn.shape
    batch, head, channel = np.indices((shape.batch, shape.sizes["g"], shape.value_dim))
    # In no order, so that a row is told from a channel.
    every = np.arange(max(shape.value_dim, shape.length))
    rows = rng.permuted(np.tile(every, (shape.batch, 1)), axis=1)[batch, channel]
    # Of heads that share a query, each has rows of its own.
    used = (rows < shape.length) & (rows % shape.groups == head % shape.groups)
    place = batch * shape.heads + head // shape.groups
    lags = rng.permutation(_lags(shape.length // 2, int(place.max()) + 1))
    sources = np.minimum(rows - lags[place], shape.keys - 1)
    used &= sources >= 0
    return _impulses(drawn, rows, sources, used, rng, "every row")


def one_pair(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Problem:
    """Return impulses of one pair in each batch entry and head, near ones and far."""
    drawn = _drawn(scope, sizes, rng)
    shape = drawn.shape
    batch, head, channel = np.indices((shape.batch, shape.sizes["g"], shape.value_dim))
    place = batch * shape.heads + head // shape.groups
    pairs = shape.batch * shape.heads
    lags = rng.permutation(_lags(shape.length, pairs))
    first = rng.integers(0, np.maximum(min(shape.length, shape.keys) - lags, 1))
    # One of the value heads that share a key.
    used = head % shape.groups == place % shape.groups
    used &= channel == rng.integers(shape.value_dim, size=pairs)[place]
    ends = np.asarray(np.minimum(first + lags, shape.length - 1))
    return _impulses(drawn, ends[place], first[place], used, rng, "one pair")


def one_row(scope: Scope, sizes: Sizes, kind: str, rng: np.random.Generator) -> Problem:
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
    return problem.told(pairs=Pairs(rows, np.full_like(rows, NOWHERE), "one row"))


def _drawn(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Problem:
    """Return a problem whose weights are products, and visible in all rows."""
    return calmed(product_scene(scope, sizes, rng, tokens=(0,)))


def _lags(length: int, count: int) -> Index:
    """Return distances of pairs, from none to almost the whole sequence."""
    if count == 1:
        return np.array([3 * (length - 1) // 4])
    far = np.geomspace(1, max(length - 2, 1), count - 1)
    return np.concatenate([[0], far.round()]).astype(np.int64)


def _impulses(
    drawn: Problem,
    rows: Index,
    sources: Index,
    used: Index,
    rng: np.random.Generator,
    scene: str,
) -> Problem:
    """Return a problem with impulses in its cotangent and in its values."""
    shape, scope = drawn.shape, drawn.scope
    each = per_token(drawn)
    sources = sources * each + rng.integers(each, size=sources.shape)
    rows, sources = (np.where(used, x, NOWHERE) for x in (rows, sources))
    value = np.zeros(drawn.value.shape, drawn.value.dtype)
    cotangent = np.zeros(shape.of("bgtv"), numpy_dtype(scope.output_dtype))
    b, g, v = np.nonzero(used)
    value[b, g, sources[b, g, v], v] = 1
    cotangent[b, g, rows[b, g, v], v] = 1
    problem = replace(drawn.with_inputs(value=value), cotangent=cotangent)
    return problem.told(pairs=Pairs(rows, sources, scene))
