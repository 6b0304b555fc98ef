"""The stage of long sequences: maps of some sources in thousands of rows.

Sources lie at the edges of large chunks, and in between by chance. Where some are wrong
and their neighbours are not, sources between them follow, until the edge is known; then
shorter sequences, until the shortest wrong one is known.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from linkern.testing.checks.registry import no_final_state, not_causal
from linkern.testing.errors import (
    Inapplicable,
    OutOfTime,
    TargetRaised,
    not_applicable,
)
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import output_map, state_maps
from linkern.testing.influence.scenes import calmed, carrier, product_scene
from linkern.testing.influence.stages import Stage, one_token, stage
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.reach import Reach
from linkern.testing.problems.shapes import fitted, longest
from linkern.testing.target.process import Target

__all__ = ["LONG"]

# Tokens of a full map, and of the longest sequence.
FULL, LONGEST = 530, 4200
# Below it, the other stages have maps of all tokens.
SHORTEST = 160
# Sources of a sequence; of operators that have a batch entry for each, fewer.
SOURCES, FEW_SOURCES = 32, 8
# Rows that a dense proof has at most.
ROWS = 1290
# Sources of which final states are read: more than the tail of any chunk up to 128.
STORED = 140
# Rounds of refinement, and edges that are refined.
ROUNDS, EDGES = 4, 3


@dataclass(frozen=True)
class _Probe:
    """A target and the seed of its long problems, whose first tokens are the same."""

    target: Target
    scope: Scope
    seed: int

    @property
    def sources(self) -> int:
        """The number of sources of one map."""
        return SOURCES if carrier(self.scope) == "value" else FEW_SOURCES

    def map(self, length: int, tokens: tuple[int, ...]) -> InfluenceMap | None:
        """Return the map of some sources, if the target answers."""
        rng = np.random.default_rng(self.seed)
        if self.scope.operator.micro_steps:
            tokens = tuple(2 * n + n % 2 for n in tokens)
        sizes = (1, 1, length, 4, max(len(tokens), 1))
        problem = calmed(product_scene(self.scope, sizes, rng, tokens=tokens))
        try:
            return output_map(self.target, problem)
        except (TargetRaised, OutOfTime):
            return None

    def grid(self, length: int) -> tuple[int, ...]:
        """Return sources around powers of two, and between them."""
        rng = np.random.default_rng(self.seed)
        powers = 2 ** np.arange(5, 13)
        usual = np.concatenate([[0, length - 1], powers, powers - 1])
        usual = usual[(usual >= 0) & (usual < length)]
        chosen = usual[: self.sources]
        more = rng.integers(0, length, max(self.sources - len(chosen), 0))
        return tuple(np.unique(np.concatenate([chosen, more])).tolist())


def _length(scope: Scope, wanted: int) -> int:
    """Return the longest sequence up to `wanted` of which something is proved."""
    operator = scope.operator
    if operator.erases:
        each = 2 if operator.micro_steps or carrier(scope) == "key" else 1
        wanted = min(wanted, ROWS // (operator.rows_per_token * each))
    return fitted(scope, reach=Reach())(min(wanted, longest(scope, reach=Reach())))


def _measure(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    probe = _Probe(target, scope, int(rng.integers(2**31)))
    length, full = _length(scope, LONGEST), _length(scope, FULL)
    step = 1 if carrier(scope) == "value" else full // FEW_SOURCES
    maps = [probe.map(full, tuple(range(0, full, step)))]
    if length > full:
        maps.append(probe.map(length, probe.grid(length)))
    answered = [one for one in maps if one is not None]
    if answered and answered[-1].wrong.any():
        last = answered[-1]
        # The map of all sources tells the edges itself.
        if step > 1 or not answered[0].wrong.any():
            answered += _refined(probe, last)
        answered += _shortened(probe, last)
    return answered


def _refined(probe: _Probe, first: InfluenceMap) -> list[InfluenceMap]:
    """Return maps of more and more sources, between right ones and wrong ones."""
    maps, length = [first], first.problem.length
    for _ in range(ROUNDS):
        source = np.concatenate([one.coordinates["source"] for one in maps])
        wrong = np.concatenate([one.wrong for one in maps])
        tokens = np.unique(source)
        spoiled = np.isin(tokens, source[wrong])
        edges = np.flatnonzero((np.diff(spoiled) != 0) & (np.diff(tokens) > 1))[:EDGES]
        if not len(edges):
            break
        each = probe.sources // len(edges)
        between = [
            np.linspace(tokens[n], tokens[n + 1], each + 2).astype(np.int64)[1:-1]
            for n in edges
        ]
        more = np.setdiff1d(np.concatenate(between), tokens)
        made = probe.map(length, tuple(more.tolist()))
        if made is None:
            break
        maps.append(made)
    return maps[1:]


def _shortened(probe: _Probe, longer: InfluenceMap) -> list[InfluenceMap]:
    """Return the map of the shortest wrong sequence, and those of right ones.

    It may end with the first row that is wrong in the longer one.
    """
    if probe.scope.few_shapes:
        return []
    tokens = np.unique(longer.coordinates["source"])
    tokens = tokens[:: -(-len(tokens) // probe.sources)]
    step = probe.scope.contract.length_multiple_of
    first = int(longer.coordinates["row"][longer.wrong].min()) // step * step
    guesses = [first + step, first]
    right, wrong = SHORTEST // step * step, longer.problem.length
    maps: list[InfluenceMap] = []
    shortest: list[InfluenceMap] = []
    while wrong - right > step:
        middle = guesses.pop() if guesses else (right + wrong) // 2 // step * step
        if not right < middle < wrong:
            continue
        made = probe.map(middle, tuple(tokens[tokens < middle].tolist()))
        if made is None:
            break
        if made.wrong.any():
            wrong, shortest = middle, [made]
        else:
            right = middle
            maps.append(made)
    return [*maps, *shortest]


def _too_short(scope: Scope) -> Inapplicable | None:
    if longest(scope, reach=Reach()) > SHORTEST:
        return None
    return not_applicable("it takes no long sequences in one call")


def _states(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    """Yield scenes of whose last tokens the final state is read."""
    longest, least = _length(scope, LONGEST), 2 * SHORTEST
    # Of operators that erase, exact states take the longest, and lengths differ little.
    heads = 1 if scope.operator.erases else 2
    lengths = (longest, longest // 2) if longest > 2 * least + STORED else (longest,)
    for length in dict.fromkeys((*lengths, least)):
        n = fitted(scope, reach=Reach())(length - int(rng.integers(1, 128)))
        count = min(STORED, n)
        sizes = (1, heads, n, 4, count)
        last = range(n - count, n)
        yield calmed(product_scene(scope, sizes, rng, tokens=tuple(last)))


LONG = (
    Stage("long", _measure, (_too_short, one_token)),
    stage(
        "states of long sequences",
        _states,
        state_maps,
        _too_short,
        one_token,
        not_causal,
        no_final_state,
        wants_state=True,
    ),
)
