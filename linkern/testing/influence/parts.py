"""Parts of sequences that are cut or packed: the tokens of one sequence in one call.

Tokens are counted from the first one of their part. What comes from an earlier part of
the sequence comes through a state: its source is `INITIAL_STATE`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from linkern.testing.influence.maps import (
    AFTER_AN_EMPTY_ONE,
    INITIAL_STATE,
    ORIGIN,
    PARTS_BACK,
    Index,
)
from linkern.testing.influence.scenes import kept_sources
from linkern.testing.problems.context import Scope
from linkern.testing.problems.packing import Packing, chosen_tokens
from linkern.testing.problems.problem import Problem

__all__ = ["Parts", "packings"]

# Tokens of packed sequences in each call: empty ones, some of one token, and some that
# reach into one more chunk of a grid, which begin on it and inside of its chunks. What
# can be said of a sequence, such as that it is behind an empty one, is last, or has one
# token, is true of others than what else can be. Lengths on no grid are up to so much
# larger: of one set of them, many statements are true by chance.
MORE = 2
LENGTHS = (
    ((7, 20, 0, 22, 1, 68),),
    ((48, 16, 45),),
    ((18, 1, 16, 3, 12, 5), (13, 11, 0, 15, 4, 10)),
)


def packings(scope: Scope, calls: int, rng: np.random.Generator) -> Iterator[Packing]:
    """Yield sequences of a few tokens, in at most so many calls."""
    unit, least = scope.contract.length_multiple_of, scope.contract.shortest
    for rows in LENGTHS:
        if len(rows) <= calls:
            drawn = (_drawn(row, rng) for row in rows)
            yield Packing(
                tuple(tuple(max(-(-n // unit) * unit, least) for n in x) for x in drawn)
            )


def _drawn(lengths: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """Return lengths near to some; those on a grid, and of one token, as they are."""
    more = rng.integers(0, MORE + 1, len(lengths)).tolist()
    return tuple(
        n + x * (n > 1 and n % 16 > 0) for n, x in zip(lengths, more, strict=True)
    )


@dataclass(frozen=True)
class Parts:
    """The parts of a problem, those without tokens left out.

    The knobs ``cuts`` and ``packing`` of the problem say where its sequences are cut.

    Parameters
    ----------
    problem : Problem
        The problem of all tokens.
    """

    problem: Problem

    @cached_property
    def packing(self) -> Packing:
        """The tokens of each sequence in each call."""
        knobs, length = self.problem.knobs, self.problem.length
        calls = np.diff((0, *knobs.get("cuts", ()), length)).tolist()
        packing: Packing = knobs.get("packing") or Packing(tuple((n,) for n in calls))
        return packing

    @property
    def sequences(self) -> int:
        """The number of sequences; tokens behind the last one have this number."""
        return len(self.packing.lengths[0])

    @cached_property
    def table(self) -> Index:
        """The first token of each part, its end, span, sequence and start in a call."""
        packing = self.packing
        pieces = [
            (begin + a, begin + b, span, sequence, a)
            for span, begin in enumerate((0, *packing.cuts))
            for sequence, (a, b) in enumerate(pairwise(packing.segments[span]))
        ]
        end, last = packing.ends[-1], len(packing.cuts)
        pieces.append((end, self.problem.length, last, self.sequences, end))
        return np.array([one for one in pieces if one[0] < one[1]]).reshape(-1, 5).T

    @cached_property
    def _number(self) -> Index:
        """The number of the part of each token."""
        first, end, *_ = self.table
        return np.repeat(np.arange(len(first)), end - first)

    def of(self, token: Index) -> Index:
        """Return the number of the part of each token; keys beyond are in the last."""
        return self._number[np.clip(token, 0, self.problem.length - 1)]

    def seen(self, token: Index, part: Index) -> Index:
        """Return tokens as they count in some parts, those of later parts behind."""
        first, end, *_ = self.table
        other = self.of(token)
        apart = np.where(other < part, INITIAL_STATE, (end - first)[part])
        inside = np.where(other == part, token - first[part], apart)
        return np.where(token < 0, token, inside)

    def places(self, part: Index) -> dict[str, Index]:
        """Return the coordinates that tell parts from one another."""
        _, _, span, sequence, start = self.table
        known: dict[str, Index] = {}
        if "cuts" in self.problem.knobs or self.packing.cuts:
            known["span"] = span[part]
        if "packing" in self.problem.knobs:
            known |= {"sequence": sequence[part], "start": start[part]}
            empty = np.array(self.packing.lengths) == 0
            before = np.pad(empty, ((0, 0), (1, 0)))[span, sequence]
            known[AFTER_AN_EMPTY_ONE] = before[part].astype(np.int64)
        return known

    def origin(self, part: Index, other: Index) -> dict[str, Index]:
        """Return the coordinates of what comes from another part of other sequences."""
        span, sequence = self.table[2:4]
        back = np.where(span[part] == span[other], part - other, 0)
        return {ORIGIN: sequence[other], PARTS_BACK: back}

    def problems(self) -> list[Problem]:
        """Return the problem of each part; they are the same for all of its maps."""
        return self.problem.parts(
            ("with impulses", self.packing),
            lambda: [self._alone(*ends) for ends in self.table[:2].T.tolist()],
        )

    def joined(self, one: int, other: int) -> tuple[Index, Problem]:
        """Return the tokens of two parts as one sequence, and its problem.

        Those of one call are in that of all its tokens, which goes on from the state of
        the first sequence; else the later goes on from the state of the earlier.
        """
        (_, _, span, earlier, _), (first, end, there, _, start) = self.table.T[
            sorted((one, other))
        ]
        begin = first - start  # of the call
        if there == span:
            first, end, earlier = begin, self.packing.ends[there], 0
        before = self.packing.tokens()[earlier]
        tokens = np.append(before[before < begin], np.arange(first, end))
        name = "joined", tokens.tobytes()
        joined = self.problem.parts(name, lambda: [chosen_tokens(self.problem, tokens)])
        return tokens, joined[0]

    def _alone(self, first: int, end: int) -> Problem:
        """Return the problem of some tokens, with their impulses."""
        problem = self.problem
        if end - first == problem.length:
            return problem
        alone = problem.span(first, end).told(
            cuts=(), spans=len(self.packing.lengths), sequences=self.sequences
        )
        if "sources" not in problem.knobs:
            return alone
        return alone.told(sources=kept_sources(problem, np.arange(first, end)))
