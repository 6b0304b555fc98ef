"""Chunkwise delta rules with one term changed, compared with what came back.

A chunk of a delta rule is a triangular system: what its rows write depends on what
those before them have written. A weight is a sum over ways through the chunk, so that
no product tells which term of the system is wrong; and an input that is replaced in all
terms is another fault than one that is in one of them.

The rows are those of the oracle's recurrence, so that the system is one for all
operators that erase: ``R = f S``, ``u = v - a^T R``, ``S = R + w u^T``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from linkern.testing.diagnosis.alternatives.programs import parts_of
from linkern.testing.diagnosis.alternatives.states_read import Seen, fits
from linkern.testing.diagnosis.factors.factor import Factor, by_rule, untold
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["Chunked", "Rule", "in_chunks", "other_chunk", "predicted", "rules"]

# Batch, heads, length, key and value dimension: tokens of two chunks of any usual size,
# and a tail.
SIZES = (1, 2, 140, 12, 5)
SEEDS = (1, 2)
# Of which late terms of a series are hardly any, and of which they are large.
KINDS = ("mild", "parallel")
# Parts of the recurrence that rows are made of.
ROLES = ("query", "key", "value", "log_decay", "erase")
# Decays that are left out of a read, by their words.
LEFT_OUT: dict[str, Callable[[Real, Real], Real]] = {
    "without decays": lambda sums, _: 0 * sums,
    "without the decay of the row": lambda sums, own: sums - own,
}
# Bits of the words.
COST = 16.0


@dataclass
class _Rows:
    """Rows of a chunk, with axes ``(B, H, R, .)``; decays are sums of logarithms.

    With `early`, a row erases what was there before its decay; if `transposed`, queries
    contract the values of the memory.
    """

    early: bool
    transposed: bool
    query: Real
    key: Real
    value: Real
    log_decay: Real
    erase: Real

    @cached_property
    def sums(self) -> Real:
        """The sum of log-decays from the start of a chunk to each row, and its own."""
        return np.cumsum(self.log_decay, -2)

    @cached_property
    def erased_from(self) -> Real:
        """The sums of what the erase of each row reads."""
        return self.sums - self.log_decay if self.early else self.sums

    @cached_property
    def erases(self) -> Index:
        """The rows that erase."""
        return np.flatnonzero(self.erase.any((0, 1, 3)))

    def products(self, rows: Real, sums: Real) -> Real:
        """Return products of rows and the keys of rows up to them, under decays."""
        apart = np.minimum(sums[..., :, None, :] - self.sums[..., None, :, :], 0)
        products = rows[..., :, None, :] * np.exp(apart) * self.key[..., None, :, :]
        return np.asarray(np.tril(products.sum(-1)))

    @cached_property
    def system(self) -> Real:
        """Products of what each row erases along and the keys up to it."""
        return self.products(self.erase, self.erased_from)

    @cached_property
    def scores(self) -> Real:
        """Products of the query of each row and the keys up to it."""
        return self.products(self.query, self.sums)

    def output(self, state: Real, written: Real) -> Real:
        """Return what rows read: the memory before the chunk, and what is written."""
        since = np.exp(self.sums)
        if not self.transposed:
            return np.asarray((self.query * since) @ state + self.scores @ written)
        apart = np.minimum(self.sums[..., :, None, :] - self.sums[..., None, :, :], 0)
        read = np.tril(self.query @ written.swapaxes(-1, -2))
        within = (read[..., None] * np.exp(apart) * self.key[..., None, :, :]).sum(-2)
        return np.asarray(since * (self.query @ state.swapaxes(-1, -2)) + within)

    def memory(self, state: Real, written: Real) -> Real:
        """Return the memory after the chunk."""
        last = self.sums[..., -1:, :]
        left = self.key * np.exp(last - self.sums)
        decayed = np.exp(last).swapaxes(-1, -2) * state
        return np.asarray(decayed + left.swapaxes(-1, -2) @ written)


def _solved(system: Real) -> Real:
    return np.asarray(np.linalg.inv(np.eye(system.shape[-1]) + system), np.float64)


@dataclass(frozen=True)
class Rule:
    """The triangular system of a chunk and its inverse.

    With ``A = tril(a w^T, -1)`` under decays, rows write ``(1 + A)^-1 (v - a S)``,
    where ``S`` is the memory before the chunk. That is ``v - (1 + A)^-1 (A v + a S)``,
    where the inverse is exact. Rows that erase nothing write ``v``.
    """

    inverse: Callable[[Real], Real] = _solved
    of_erased: bool = False
    with_diagonal: bool = False
    # Decays that are left out in the chunk, and where rows erase the memory before it.
    within: str = ""
    before: str = ""

    def written(self, x: _Rows, state: Real) -> Real:
        """Return what rows write, under the memory before their chunk."""
        there, system = x.erases, x.system
        if self.within:
            sums = LEFT_OUT[self.within](x.erased_from, x.log_decay)
            system = x.products(x.erase, sums)
        sums = x.erased_from
        if self.before:
            sums = LEFT_OUT[self.before](sums, x.log_decay)
        system = np.tril(system, self.with_diagonal - 1)[..., there, :]
        erased = ((x.erase * np.exp(sums)) @ state)[..., there, :]
        inverse, written = self.inverse(system[..., there]), x.value.copy()
        if not self.of_erased:
            written[..., there, :] = 0
        erased = erased + system @ written
        rest = x.value[..., there, :] if not self.of_erased else 0
        written[..., there, :] += inverse @ (rest - erased)
        return np.asarray(written)


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


def _but_the_last(rows: int, system: Real) -> Real:
    """Return an inverse whose last row, that of a whole chunk, is not substituted."""
    inverse = _solved(system)
    if system.shape[-1] == rows:
        inverse[..., -1, :-1] = 0
    return inverse


def rules(rows: int) -> Iterator[tuple[str, Rule]]:
    """Yield rules of chunks of so many rows with one term changed, and their words.

    What is wrong by a factor in a term, or left out of one, shows in `erase_views`,
    where keys have one channel; the decays are here for operators of two rows a token.
    """
    yield "a triangular system with its diagonal", Rule(with_diagonal=True)
    for words in LEFT_OUT:
        yield f"a triangular system {words}", Rule(within=words)
        yield f"an erase of the memory before the chunk {words}", Rule(before=words)
    erased = {"no inverse": partial(_series, 1)}
    for size in (8, 16, 32):
        words = f"an inverse of blocks of {size} that are not coupled"
        erased[words] = partial(_in_blocks, size)
    erased["an inverse without its last row"] = partial(_but_the_last, rows)
    series = {
        f"{terms} terms of the series of the inverse": partial(_series, terms)
        for terms in (2, 3, 4, 8)
    }
    for blocks in (2, 4):
        size = rows // blocks
        for j, i in combinations(range(blocks), 2):
            for k in range(j, i):
                words = f"an inverse by blocks of {size} whose block ({i}, {j})"
                inverse = partial(_without_term, size, (i, j, k))
                yield f"{words} lacks the term of block {k}", Rule(inverse)
    for words, inverse in series.items():
        yield words, Rule(inverse)
    for words, inverse in {**series, **erased}.items():
        yield f"{words}, of what is erased", Rule(inverse, of_erased=True)


@dataclass(frozen=True)
class Chunked(Seen):
    """Outputs of a call, the rows of its chunks, and how many there are of a token."""

    chunks: tuple[_Rows, ...]
    rows_per_token: int


def in_chunks(chunk: int, seen: Seen) -> Chunked:
    """Return what was seen of a call, with its rows in chunks of so many tokens."""
    operator, parts = seen.problem.scope.operator, parts_of(seen.problem.oracle_call)
    shape = parts["value"][0].shape[:-1]
    rows = [
        np.broadcast_to(parts[name][0].value, (*shape, parts[name][0].shape[-1]))
        for name in ROLES
    ]
    each = shape[-1] // seen.problem.length
    chunks = tuple(
        _Rows(
            operator.early_erase,
            operator.erase_along == "value",
            *(x[..., first : first + chunk * each, :] for x in rows),
        )
        for first in range(0, shape[-1], chunk * each)
    )
    return Chunked(seen.problem, seen.first, seen.measured, chunks, each)


def predicted(rule: Rule, seen: Chunked) -> Real:
    """Return the output of a call, chunk by chunk, by a rule; no state is before it."""
    first, outputs = seen.chunks[0], []
    state = np.zeros((1, 1, first.key.shape[-1], first.value.shape[-1]))
    for x in seen.chunks:
        written = rule.written(x, state)
        outputs.append(x.output(state, written))
        state = x.memory(state, written)
    output, each = np.concatenate(outputs, axis=-2), seen.rows_per_token
    return output[..., each - 1 :: each, :]  # A token is read in its last row.


def other_chunk(target: Target, scope: Scope) -> Factor | None:
    """Return the term of a chunk that a target has otherwise.

    Parameters
    ----------
    target : Target
        Loaded; it is called four times at most.
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
    if not scope.operator.erases:
        return None
    return next(filter(None, (_of_kind(target, scope, x) for x in KINDS)), None)


def _of_kind(target: Target, scope: Scope, kind: str) -> Factor | None:
    """Return the term that a target has otherwise, by inputs of one kind."""
    seen: list[Seen] = []
    for seed in SEEDS:
        rng, shape = np.random.default_rng(seed), nearest_shape(scope, SIZES)
        problem = real_problem(scope, shape, kind, "normal", rng)
        if "follow" in parts_of(problem.oracle_call):
            return None  # Rows of a pair of memories are no such system.
        output = target.call(Call(problem.inputs)).output
        if output is None or output.shape != problem.solve().output.shape:
            return None
        seen.append(Seen(problem, 0, in_float64(output)))
    for chunk in CHUNKS:
        chunked = [in_chunks(chunk, one) for one in seen]
        for words, rule in rules(len(chunked[0].chunks[0].erases)):
            if fits(partial(predicted, rule), chunked):
                text = f"{words}, in chunks of {chunk}"
                return by_rule("replaced", text, untold, COST, chunk=chunk)
    return None
