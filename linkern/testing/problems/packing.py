"""Packed sequences: how Hypothesis draws their lengths, and their exact results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import EDGES, one_of
from linkern.testing.problems.strategies import generators

__all__ = [
    "Packing",
    "chosen_tokens",
    "exact_gradients",
    "exact_outputs",
    "exact_states",
    "packed_sequences",
    "with_packing",
]

# Tokens of a short part of a sequence; long ones share those that are left.
SHARED = -1
PARTS = (SHARED, SHARED, SHARED, SHARED, 0, 0, 1, 2, 3)
COUNTS = (3, 2, 4, 5, 1)
# Rows behind the last sequence; without end, where all sequences are empty.
SLACK = (0, 0, 0, 1, 3, 17, np.inf)


@dataclass(frozen=True, repr=False)
class Packing:
    """Packed sequences that go on from call to call.

    The tokens of a problem are those of the first call, then those of the second. In
    each call they are those of the first sequence, then those of the second. Tokens
    behind the last sequence of the last call belong to none.

    Parameters
    ----------
    lengths : tuple of tuple of int
        For each call, the tokens of each sequence.

    Examples
    --------
    >>> packing = Packing(((2, 0, 3), (1, 1, 0)))
    >>> packing.cuts, packing.segments
    ((5,), ((0, 2, 2, 5), (0, 1, 2, 2)))
    >>> [tokens.tolist() for tokens in packing.tokens()]
    [[0, 1, 5], [6], [2, 3, 4]]
    >>> packing.in_one_call.segments
    ((0, 2, 2, 5, 6, 7, 7),)
    """

    lengths: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        """Show the lengths of the sequences, call by call."""
        return "/".join("+".join(map(str, row)) for row in self.lengths)

    @property
    def in_one_call(self) -> "Packing":
        """The same tokens in one call: those of a sequence in each call are one."""
        return Packing((tuple(chain.from_iterable(self.lengths)),))

    @property
    def ends(self) -> tuple[int, ...]:
        """The number of tokens up to the end of each call."""
        return tuple(accumulate(map(sum, self.lengths)))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The first token of each call but the first."""
        return self.ends[:-1]

    @property
    def segments(self) -> tuple[tuple[int, ...], ...]:
        """The offsets of the sequences in each call."""
        return tuple(tuple(accumulate((0, *row))) for row in self.lengths)

    def tokens(self) -> list[NDArray[np.intp]]:
        """Return the tokens of each sequence."""
        starts = (0, *self.ends)
        spans = [
            [np.arange(start + a, start + b) for a, b in pairwise(edges)]
            for start, edges in zip(starts, self.segments, strict=False)
        ]
        return [np.concatenate(parts) for parts in zip(*spans, strict=True)]


@st.composite
def with_packing(
    draw: st.DrawFn,
    problems: st.SearchStrategy[Problem],
    *,
    calls: tuple[int, ...] = (1,),
) -> Problem:
    """Pack the tokens of one batch entry into sequences, empty and short ones too.

    Reaches: chunks on one grid for all sequences, sequences of no token and of one to
    three, states that go to another sequence, rows that belong to none.
    """
    problem = draw(problems).first_of_batch()
    few = problem.scope.few_shapes
    count = draw(one_of(*((2,) if few else COUNTS)))
    full = problem.scope.contract.packing == "full"
    slack = draw(one_of(*((0,) if full else (0, 1) if few else SLACK)))
    rng = draw(generators(problem.scope))
    table = _lengths(problem, (draw(one_of(*calls)), count), slack, rng)
    return problem.told(packing=Packing(tuple(map(tuple, table.tolist()))))


