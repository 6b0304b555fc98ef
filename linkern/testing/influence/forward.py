"""Stages of calls without gradients: outputs, final states, spans, packed sequences.

The scenes of a scope are drawn once, so that targets of one scope share their exact
results.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from linkern.testing.checks.packed import not_packed
from linkern.testing.checks.registry import no_state, not_causal
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import (
    asked,
    output_maps,
    packed_maps,
    span_maps,
    state_maps,
)
from linkern.testing.influence.scenes import (
    dense_scene,
    extreme_scene,
    faint_scene,
    integer_scene,
    kept_sources,
    longer_keys,
    product_scene,
)
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.packing import Packing
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.strategies import no_integers
from linkern.testing.target.process import Target

__all__ = ["STAGES", "scenes_of"]

Scenes = Callable[[Scope, np.random.Generator], Iterator[Problem]]
# Kinds of features, and of gates, under which a shortcut shows that others hide.
_KINDS_OF_FEATURES = ("tiny", "wide", "bigfirst")
_KINDS_OF_GATES = ("strong", "typical", "long", "parallel", "sharp", "scaled")
# Rows behind the last packed sequence.
SLACK = 6
# Shapes of targets that compile each one.
FEW_SHAPES = 3


@lru_cache(maxsize=64)
def scenes_of(draw: Scenes, scope: Scope, seed: int) -> tuple[Problem, ...]:
    """Return scenes of a scope; the same ones for the same seed."""
    problems: list[Problem] = []
    shapes: set[Shape] = set()
    for problem in draw(scope, np.random.default_rng(seed)):
        if scope.few_shapes and len({*shapes, problem.shape}) > FEW_SHAPES:
            continue
        shapes.add(problem.shape)
        for x in problem.inputs.values():
            x.flags.writeable = False
        problems.append(problem)
    return tuple(problems)


def _outputs(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes with edges of chunks from 16 to 128, with tails and without."""
    long, some = int(rng.integers(145, 158)), int(rng.integers(66, 78))
    yield product_scene(scope, (1, 2, long, 8, long), rng)
    yield dense_scene(scope, (1, 1, long, 6, long), rng)
    yield product_scene(scope, (1, 3, 128, 4, 16), rng)
    yield dense_scene(scope, (2, 3, 48, 5, 8), rng)
    tiles = product_scene(scope, (1, 1, 140, 136, 140), rng)
    yield tiles
    if "query" in scope.operator.names and kept_sources(tiles).channels is None:
        yield dense_scene(scope, (1, 1, 65, 136, 140), rng)
    for length in (1, 2, 3):
        yield product_scene(scope, (1, 2, length, 4, 4), rng)
    for least in (17, 33):
        length = least + int(rng.integers(1, 14))
        yield product_scene(scope, (1, 2, length, 4, length), rng)
    features = scope.operator.feature_map
    sizes = (1, 2, some, 4, some)
    if scope.normalised and "query" in scope.operator.names:
        yield faint_scene(scope, sizes, rng)
    for kind in _KINDS_OF_FEATURES if features else _KINDS_OF_GATES:
        # Of many channels, keys of one direction have small entries.
        channels = 24 if kind == "parallel" else 4
        yield dense_scene(scope, (1, 2, some, channels, some), rng, kind=kind)
    yield dense_scene(scope, sizes, rng, spread=True)
    for kind in ("huge", "tiny"):
        yield extreme_scene(scope, sizes, kind, rng)
    if not scope.operator.causal and not scope.contract.equal_lengths:
        yield longer_keys(dense_scene(scope, (1, 2, 40, 6, 70), rng), rng)
    if no_integers(scope) is None:
        yield integer_scene(scope, sizes, rng)


