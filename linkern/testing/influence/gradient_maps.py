"""Influence maps of gradients.

The gradient of a value is the weight of the value in the row of the cotangent. The
gradient of a query, key or gate is read where one value and one cotangent are not zero:
it lies at one token, comes from one row, and depends on what one token wrote.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.packed import no_packed_gradients, not_packed
from linkern.testing.checks.registry import (
    no_gradients,
    no_gradients_of_state,
    not_causal,
)
from linkern.testing.influence.gradient_places import coordinates, kept_pairs
from linkern.testing.influence.gradient_scenes import every_row, one_pair, one_row
from linkern.testing.influence.maps import (
    ORIGIN,
    PARTS_BACK,
    Flags,
    Index,
    InfluenceMap,
    Real,
)
from linkern.testing.influence.parts import Parts, packings
from linkern.testing.influence.readings import Table, shaped, with_joined
from linkern.testing.influence.stages import stage
from linkern.testing.problems.context import Scope
from linkern.testing.problems.forms import is_raw
from linkern.testing.problems.gates import with_decays
from linkern.testing.problems.packing import exact_gradients
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.spec.operators import Input
from linkern.testing.target.protocol import Reply

__all__ = ["GRADIENT_STAGES", "gradient_maps"]

# The least tokens of the longest scene: chunks of 32 to 128 leave the same tokens
# behind at all lengths above the first, and others above the second.
LEAST = (130, 193)
# The most numbers of the memories of all tokens of a scene. Exact gradients hold about
# twelve times as many, of eight bytes: half a gigabyte.
MOST_NUMBERS = 5 * 2**20
# Gradients that come back through a state, if what follows it begins without a decay.
FIRST_DECAYS = "that without the decay of the first token after each cut"
# Coordinates of the largest gradients that come from other sequences.
LEAKS = ("span", "sequence", "start", "head", ORIGIN, PARTS_BACK)


def gradient_maps(problem: Problem, reply: Reply) -> Iterator[InfluenceMap]:
    """Yield the maps of the gradients that a scene isolates.

    Coordinates: ``source`` the token of the gradient, ``row`` that of the cotangent;
    ``written`` that of the value, where it is not the source. The gradient of a query
    lies at its ``row``, and the ``source`` is the token of the value. Rows in a later
    part of the sequence are maps of their own: what is wrong there is the gradient
    that comes back through the final state of a part.
    """
    if reply.gradients is None:
        return
    packed = "packing" in problem.knobs
    exact = exact_gradients(problem) if packed else problem.solve_gradients()
    for place, one in enumerate(map(problem.scope.operator.input, problem.inputs)):
        if not _isolated(problem, one):
            continue
        expected = exact[one.name]
        measured = shaped(reply.gradients[place], expected.output.shape)
        stored = reply.gradient_dtypes[place] or problem.scope.dtype
        # Those of values are weights: ahead of a row they say that they are zero.
        unaffected = (expected.output == 0) & (one.name != "value")
        axis, parts = one.token_axis, Parts(problem)
        for part, other, tensor, chosen, places in coordinates(
            problem, one, measured.shape
        ):
            table = Table(
                tensor,
                parts.problems()[part],
                measured,
                expected,
                expected.bound,
                stored,
                places,
                unaffected,
            )
            ends = (part, other)
            # Of several calls, those of each two sequences would take long.
            if tensor.endswith("across sequences"):
                assert axis is not None
                gradient = partial(_gradient, one.name)
                table = with_joined(table, chosen, parts, ends, axis, gradient)
            if tensor.endswith("across cuts"):
                table = _with_late_decays(table, chosen, parts, ends, one.name)
            made = table.of(chosen)
            yield made.worst_of_each(*LEAKS) if ORIGIN in places else made


def _with_late_decays(
    table: Table, chosen: Flags, parts: Parts, ends: tuple[int, Index], name: str
) -> Table:
    """Return a table with what gradients are if later parts begin without a decay.

    A backward pass multiplies what it hands to the initial state by the decay of the
    first token, or forgets to. `ends` are the part of the gradients, and that of the
    row of each.
    """
    problem, (mine, others) = parts.problem, ends
    contract, operator = problem.scope.contract, problem.scope.operator
    default, groups = operator.defaults.get("log_decay"), problem.shape.groups
    if "log_decay" in problem.inputs:
        if is_raw(contract, operator.input("log_decay")):
            return table

        def without(tokens: Index) -> Real:
            gradients = problem.recalled(
                ("without decays", *tokens.tolist()),
                partial(_solved_without_decays, problem, tokens),
            )
            return gradients[name].output

    elif default is not None and groups == 1:
        # A fixed decay of each head is a factor of all that comes back.
        decays = default(problem.oracle_call.meant)[:, None, None]

        def without(tokens: Index) -> Real:
            return np.asarray(table.exact.output * np.exp(-len(tokens) * decays))

    else:
        return table
    late = np.full(table.measured.shape, np.nan)
    first, sequence = parts.table[[0, 3]]
    for other in np.unique(others[chosen & ~table.right]).tolist():
        between = first[mine + 1 : other + 1]
        tokens = between[sequence[mine + 1 : other + 1] == sequence[mine]]
        late = np.where(others == other, without(tokens), late)
    return replace(table, others={FIRST_DECAYS: late})


def _solved_without_decays(problem: Problem, tokens: Index) -> Mapping[str, Bounded]:
    """Return the exact gradients of a problem in which some tokens have no decay."""
    axis = problem.scope.operator.input("log_decay").token_axis
    assert axis is not None
    decays = np.moveaxis(np.array(problem.oracle_call.meant["log_decay"]), axis, 0)
    decays[tokens] = 0
    return with_decays(problem, np.moveaxis(decays, 0, axis)).solve_gradients()


def _gradient(name: str, problem: Problem) -> Bounded:
    return problem.solve_gradients()[name]


def _isolated(problem: Problem, one: Input) -> bool:
    """Return True if a scene has a gradient of an input: of one pair, or of all."""
    scene = kept_pairs(problem).scene
    if scene == "one row":
        return True
    if not _has_tokens(one):  # a sum over all tokens, and of few impulses here
        return False
    in_every_row = one.name in ("query", "value")
    # Other keys erase, or are in the denominator of rows after them.
    in_every_row |= one.name == "key" and one.name in problem.scope.linear
    return in_every_row == (scene == "every row")


def _has_tokens(one: Input) -> bool:
    return bool({*"ts"} & {*one.axes})


# -- stages


@lru_cache(maxsize=16)
def _pairs(scope: Scope, seed: int, batch: int, heads: int) -> tuple[Problem, ...]:
    """Return scenes of two lengths: one leaves a tail for every chunk, one for few.

    They are kept, so that targets of one scope share what is exact.
    """
    rng = np.random.default_rng(seed)
    operator = scope.operator
    # The oracle takes longer where tokens erase, and longest where they take two rows.
    slow = operator.rows_per_token > 1 or operator.erase_along == "value"
    # A scale of four channels would be taken for a half, and sixths for shares.
    longest = int(rng.choice(LEAST)) + int(rng.integers(0, 14))
    # With two numbers of batch entries and of heads, none is taken for a constant.
    turns = ((batch, heads), (heads, batch) if batch > 1 else (1, heads))
    # Of one batch entry, as packed sequences are, more heads say more.
    sizes = ((longest, 6, 8 if slow else 16), (128, 7, 12 if batch > 1 else 16))
    scenes: list[Problem] = []
    for (length, width, pairs), (b, h) in zip(sizes, turns, strict=True):
        few = 1 if operator.erases else b
        if length == longest or not (scope.few_shapes or slow):
            scenes.append(every_row(scope, (few, h, length, width, length), rng))
            scenes.append(one_pair(scope, (few, pairs, length, width, 5), rng))
    return tuple(scenes)


def _kinds(scope: Scope) -> tuple[str, str]:
    """Return two kinds of inputs: of gates, or of rows where there are feature maps."""
    return ("normal", "wide") if scope.operator.feature_map else ("open", "strong")


def _affordable(scope: Scope, sizes: Sizes) -> Sizes:
    """Return sizes with as many key channels as exact gradients can have.

    They hold the memory of every token, of products of channels too.
    """
    length, most = sizes[2], scope.operator.largest_key_dim
    for key_dim in range(min(sizes[3], most or sizes[3]), 1, -1):
        affordable = (*sizes[:3], key_dim, sizes[4])
        shape = nearest_shape(scope, affordable)
        _, memory = shape.numbers_per_token(scope.operator)
        if length * scope.operator.rows_per_token * memory <= MOST_NUMBERS:
            return affordable
    return sizes


def _dense(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of one row, to which all sources contribute.

    They have some gates, more channels than a tile, several batch entries, and other
    scales than by default.
    """
    length = int(rng.integers(130, 160))
    tiles = _affordable(scope, (1, 1, 33, 136, 140))
    usual, further = _kinds(scope)
    first = length if scope.operator.feature_map else 50
    # A slow target may answer the first ones alone. A scale of four channels is a half,
    # and where gates are all open nothing tells them from others.
    for kind in dict.fromkeys((usual, "mild" if usual == "open" else usual)):
        yield one_row(scope, (1, 8, first, 6, 5), kind, rng)
    yield one_row(scope, (1, 8, 128, 6, 5), further, rng)
    yield one_row(scope, tiles, usual, rng)
    several = one_row(scope, (3, 2, 24, 4, 5), usual, rng)
    yield several
    for scale in scope.scales[1:]:
        yield several.scaled(scale)