def _lengths(
    problem: Problem, size: tuple[int, int], slack: float, rng: np.random.Generator
) -> NDArray[np.int_]:
    """Return the tokens of each sequence in each call, as the contract allows them."""
    contract = problem.scope.contract
    unit, least = contract.length_multiple_of, contract.shortest
    if slack == np.inf and size[0] == 1 and not least:
        return np.zeros(size, int)
    left = problem.length // unit
    left -= int(min(slack, left // 2, left - -(-least // unit)))
    kinds = [n for n in PARTS if n == SHARED or n * unit >= least]
    parts = rng.choice(kinds, size[0] * size[1])
    parts[rng.permutation(parts.size)[:2]] = SHARED
    for i, tokens in enumerate(parts):
        parts[i] = min(tokens, left) if tokens != SHARED else SHARED
        left -= max(parts[i], 0)
    shared = parts == SHARED
    near = [n for n in EDGES if n < left] or [left]
    cuts = rng.integers(1, max(left, 2), shared.sum() - 1)
    cuts = np.minimum(cuts, left)
    cuts = np.where(rng.random(cuts.shape) < 0.5, cuts, rng.choice(near, cuts.shape))
    parts[shared] = np.diff(np.sort(cuts), prepend=0, append=left)
    table = parts.reshape(size) * unit
    table = table[table.any(axis=1)]
    return table if (table >= least).all() else table.sum(keepdims=True)


def packed_sequences(problem: Problem) -> list[Problem]:
    """Return the problem of each packed sequence, alone."""
    packing: Packing = problem.knobs["packing"]
    alone = partial(chosen_tokens, problem)
    return problem.parts(packing, lambda: [*map(alone, packing.tokens())])


def chosen_tokens(problem: Problem, tokens: NDArray[np.intp]) -> Problem:
    """Return the problem of some tokens."""
    inputs = {
        name: x if axis is None else np.take(x, index, axis)
        for name, x in problem.inputs.items()
        for axis, index in [_index(problem, name, tokens)]
    }
    cotangent = problem.cotangent
    if cotangent is not None:
        cotangent = cotangent[..., tokens, :]
    return replace(problem.with_inputs(**inputs), cotangent=cotangent)


def _index(
    problem: Problem, name: str, tokens: NDArray[np.intp]
) -> tuple[int | None, NDArray[np.intp]]:
    """Return the token axis of an input, and the entries of tokens along it."""
    axis = problem.scope.operator.input(name).token_axis
    if axis is None:
        return None, tokens
    each = problem.inputs[name].shape[axis] // problem.length  # keys of one query
    return axis, (tokens[:, None] * each + np.arange(each)).ravel()


def exact_outputs(problem: Problem, confidence: float | None = None) -> Bounded:
    """Return the outputs of packed sequences, without rows behind the last one.

    The confidence is that of `Problem.solve`.
    """
    packing: Packing = problem.knobs["packing"]
    shape = replace(problem.shape, length=packing.ends[-1]).of("bgtv")
    output, bound = np.zeros(shape), np.zeros(shape)
    pairs = zip(packing.tokens(), packed_sequences(problem), strict=True)
    for tokens, sequence in pairs:
        solved = sequence.solve(confidence=confidence)
        output[..., tokens, :] = solved.output
        bound[..., tokens, :] = solved.bound
    return Bounded(output, bound)


def exact_states(problem: Problem) -> list[Bounded]:
    """Return the final states of all packed sequences: memory, normalizer if any."""
    states = zip(*(one.solve_state() for one in packed_sequences(problem)), strict=True)
    return [_stacked(parts) for parts in states]


def _stacked(parts: Sequence[Bounded]) -> Bounded:
    return Bounded(
        np.concatenate([part.output for part in parts]),
        np.concatenate([part.bound for part in parts]),
    )


def exact_gradients(problem: Problem) -> dict[str, Bounded]:
    """Return the gradients of the inputs; they are zero behind the last sequence.

    The gradient of an input without tokens is the sum over the sequences, to which
    their number is added in roundings.
    """
    packing: Packing = problem.knobs["packing"]
    gradients = [one.solve_gradients() for one in packed_sequences(problem)]
    unit = problem.scope.contract.precisions(problem.scope.dtype).unit
    results = {}
    for name, x in problem.inputs.items():
        output, bound = np.zeros(x.shape), np.zeros(x.shape)
        for tokens, of_sequence in zip(packing.tokens(), gradients, strict=True):
            axis, index = _index(problem, name, tokens)
            entries: tuple[Any, ...] = (*(slice(None),) * (axis or 0), index)
            solved = of_sequence[name]
            if axis is None:
                output, bound = output + solved.output, bound + solved.bound
                bound += len(gradients) * unit * (abs(solved.output) + solved.bound)
            else:
                output[entries], bound[entries] = solved.output, solved.bound
        results[name] = Bounded(output, bound)
    return results
