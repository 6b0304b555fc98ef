"""Chunkwise delta rules with one term changed, compared with what came back.

A chunk of a delta rule is a triangular system: what its tokens write depends on what
those before them have written. A weight is a sum over ways through the chunk, so that
no product tells which term of the system is wrong; and an input that is replaced in all
terms is another fault than one that is in one of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from linkern.testing.diagnosis.calm import calm_problem
from linkern.testing.diagnosis.factors.factor import Factor, by_rule, untold
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.diagnosis.states_read import Seen, fits
from linkern.testing.influence.maps import Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["OPERATORS", "other_chunk"]

# Of which a chunk is the system below.
OPERATORS = ("delta_rule", "gated_delta_rule", "kda")
# Batch, heads, length, key and value dimension: tokens of two chunks of any usual size,
# and a tail.
SIZES = (1, 2, 140, 12, 5)
SEEDS = (1, 2)
# Bits of the words.
COST = 16.0


@dataclass(frozen=True)
class _Tokens:
    """Inputs of a chunk, with axes ``(B, H, C, .)``; decays are sums of logarithms."""

    query: Real
    key: Real
    value: Real
    beta: Real
    log_decay: Real

    @property
    def sums(self) -> Real:
        """The sum of log-decays from the start of the chunk to each token."""
        return np.cumsum(self.log_decay, -2)

    @property
    def since(self) -> Real:
        """The decay from the start of the chunk to each token, its own included."""
        return np.asarray(np.exp(self.sums))

    @property
    def left(self) -> Real:
        """The decay from each token to the end of the chunk."""
        return np.asarray(np.exp(self.sums[..., -1:, :] - self.sums))

    def scores(self, rows: Real) -> Real:
        """Return products of rows with keys of this token and of those before it."""
        sums = self.sums
        apart = np.minimum(sums[..., :, None, :] - sums[..., None, :, :], 0)
        products = rows[..., :, None, :] * np.exp(apart) * self.key[..., None, :, :]
        return np.asarray(np.tril(products.sum(-1)))


def _solved(system: Real) -> Real:
    return np.asarray(np.linalg.inv(np.eye(system.shape[-1]) + system), np.float64)


@dataclass(frozen=True)
class _Rule:
    """The triangular system of a chunk and its inverse.

    With ``A = tril(beta k k^T, -1)`` under decays, tokens write
    ``(1 + A)^-1 (beta v - beta k S)``, where ``S`` is the state before the chunk. That
    is ``beta v - (1 + A)^-1 (A beta v + beta k S)``, where the inverse is exact.
    """

    inverse: Callable[[Real], Real] = _solved
    of_erased: bool = False
    with_diagonal: bool = False

    def written(self, x: _Tokens, state: Real) -> Real:
        """Return what tokens write, under the state before their chunk."""
        system = np.tril(x.scores(x.beta * x.key), self.with_diagonal - 1)
        inverse, values = self.inverse(system), x.beta * x.value
        erased = (x.beta * x.key * x.since) @ state
        if self.of_erased:
            return np.asarray(values - inverse @ (system @ values + erased))
        return np.asarray(inverse @ (values - erased))


def _series(terms: int, system: Real) -> Real:
    """Return the first terms of the series of an inverse."""
    power = total = np.broadcast_to(np.eye(system.shape[-1]), system.shape)
    for _ in range(terms - 1):
        power = -power @ system
        total = total + power
    return total


def _in_blocks(size: int, system: Real) -> Real:
    """Return the inverse of blocks along the diagonal alone."""
    block = np.arange(system.shape[-1]) // size
    return _solved(np.where(block[:, None] == block, system, 0))


def _without_term(size: int, term: tuple[int, int, int], system: Real) -> Real:
    """Return an inverse by blocks that lacks one term of a sum.

    Blocks of the inverse ``X`` of ``1 + A`` below its diagonal are
    ``X_ij = -X_ii sum over k of A_ik X_kj``, ``j <= k < i``.
    """
    length = system.shape[-1]
    spans = [slice(first, first + size) for first in range(0, length, size)]
    inverse = _in_blocks(size, system)
    for j, i in combinations(range(len(spans)), 2):
        whole = slice(j * size, i * size)
        total = system[..., spans[i], whole] @ inverse[..., whole, spans[j]]
        if term[:2] == (i, j):
            k = spans[term[2]]
            total -= system[..., spans[i], k] @ inverse[..., k, spans[j]]
        inverse[..., spans[i], spans[j]] = -inverse[..., spans[i], spans[i]] @ total
    return inverse


def _but_the_last(chunk: int, system: Real) -> Real:
    """Return an inverse whose last row, that of a whole chunk, is not substituted."""
    inverse = _solved(system)
    if system.shape[-1] == chunk:
        inverse[..., -1, :-1] = 0
    return inverse


def _rules(chunk: int) -> Iterator[tuple[str, _Rule]]:
    """Yield rules of chunks of a size with one term changed, and their words.

    What is wrong by a factor in a term, or left out of one, shows in `erase_views`.
    """
    yield "a triangular system with its diagonal", _Rule(with_diagonal=True)
    erased = {"no inverse": partial(_series, 1)}
    for size in (8, 16, 32):
        words = f"an inverse of blocks of {size} that are not coupled"
        erased[words] = partial(_in_blocks, size)
    erased["an inverse without its last row"] = partial(_but_the_last, chunk)
    series = {
        f"{terms} terms of the series of the inverse": partial(_series, terms)
        for terms in (2, 3, 4, 8)
    }
    for blocks in (2, 4):
        size = chunk // blocks
        for j, i in combinations(range(blocks), 2):
            for k in range(j, i):
                words = f"an inverse by blocks of {size} whose block ({i}, {j})"
                inverse = partial(_without_term, size, (i, j, k))
                yield f"{words} lacks the term of block {k}", _Rule(inverse)
    for words, inverse in series.items():
        yield words, _Rule(inverse)
    for words, inverse in {**series, **erased}.items():
        yield f"{words}, of what is erased", _Rule(inverse, of_erased=True)


def other_chunk(target: Target, scope: Scope) -> Factor | None:
    """Return the term of a chunk that a target has otherwise.

    Parameters
    ----------
    target : Target
        Loaded; it is called twice.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Factor or None
        None if no change of one term gives its outputs.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    if scope.operator.name not in OPERATORS:
        return None
    seen: list[Seen] = []
    for seed in SEEDS:
        problem = calm_problem(scope, SIZES, np.random.default_rng(seed))
        output = target.call(Call(problem.inputs)).output
        if output is None or output.shape != problem.solve().output.shape:
            return None
        seen.append(Seen(problem, 0, in_float64(output)))
    for chunk in CHUNKS:
        for words, rule in _rules(chunk):
            if fits(partial(_output, rule, chunk), seen):
                text = f"{words}, in chunks of {chunk}"
                return by_rule("replaced", text, untold, COST, chunk=chunk)
    return None