def _omitted(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes without one of the optional inputs, then with other scales."""
    taken = dict(zip(scope.operator.names, scope.interface.inputs, strict=False))
    for sizes in ((1, 2, 70, 6, 70), (1, 2, 1, 4, 4)):
        made = product_scene(scope, sizes, rng)
        for one in scope.operator.inputs:
            name = taken.get(one.name)
            if one.optional and name is not None and name not in scope.interface.needed:
                yield made.without(one.name)
        for scale in scope.scales[1:]:
            yield made.scaled(scale)


def _whole(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of which the final state is read, with tails and without."""
    long = int(rng.integers(145, 158))
    yield product_scene(scope, (1, 2, long, 8, long), rng)
    yield product_scene(scope, (1, 3, 128, 4, 16), rng)
    yield dense_scene(scope, (2, 3, 48, 5, 8), rng)
    yield dense_scene(scope, (1, 2, 40, 6, 6), rng)
    yield product_scene(scope, (1, 2, 1, 4, 4), rng)


def _cut(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes to be cut: inside a chunk, between chunks, more than once."""
    step = scope.contract.length_multiple_of
    long = int(rng.integers(145, 158))
    for sizes, cuts in (
        ((1, 2, long, 8, long), (int(rng.integers(17, 31)),)),
        ((1, 2, 128, 4, 16), (16, 80)),
        ((1, 2, 40, 6, 6), (16,)),
        ((1, 2, 24, 4, 24), tuple(range(12, 24))),
    ):
        for scene in (product_scene, dense_scene):
            made = scene(scope, sizes, rng)
            fitting = sorted({cut // step * step for cut in cuts})
            inner = tuple(n for n in fitting if 0 < n < made.length)
            if inner:
                yield made.told(cuts=inner)


def _packed(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield packed sequences, an empty one among them, with rows behind the last."""
    unit = scope.contract.length_multiple_of
    stateful = no_state(scope) is None and scope.interface.position is None
    for lengths in (
        ((7, 33, 1, 0, 70),),
        ((16, 48, 64),),
        ((21, 5, 20, 1), (19, 33, 0, 1)),
    )[: 3 if stateful else 2]:
        rounded = tuple(tuple(-(-n // unit) * unit for n in row) for row in lengths)
        total = sum(map(sum, rounded)) + SLACK * unit
        for scene in (product_scene, dense_scene):
            made = scene(scope, (1, 2, total, 6, total), rng).first_of_batch()
            if made.length == total:
                yield made.told(packing=Packing(rounded))


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _measure_outputs(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    return output_maps(target, scenes_of(_outputs, scope, _seed(rng)))


def _measure_omitted(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    return output_maps(target, scenes_of(_omitted, scope, _seed(rng)))


def _measure_states(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    maps: list[InfluenceMap] = []
    for problem in scenes_of(_whole, scope, _seed(rng)):
        reply = asked(target, problem, wants_state=True)
        if reply is not None:
            maps += state_maps(problem, reply)
    return maps


def _measure_spans(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    maps: list[InfluenceMap] = []
    for problem in scenes_of(_cut, scope, _seed(rng)):
        cuts = problem.knobs["cuts"]
        reply = asked(target, problem, cuts=cuts, wants_state=True)
        if reply is not None and reply.state_kind:
            maps += span_maps(problem, reply)
    return maps


def _measure_packed(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    maps: list[InfluenceMap] = []
    wants_state = no_state(scope) is None
    for problem in scenes_of(_packed, scope, _seed(rng)):
        packing: Packing = problem.knobs["packing"]
        calls = {"cuts": packing.cuts, "segments": packing.segments}
        reply = asked(target, problem, wants_state=wants_state, **calls)
        if reply is not None:
            maps += packed_maps(problem, reply)
    return maps


def _no_options(scope: Scope) -> str:
    return "" if scenes_of(_omitted, scope, 0) else "it takes all inputs in any case"


def _no_states(scope: Scope) -> str:
    reason = not_causal(scope) or no_state(scope)
    return reason.reason if reason else ""


def _no_spans(scope: Scope) -> str:
    if scope.contract.interface == "step":
        return "one call takes one token"
    return _no_states(scope)


def _no_packed(scope: Scope) -> str:
    reason = not_causal(scope) or not_packed(scope)
    return reason.reason if reason else ""


STAGES = (
    Stage("outputs", _measure_outputs),
    Stage("omitted", _measure_omitted, _no_options),
    Stage("state", _measure_states, _no_states),
    Stage("spans", _measure_spans, _no_spans),
    Stage("packed", _measure_packed, _no_packed),
)
