"""Scenes: problems whose results are influence maps.

Each value channel is 1 at one token and 0 at all others, so that it returns the weights
of that token. Dense scenes have keys in all channels. In product scenes a key has one
channel, so that every weight is a product of numbers of the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.draws import RATES
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.generators import (
    real_problem,
    tiny_feature_exponent,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.reach import Reach
from linkern.testing.problems.shapes import Sizes, fitted, nearest_shape
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "NOWHERE",
    "SPREAD",
    "Sources",
    "calmed",
    "carrier",
    "dense_scene",
    "faint_scene",
    "heavy_scene",
    "impulse_shape",
    "kept_sources",
    "longer_keys",
    "per_token",
    "product_scene",
    "with_impulses",
]

# The kind of impulses of many sizes.
SPREAD = "values of many sizes"
# No token: a channel without impulse.
NOWHERE = -2
# The most batch entries of a scene: where channels are few, some tokens have none.
LARGEST_BATCH = 24
# Operators that have impulses in keys, one in each batch entry: their value channels
# where there are not many key channels either, and else those of all entries together.
FEW_CHANNELS, MANY_CHANNELS, ALL_CHANNELS = 4, 24, 840
# Features of the channels that a key of one channel does not have.
ABSENT = 2.0**-58
# The part of keys that are large exponents, and how large they are.
HEAVY, LARGEST_EXPONENT = 1 / 6, 100.0
# Inputs that erase along one direction for each token, with the range of their size.
_DIRECTIONS = {
    "key": (0.4, 0.8),
    "auxiliary_key": (0.4, 0.8),
    "removal_key": (0.6, 0.9),
    "a": (-0.8, -0.2),
    "b": (0.5, 0.9),
    "slots": (0.4, 0.8),
}


@dataclass(frozen=True, eq=False, repr=False)
class Sources:
    """Tokens of the impulses.

    Parameters
    ----------
    tokens : array (B, V)
        The key, counted from the first one, that each value channel of each batch entry
        belongs to, or `NOWHERE`.
    channels : array (B, H, S), optional
        The one channel of each key, where it has one.
    axis : str
        The name of these channels as coordinates.
    """

    tokens: Index
    channels: Index | None = None
    axis: str = "key channel"

    def __repr__(self) -> str:
        """Say how many there are."""
        return f"{len(np.unique(self.tokens[self.tokens >= 0]))} impulses"


def carrier(scope: Scope) -> str:
    """Return the input that holds impulses: the output is linear in it."""
    return "value" if "value" in scope.linear else "key"


def dense_scene(
    scope: Scope,
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    kind: str = "",
    spread: bool = False,
    tokens: Sequence[int] = (),
) -> Problem:
    """Return impulses in values, with keys in all channels.

    Parameters
    ----------
    scope : Scope
        Operator and contract.
    sizes : tuple of int
        Batch, heads, length, key and value dimension; the batch is multiplied until
        every source has a channel.
    rng : Generator
        Source of the inputs, and of the channel of each source.
    kind : str
        Kind of features or gates; by default one under which all weights are visible.
    spread : bool
        Whether impulses are of many sizes.
    tokens : sequence of int
        The sources; all tokens by default.
    """
    shape = impulse_shape(scope, sizes, len(tokens))
    usual = "normal" if scope.operator.feature_map else "mild"
    drawn = real_problem(scope, shape, kind or usual, "normal", rng)
    if spread:
        drawn = replace(drawn, kind=SPREAD)
    return with_impulses(drawn, rng, spread=spread, tokens=tokens)


def product_scene(
    scope: Scope,
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    kind: str = "",
    tokens: Sequence[int] = (),
    pure: bool = False,
    along: Sequence[str] = (),
) -> Problem:
    """Return impulses in values, with keys of one channel each; see `dense_scene`.

    Those that are `pure` have zeros in the input that adds to the products. The inputs
    that have one channel are those `along` which tokens write and erase, by default.
    """
    made = dense_scene(scope, sizes, rng, kind=kind, tokens=tokens)
    if pure and "skip" in made.inputs:
        made = made.with_inputs(skip=np.zeros_like(made.inputs["skip"]))
    operator, dtype = scope.operator, numpy_dtype(scope.dtype)
    along = along or _directions(scope)
    if not along:
        return _with_equal_channels(made) if scope.normalised else made
    *lead, count = made.inputs[along[0]].shape
    # As many tokens for each channel as for another.
    places = np.broadcast_to(np.arange(lead[-1]) % count, lead)
    if count > lead[-1]:
        places = rng.permuted(np.arange(count))[places]
    channels = rng.permuted(places, axis=-1)
    inputs: dict[str, Real] = {}
    for name in along:
        x = made.inputs[name]
        # Value heads erase along the channel of the key head that they belong to.
        own = np.repeat(channels, x.shape[1] // channels.shape[1], axis=1)
        length = rng.uniform(*_DIRECTIONS.get(name, (0.4, 0.8)), own.shape)
        if operator.feature_map:
            length = 2.0**0.5 * length
        absent = ABSENT if operator.feature_map else 0.0
        there = np.arange(x.shape[-1]) == own[..., None]
        inputs[name] = np.where(there, length[..., None], absent)
    if operator.feature_map:
        inputs["key"] = scope.key_map.preimage(inputs["key"])
    elif "query" in operator.names and not {"slots"} & {*operator.names}:
        # None of the products is close to zero.
        signs = rng.choice((-1.0, 1.0), size=made.query.shape)
        inputs["query"] = signs * rng.uniform(0.5, 1.5, made.query.shape)
    changed = made.with_inputs(**{n: x.astype(dtype) for n, x in inputs.items()})
    sources: Sources = made.knobs["sources"]
    if along[0] not in ("key", "slots"):
        return changed
    axis = "slot" if along[0] == "slots" else sources.axis
    return changed.told(sources=replace(sources, channels=channels, axis=axis))


def _with_equal_channels(problem: Problem) -> Problem:
    """Return the problem with inputs that are the same in all value channels.

    Then all weights of a row, each in the value channel of its source, have one sum.
    """
    axes = {one.name: one.axes for one in problem.scope.operator.inputs}
    equal = {
        name: np.broadcast_to(x[..., :1], x.shape).copy()
        for name, x in problem.inputs.items()
        if axes[name].endswith("v") and name != carrier(problem.scope)
    }
    return problem.with_inputs(**equal)


def faint_scene(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Problem:
    """Return impulses in values, with queries of many sizes, small ones among them."""
    made = dense_scene(scope, sizes, rng, kind="tiny" * scope.operator.feature_map)
    query = made.query.astype(np.float64)
    least = -float(tiny_feature_exponent(scope))
    size = np.exp2(rng.uniform(least, 0, (*query.shape[:-1], 1)))
    if scope.operator.feature_map:
        features = size * rng.uniform(0.5, 1, query.shape)
        query = scope.query_map.preimage(features)
    else:
        query = size * query
    changed = made.with_inputs(query=query.astype(made.query.dtype))
    return replace(changed, kind="queries of many sizes")


def heavy_scene(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Problem:
    """Return impulses in values, with some large keys that are exponents."""
    made = product_scene(scope, sizes, rng)
    key = made.key.astype(np.float64)
    heavy = rng.random((*key.shape[:-1], 1)) < HEAVY
    key += heavy * rng.uniform(4, LARGEST_EXPONENT, heavy.shape)
    changed = made.with_inputs(key=key.astype(made.key.dtype))
    return replace(changed, kind="keys of many sizes")


def with_impulses(
    problem: Problem,
    rng: np.random.Generator,
    *,
    spread: bool = False,
    tokens: Sequence[int] = (),
) -> Problem:
    """Return the problem with values that are impulses, of size 1 or of many sizes."""
    shape, scope = problem.shape, problem.scope
    name = carrier(scope)
    x = problem.inputs[name]
    batch, channels = shape.batch, shape.value_dim
    places = batch * channels if name == "value" else batch
    wanted = np.asarray(tokens or np.arange(shape.keys))
    chosen = _assigned(wanted[wanted < shape.keys], places, rng)
    impulses = np.zeros(x.shape)
    most = 2.0 ** (10 if "float16" in scope.stages | {scope.output_dtype} else 13)
    size = rng.choice((-1.0, 1.0), places) * np.geomspace(1 / most, most, places)
    size = rng.permutation(size) if spread else np.ones(places)
    if name == "value":
        owner, channel = np.divmod(np.arange(places), channels)
        sources = chosen.reshape(batch, channels)
    else:
        owner, channel = np.arange(places), rng.integers(x.shape[-1], size=places)
        sources = np.repeat(chosen[:, None], channels, axis=1)
    there = chosen != NOWHERE
    impulses[owner[there], :, chosen[there], channel[there]] = size[there, None]
    changed = {**problem.inputs, name: impulses.astype(x.dtype)}
    integers = problem.integers
    if integers is not None:
        integers = (*integers[:2], impulses.astype(np.int64))
    made = replace(problem, inputs=changed, integers=integers)
    return made.told(sources=Sources(sources.astype(np.int64)))


def kept_sources(problem: Problem, tokens: Index | None = None) -> Sources:
    """Return the impulses of a scene: all, or those of some tokens.

    Those of some tokens are counted from the first of them.
    """
    sources: Sources = problem.knobs["sources"]
    if tokens is None:
        return sources
    each = per_token(problem)
    keys = (tokens[:, None] * each + np.arange(each)).ravel()
    place = np.searchsorted(keys, sources.tokens)
    inside = np.where(np.isin(sources.tokens, keys), place, NOWHERE)
    channels = sources.channels
    channels = None if channels is None else channels[..., keys]
    return replace(sources, tokens=inside, channels=channels)


def per_token(problem: Problem) -> int:
    """Return the number of keys of each token: its micro-steps; 1 of no token."""
    if not (problem.scope.operator.micro_steps and problem.length):
        return 1
    return problem.shape.keys // problem.length


def _assigned(tokens: Index, places: int, rng: np.random.Generator) -> Index:
    """Return a token for each place, each token first, in an order drawn by chance."""
    if places < len(tokens):
        ends = tokens[[0, -1]] if places > 1 else tokens[:1]
        inner = rng.permutation(tokens[1:-1])[: max(places - 2, 0)]
        tokens = np.concatenate([ends, inner])
    more = rng.choice(tokens, max(places - len(tokens), 0)) if len(tokens) else tokens
    filled = np.full(places, NOWHERE)
    filled[: len(tokens) + len(more)] = np.concatenate([tokens, more])[:places]
    return rng.permutation(filled)


def impulse_shape(scope: Scope, sizes: Sizes, sources: int = 0) -> Shape:
    """Return the allowed shape nearest to some sizes, a channel for each source.

    The length is what the contract allows, since a map says itself where no bound does.
    """
    largest = LARGEST_BATCH
    if carrier(scope) == "key":
        if sizes[3] > MANY_CHANNELS:
            largest = ALL_CHANNELS // sizes[4]
        else:
            sizes = (*sizes[:4], FEW_CHANNELS)
    shape = nearest_shape(scope, sizes)
    each = shape.keys // shape.length if scope.operator.micro_steps else 1
    length = fitted(scope, reach=Reach())(sizes[2])
    if scope.operator.causal:
        levels = length.bit_length() + 1 if shape.levels > 1 else 1
        shape = replace(shape, length=length, keys=length * each, levels=levels)
    most = scope.operator.largest_key_dim
    if most is not None and not scope.contract.key_dims:
        # No power of two, of which a tile would leave no channels behind.
        shape = replace(shape, key_dim=min(shape.key_dim, most - 4))
    if "b" not in scope.contract.layout:
        return shape
    columns = shape.value_dim if carrier(scope) == "value" else 1
    copies = -(-(sources or shape.keys) // (columns * shape.batch))
    most_copies = max(1, largest // shape.batch)
    return replace(shape, batch=shape.batch * max(1, min(copies, most_copies)))


def _directions(scope: Scope) -> list[str]:
    """Return the inputs that have one channel for each token in a product scene."""
    operator = scope.operator
    if operator.erase_along == "value":
        return ["value"]
    axes = {one.name: one.axes for one in operator.inputs}
    if "slots" in axes:
        return [] if operator.log_normalizer else ["slots"]
    if not axes.get("key", "").endswith("k"):
        return []
    return [name for name in _DIRECTIONS if name in axes]


def calmed(problem: Problem, tokens: int = 64) -> Problem:
    """Return the problem with gates under which a token is heard to the very end.

    Log-decays and rates are divided, so that all tokens together forget and erase as
    much as so many did; so are keys that add up in the argument of a softmax.
    """
    share = min(1.0, tokens / max(problem.shape.keys, 1))
    operator = problem.scope.operator
    names = {*RATES, "b"} if operator.erases else set()
    names |= {"key"} if "slots" in operator.names else set()
    changed = {
        name: (share * x.astype(np.float64)).astype(x.dtype)
        for name, x in problem.inputs.items()
        if name in names
    }
    made = problem.with_inputs(**changed)
    if "log_decay" not in made.inputs:
        return made
    meant = made.oracle_call.meant["log_decay"]
    return made if meant is None else with_decays(made, share * meant)


def longer_keys(problem: Problem, rng: np.random.Generator) -> Problem:
    """Return the problem with twice as many keys as queries."""
    twice = {
        name: np.concatenate([problem.inputs[name]] * 2, axis=-2)
        for name in ("key", "value")
    }
    return with_impulses(problem.with_inputs(**twice), rng)