def _output(rule: _Rule, chunk: int, seen: Seen) -> Real:
    """Return the output of a call, chunk by chunk, by a rule."""
    every, scale = _tokens(seen.problem), seen.problem.oracle_call.scale
    state = np.zeros((1, 1, every.key.shape[-1], every.value.shape[-1]))
    outputs = []
    for first in range(0, seen.problem.length, chunk):
        span = slice(first, first + chunk)
        x = _Tokens(*(y[..., span, :] for y in vars(every).values()))
        written = rule.written(x, state)
        outputs.append((x.query * x.since) @ state + x.scores(x.query) @ written)
        state = x.since[..., -1:, :].swapaxes(-1, -2) * state
        state = state + (x.key * x.left).swapaxes(-1, -2) @ written
    return np.asarray(scale * np.concatenate(outputs, axis=-2))


def _tokens(problem: Problem) -> _Tokens:
    """Return the inputs of a call, a rate and a decay for each head of values."""
    known = problem.oracle_call.meant
    query, key, value = (np.asarray(known[name]) for name in ("query", "key", "value"))
    groups = value.shape[1] // key.shape[1]
    query, key = (np.repeat(x, groups, axis=1) for x in (query, key))
    rate, decay = known.get("beta"), known.get("log_decay")
    beta = np.ones(value.shape[:3]) if rate is None else rate
    log_decay = np.zeros(value.shape[:3]) if decay is None else decay
    if log_decay.ndim == beta.ndim:
        log_decay = log_decay[..., None]
    return _Tokens(query, key, value, beta[..., None], log_decay)
