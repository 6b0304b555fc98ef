"""Stages of calls without gradients: outputs, final states, spans, packed sequences."""

from collections.abc import Iterator

import numpy as np

from linkern.testing.checks.packed import not_packed
from linkern.testing.checks.registry import no_final_state, no_state, not_causal
from linkern.testing.influence.parts import packings
from linkern.testing.influence.readings import (
    output_maps,
    packed_maps,
    state_maps,
)
from linkern.testing.influence.scenes import (
    carrier,
    dense_scene,
    faint_scene,
    heavy_scene,
    impulse_shape,
    kept_sources,
    longer_keys,
    product_scene,
    with_impulses,
)
from linkern.testing.influence.stages import one_token, stage
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import extreme_problem, integer_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes
from linkern.testing.problems.strategies import no_integers

__all__ = ["HANDED_ON", "STAGES"]

# Kinds of features, and of gates, under which a shortcut shows that others hide.
_KINDS_OF_FEATURES = ("tiny", "wide", "bigfirst")
_KINDS_OF_GATES = ("strong", "typical", "long", "parallel", "sharp", "scaled")
# Those of decays and of arguments of exponentials, of any kind of keys.
_KINDS_IN_PRODUCTS = ("strong", "typical", "long")
# The length of scenes of targets that compile each shape.
FIXED = 148
# Rows behind the last packed sequence.
SLACK = 6


def _long(scope: Scope, rng: np.random.Generator) -> int:
    """Return a length with two chunks of any usual size and a tail.

    Targets that compile each shape get the same one at every stage.
    """
    length = int(rng.integers(145, 158))
    return FIXED if scope.few_shapes else length


