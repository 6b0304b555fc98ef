"""Long inputs of which few tokens write: their exact answer is that of the few.

A token is *neutral* if it leaves the memory as it is: it writes nothing, erases nothing
and decays nothing. The step of such a token is the identity map, so tokens that are
neutral can be left out: the outputs at all others are those of the shorter sequence.
What a correct kernel does at a neutral token is exact too (it adds zero, or multiplies
by one), so its error has the bound of the shorter sequence.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import as_declared
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import shapes

__all__ = [
    "active_tokens",
    "at_tokens",
    "judged_tokens",
    "neutral_inputs",
    "no_neutral",
    "sparse_problems",
]

# Around these lie the tokens that write and those that are judged: edges of chunks and
# of the integers that count tokens.
EDGES = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
# Tokens that write near each edge and anywhere, and those that are judged besides.
_NEAR, _ANYWHERE, _SAMPLED = 2, 13, 40


def no_neutral(scope: Scope) -> str | None:
    """Require an operator with tokens that leave its memory as it is."""
    if scope.operator.neutral is None:
        return "every token changes the memory of the operator"
    if scope.operator.feature_map and scope.key_map.from_integers is None:
        return f"no key has features of zero under {scope.key_map.name}"
    return None


def neutral_inputs(scope: Scope) -> dict[str, float]:
    """Return the inputs of a neutral token; those that are missing may be anything."""
    neutral = {**(scope.operator.neutral or {})}
    for name, number in neutral.items():
        (neutral[name],) = as_declared(scope, np.full(1, number), name).tolist()
    if scope.operator.feature_map and scope.key_map.from_integers is not None:
        (neutral["key"],) = scope.key_map.from_integers(np.zeros(1, np.int64)).tolist()
    return neutral


def _edges(length: int) -> NDArray[np.int_]:
    near = np.add.outer(np.asarray([*EDGES, length]), np.arange(-2, 3)).ravel()
    return np.unique(near[(near >= 0) & (near < length)])


@st.composite
def sparse_problems(
    draw: st.DrawFn, scope: Scope, *, lengths: tuple[int, ...], dense: int = 3
) -> Problem:
    """Few tokens that write, near edges of chunks and at the end: reaches long inputs.

    The last `dense` tokens all write.
    """
    rng = draw(draws.generators(scope))
    pairs = ((4, 3),) if scope.few_shapes else ((4, 3), (2, 5), (3, 3))
    few = draw(shapes(scope, lengths=(64,), pairs=pairs))
    length = draw(st.sampled_from(lengths[:1] if scope.few_shapes else lengths))
    return sparse_problem(scope, few, length, rng, dense=dense)


def sparse_problem(
    scope: Scope, shape: Shape, length: int, rng: np.random.Generator, *, dense: int
) -> Problem:
    """Make a long input of which few tokens write: the first and the last, too.

    Parameters
    ----------
    scope, shape : Scope, Shape
        For which operator, and how large but for its length.
    length : int
        ``T``.
    rng : Generator
        Where numbers come from.
    dense : int
        How many tokens at the end all write.
    """
    each = shape.keys // max(shape.length, 1) if scope.operator.micro_steps else 1
    heads = min(shape.heads, 2)
    sizes = replace(shape, batch=1, heads=heads, length=length, keys=length * each)
    kind = "uniform" if scope.operator.feature_map else "typical"
    drawn = real_problem(scope, sizes, kind, "normal", rng)
    silent = np.ones(length, dtype=bool)
    silent[_writing(length, dense, rng)] = False
    changed = {}
    for name, number in neutral_inputs(scope).items():
        x, axis = drawn.inputs[name].copy(), scope.operator.input(name).token_axis
        where = np.repeat(silent, x.shape[axis] // length) if axis is not None else ...
        x[(*(slice(None),) * (axis or 0), where)] = number
        changed[name] = x
    return replace(drawn.with_inputs(**changed), kind="few tokens that write")


def _writing(length: int, dense: int, rng: np.random.Generator) -> NDArray[np.int_]:
    """Return tokens that write: the first, the last, both sides of edges, others."""
    sides = [n - near for n in EDGES for near in (0, 1) if n < length]
    some = rng.permutation(_edges(length))[: _NEAR * len(EDGES)]
    anywhere = rng.integers(0, length, _ANYWHERE)
    last = np.arange(max(length - dense, 0), length)
    return np.unique(np.concatenate([[0], sides, some, anywhere, last]).astype(int))


def active_tokens(problem: Problem) -> NDArray[np.int_]:
    """Return the tokens that are not neutral."""
    active = np.zeros(problem.length, dtype=bool)
    for name, number in neutral_inputs(problem.scope).items():
        x, axis = problem.inputs[name], problem.scope.operator.input(name).token_axis
        if axis is None:
            continue
        others = tuple(n for n in range(x.ndim) if n != axis)
        differs = (x != x.dtype.type(number)).any(axis=others)
        active |= differs.reshape(problem.length, -1).any(axis=-1)
    return np.flatnonzero(active)


def judged_tokens(problem: Problem) -> NDArray[np.int_]:
    """Return the tokens of the shorter sequence: all that write, edges, a sample."""
    rng = np.random.default_rng(problem.length)
    sample = rng.integers(0, max(problem.length, 1), _SAMPLED)
    return np.unique(
        np.concatenate([active_tokens(problem), _edges(problem.length), sample])
    )


def at_tokens(problem: Problem, tokens: NDArray[np.int_]) -> Problem:
    """Return the problem of some tokens, the active ones among them.

    Any chunk may hold but one of them, so that no chunk size is declared.
    """
    contract = replace(problem.scope.contract, chunk_size=None)
    changed: dict[str, Any] = {}
    for name, x in problem.inputs.items():
        axis = problem.scope.operator.input(name).token_axis
        if axis is not None:
            each = x.shape[axis] // problem.length
            rows = np.add.outer(tokens * each, np.arange(each)).ravel()
            changed[name] = np.take(x, rows, axis)
    part = problem.with_inputs(**changed)
    return replace(part, scope=replace(problem.scope, contract=contract), knobs={})