def _whole(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of whole sequences."""
    batch, heads = (2, 2) if scope.few_shapes else (3, 2)
    yield from _pairs(scope, int(rng.integers(2**32)), batch, heads)
    # Not cut: what is rounded in each span, and summed, is off by more.
    if not all(map(_has_tokens, scope.operator.inputs)):
        kind, _ = _kinds(scope)
        for b, h in ((batch, heads), (heads, batch)):
            yield one_row(scope, (b, h, int(rng.integers(40, 60)), 7, 5), kind, rng)


def _cut(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of spans, between which gradients go through states."""
    step = scope.contract.length_multiple_of
    for made in _pairs(scope, int(rng.integers(2**32)), 2, 2):
        cuts = rng.choice(np.arange(20, 110), 2, replace=False) // step * step
        inner = tuple(sorted({int(n) for n in cuts if 0 < n < made.length}))
        yield made.told(cuts=inner)


def _packed(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of packed sequences, in one call and in two."""
    calls = 2 if no_gradients_of_state(scope) is None else 1
    for made in _pairs(scope, int(rng.integers(2**32)), 1, 8):
        for packing in packings(scope, calls, rng):
            if packing.ends[-1] < made.length:
                yield made.told(packing=packing)


# In the order in which a defect is to be explained.
GRADIENT_STAGES = (
    stage("gradients", _whole, gradient_maps, no_gradients),
    stage("gradients of all sources", _dense, gradient_maps, no_gradients),
    stage("gradients of spans", _cut, gradient_maps, not_causal, no_gradients_of_state),
    stage(
        "gradients of packed sequences",
        _packed,
        gradient_maps,
        not_causal,
        not_packed,
        no_packed_gradients,
        no_gradients,
    ),
)