def _outputs(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes with edges of chunks from 16 to 128, with tails and without."""
    long, some = _long(scope, rng), int(rng.integers(66, 78))
    first = (1, 2, long, 8, long + 9)
    yield product_scene(scope, first, rng, pure=True)
    yield dense_scene(scope, (1, 1, long, 6, long), rng)
    yield product_scene(scope, (1, 3, 128, 4, 16), rng, pure=True)
    yield dense_scene(scope, (2, 3, 48, 5, 8), rng)
    # Tiles of channels, the last one of some of them full.
    tiles = product_scene(scope, (1, 1, 140, 136, 140), rng, pure=True)
    # Few sources that have one channel each would tell nothing of tiles.
    if carrier(scope) == "value":
        yield tiles
    if "query" in scope.operator.names and kept_sources(tiles).channels is None:
        yield dense_scene(scope, (1, 1, 65, 136, 140), rng)
    yield dense_scene(scope, (1, 1, 64, 72, 64), rng)
    for length in (1, 2, 3):
        yield product_scene(scope, (1, 2, length, 4, 4), rng, pure=True)
    for least, channels in ((17, 24), (33, 4)):
        length = least + int(rng.integers(1, 14))
        yield product_scene(scope, (1, 2, length, channels, length), rng, pure=True)
    yield from _unusual(
        scope, first if scope.few_shapes else (1, 2, some, 4, some), rng
    )
    # Of another number of batch entries than above, which would be a constant.
    if not (scope.few_shapes or scope.operator.erases):
        yield product_scene(scope, (1, 2, 32, 4, 6), rng, pure=True)


def _unusual(scope: Scope, sizes: Sizes, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of features, gates and values under which shortcuts show."""
    features = scope.operator.feature_map
    if scope.normalised:
        with_query = "query" in scope.operator.names
        yield (faint_scene if with_query else heavy_scene)(scope, sizes, rng)
    for kind in _KINDS_OF_FEATURES if features else _KINDS_OF_GATES:
        # Of many channels, keys of one direction have small entries.
        channels = 24 if kind == "parallel" else 4
        yield dense_scene(scope, (*sizes[:3], channels, sizes[4]), rng, kind=kind)
        if kind in _KINDS_IN_PRODUCTS:
            yield product_scene(scope, sizes, rng, kind=kind, pure=True)
    yield dense_scene(scope, sizes, rng, spread=True)
    for kind in ("huge", "tiny"):
        drawn = extreme_problem(scope, impulse_shape(scope, sizes), kind, rng)
        yield with_impulses(drawn, rng)
    if not scope.operator.causal and not scope.contract.equal_lengths:
        yield longer_keys(dense_scene(scope, (1, 2, 40, 6, 70), rng), rng)
    if no_integers(scope) is None:
        shape = impulse_shape(scope, sizes)
        drawn = integer_problem(scope, shape, "dense", "dense", rng)
        yield with_impulses(drawn, rng)


def _omitted(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes without one of the optional inputs, then with other scales."""
    sizes = [(70, 6, 70), (20, 11, 20), (20, 8, 20), (1, 4, 4), (1, 5, 5)]
    if scope.few_shapes:
        sizes = [(FIXED, 8, FIXED + 9), (20, 11, 20)]
    for length, key_dim, value_dim in sizes:
        made = product_scene(scope, (1, 2, length, key_dim, value_dim), rng)
        yield from _without_each(made)
        for scale in scope.scales[1:]:
            yield made.scaled(scale)


def _without_each(made: Problem) -> Iterator[Problem]:
    """Yield a scene without one of the inputs that may be left out."""
    for name in made.scope.omissible:
        yield made.without(name)


def _whole(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of which the final state is read, with tails and without."""
    long = _long(scope, rng)
    yield product_scene(scope, (1, 2, long, 8, long + 9 * scope.few_shapes), rng)
    yield product_scene(scope, (1, 3, 128, 4, 16), rng)
    yield dense_scene(scope, (2, 3, 48, 5, 8), rng)
    yield dense_scene(scope, (1, 2, 40, 6, 6), rng)
    if not scope.few_shapes:
        yield from _without_each(product_scene(scope, (1, 2, 45, 5, 45), rng))
    for length in (1, 9):
        yield product_scene(scope, (1, 2, length, 4, 4), rng)
    if scope.operator.keeps_keys:
        # No two tokens have a channel of keys in common.
        for length, key_dim in ((24, 40), (40, 44)):
            sizes = (1, 2, length, key_dim, length)
            yield product_scene(scope, sizes, rng, along=("key",))


def _handed_on(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of which the final state is read, of one call and of the second."""
    step = scope.contract.length_multiple_of
    for length, key_dim in ((41, 5), (70, 6)):
        made = product_scene(scope, (1, 2, length, key_dim, length), rng)
        yield made
        cut = 19 // step * step
        if 0 < cut < made.length:
            yield made.told(cuts=(cut,))


def _cut(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes to be cut: inside a chunk, between chunks, more than once."""
    step = scope.contract.length_multiple_of
    long = _long(scope, rng)
    # Square states are the only ones that can be transposed in silence; strides of rows
    # and of columns are told apart by others.
    wanted: list[tuple[Sizes, tuple[int, ...]]] = [
        ((1, 2, long, 16, 16), (int(rng.integers(17, 31)),)),
        ((1, 2, 128, 8, 8), (16, 80)),
        ((1, 2, 40, 6, 6), (16,)),
        ((1, 2, 40, 6, 9), (16,)),
        ((1, 2, 24, 4, 4), (20, 21, 22, 23)),
    ]
    if scope.few_shapes:  # spans of one length
        halves = [((1, 2, n, 16, 16 + x), (n // 2,)) for n, x in ((long, 0), (40, 3))]
        wanted = [*halves, wanted[-1]]
    for sizes, cuts in wanted:
        for scene in (product_scene, dense_scene):
            made = scene(scope, sizes, rng)
            fitting = sorted({cut // step * step for cut in cuts})
            inner = tuple(n for n in fitting if 0 < n < made.length)
            if inner:
                yield made.told(cuts=inner)


def _packed(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield packed sequences, an empty one among them, with rows behind the last."""
    full = scope.contract.packing == "full"
    slack = 0 if full else SLACK * scope.contract.length_multiple_of
    stateful = no_state(scope) is None and scope.interface.position is None
    for packing in packings(scope, 2 if stateful else 1, rng):
        total = packing.ends[-1] + slack
        for scene in (product_scene, dense_scene):
            made = scene(scope, (1, 2, total, 6, total), rng).first_of_batch()
            if made.length == total:
                yield made.told(packing=packing)


# Final states of calls that begin with a state: if they are wrong, outputs are in the
# call after the next one.
HANDED_ON = stage(
    "states of spans",
    _handed_on,
    state_maps,
    one_token,
    not_causal,
    no_state,
    wants_state=True,
)
STAGES = (
    stage("outputs", _outputs, output_maps),
    stage("omitted", _omitted, output_maps),
    stage("state", _whole, state_maps, not_causal, no_final_state, wants_state=True),
    stage("spans", _cut, output_maps, one_token, not_causal, no_state),
    stage("packed", _packed, packed_maps, not_causal, not_packed, wants_state=True),
)
