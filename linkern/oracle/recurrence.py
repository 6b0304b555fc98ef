r"""The recurrence of all operators, row by row, and its adjoint.

A row decays the memory, erases along a key, writes, and is read:

    R_t = f_t S_{t-1},         u_t = v_t - a_t^T R_t,
    S_t = R_t + w_t u_t^T,     o_t = q_t^T S_t

with ``f_t = exp(log_decay_t)`` per channel. With `early_erase` the erase reads
``S_{t-1}`` instead of ``R_t``; with `transpose_state` the read is ``o_t = S_t q_t``. A
read before the update and a micro-step are rows of their own: zeros for ``w``, ``a``,
``q`` and ones for ``f`` do nothing.

A pair of memories is the two halves of the channels. After its write, a row lets the
first half follow the second by a share, ``S_t += c_t M_t``; in the adjoint, it is the
second that follows.

The adjoint ``D_t = dL/dS_t`` obeys ``D <- D + q_t do_t^T``, ``du_t = w_t^T D_t``,
``D <- f_t (D_t - a_t du_t^T)``: rows of the same kind, from the last to the first, in
which writes are reads and erases are writes. So there is one loop.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Terms", "Trace", "reversed_terms", "run"]

Real = NDArray[np.float64]

# Of memories held at once, to be read together: few enough to stay in a cache.
_ENTRIES = 2**13


@dataclass(frozen=True)
class Terms:
    """The arrays of the recurrence; leading axes are equal in all of them.

    Parameters
    ----------
    query : array (..., R, K), or (..., R, V) if `transpose_state`
        Queries.
    key, value : array (..., R, K), (..., R, V)
        What is written: ``w`` and ``v``.
    factor : array (..., R, K) or (..., R, 1)
        Decay factors of the memory.
    erase : array (..., R, K) or None
        ``a``, or None for rows that never erase.
    early_erase, transpose_state : bool
        Whether the erase reads the memory before its decay; whether the query contracts
        the value axis of the memory.
    follow : array (..., R, 1) or None
        ``c``, for a pair of memories.
    upwards : bool
        Whether it is the first half that follows; else the second does.
    """

    query: Real
    key: Real
    value: Real
    factor: Real
    erase: Real | None = None
    early_erase: bool = False
    transpose_state: bool = False
    follow: Real | None = None
    upwards: bool = True

    @property
    def length(self) -> int:
        """The number of rows."""
        return int(self.key.shape[-2])

    def absolute(self) -> "Terms":
        """Return the terms over absolute values."""
        return replace(
            self,
            query=abs(self.query),
            key=abs(self.key),
            value=abs(self.value),
            erase=None if self.erase is None else abs(self.erase),
            follow=None if self.follow is None else abs(self.follow),
        )

    def followed(self, memory: Real, row: int) -> Real:
        """Return the memory after one half has followed the other, in its place."""
        if self.follow is not None:
            half = memory.shape[-2] // 2
            halves = memory[..., :half, :], memory[..., half:, :]
            follower, leader = halves if self.upwards else halves[::-1]
            follower += self.follow[..., row, :, None] * leader
        return memory


@dataclass(frozen=True)
class Trace:
    """The results of a run.

    Parameters
    ----------
    reads : array (..., R, V), or (..., R, K) if the state is transposed
        What was read.
    updates : array (..., R, V)
        ``u``: what was written, the erased taken off.
    erased : array (..., R, V) or None
        ``a_t^T R_t``, for rows that erase.
    last : array (..., K, V)
        The memory after the last row.
    states : array (..., R, K, V) or None
        The memory after every row, where it was asked for.
    """

    reads: Real
    updates: Real
    erased: Real | None
    last: Real
    states: Real | None


def run(
    terms: Terms,
    state: Real,
    *,
    keep: bool = False,
    erasing: bool = True,
    reading: bool = True,
    peak: Real | None = None,
) -> Trace:
    """Run through the rows.

    Parameters
    ----------
    terms : Terms
        The arrays of the rows.
    state : array (..., K, V)
        The memory before.
    keep : bool
        Whether to keep the memory after every row.
    erasing : bool
        Whether updates are ``v - a^T R``; if not, what an erase would read is noted,
        and the values are written as they are: the gauge of Higham's analysis.
    reading : bool
        Whether what is read is wanted; if not, it is zeros.
    peak : array (..., R, K, V), optional
        States to be joined by their absolute value: the memory becomes the largest
        magnitude of any of them, decayed to here, and nothing is written.
    """
    single = terms.erase is None and terms.follow is None and peak is None
    if single and (terms.factor == 1).all():
        return _sums(terms, state, keep=keep, reading=reading)
    # Reads by zeros are zeros; but of a memory that has overflowed they are not.
    for everywhere in (False, True):
        ran = _run(
            terms,
            state,
            keep=keep,
            erasing=erasing,
            reading=reading,
            peak=peak,
            everywhere=everywhere,
        )
        if np.isfinite(ran.last).all():
            break
    return ran


def _sums(terms: Terms, state: Real, *, keep: bool, reading: bool) -> Trace:
    """Run through rows that only add: running sums, one token after the other."""
    memory = np.array(state, dtype=np.float64)
    queries, keys, values = (
        np.moveaxis(x, -2, 0) for x in (terms.query, terms.key, terms.value)
    )
    size = state.shape[-2 if terms.transpose_state else -1]
    reads = np.zeros((terms.length, *state.shape[:-2], size))
    block = max(1, 8 * _ENTRIES // max(1, memory.size))
    block = terms.length if keep else min(block, terms.length)
    room = np.empty((block, *memory.shape))
    for first in range(0, terms.length, max(block, 1)):
        span = slice(first, min(first + block, terms.length))
        after = room[: span.stop - first]
        np.multiply(keys[span, ..., :, None], values[span, ..., None, :], out=after)
        after[0] += memory
        for before, now in pairwise(after):
            np.add(before, now, out=now)
        if reading:
            reads[span] = _all_read(terms, queries[span], after)
        memory = after[-1].copy()
    states = np.moveaxis(room, 0, -3) if keep else None
    return Trace(np.moveaxis(reads, 0, -2), terms.value, None, memory, states)


def _run(
    terms: Terms,
    state: Real,
    *,
    keep: bool,
    erasing: bool,
    reading: bool,
    peak: Real | None,
    everywhere: bool,
) -> Trace:
    """Run through the rows; those of zeros are read only if `everywhere`."""
    lead = (*state.shape[:-2], terms.length)
    memory = np.array(state, dtype=np.float64)
    updates = np.empty((*lead, state.shape[-1]))
    updates[...] = terms.value
    erased = None if terms.erase is None else np.zeros_like(updates)
    reads = np.zeros((*lead, state.shape[-2 if terms.transpose_state else -1]))
    states = np.empty((*lead, *state.shape[-2:])) if keep else None
    decays = _anywhere(terms.factor != 1)
    wanted = np.flatnonzero(_anywhere((terms.query != 0) | everywhere))
    erases = [] if terms.erase is None else _anywhere((terms.erase != 0) | everywhere)
    takes_off = erasing and any(erases)
    block = max(1, terms.length if keep else _ENTRIES // max(1, memory.size))
    for first in range(0, terms.length, block):
        span = slice(first, min(first + block, terms.length))
        after = _room(states, span, memory)
        if peak is not None:
            np.abs(peak[..., span, :, :], out=after)
        elif not takes_off:
            keys = terms.key[..., span, :, None]
            np.multiply(keys, terms.value[..., span, None, :], out=after)
        for t in range(span.start, span.stop):
            before, now = memory, after[..., t - first, :, :]
            if decays[t]:
                memory = terms.factor[..., t, :, None] * memory
            if erased is not None and terms.erase is not None and erases[t]:
                source = before if terms.early_erase else memory
                erased[..., t, :] = _read(terms.erase[..., t, :], source)
                if erasing:
                    updates[..., t, :] -= erased[..., t, :]
            if peak is not None:
                if terms.follow is not None:
                    memory = terms.followed(memory.copy(), t)
                np.maximum(memory, now, out=now)
                memory = now
                continue
            if takes_off:
                update = updates[..., t, None, :]
                np.multiply(terms.key[..., t, :, None], update, out=now)
            now += memory
            memory = terms.followed(now, t)
        if reading:
            some = wanted[(wanted >= first) & (wanted < span.stop)]
            query, memories = terms.query.take(some, -2), after.take(some - first, -3)
            reads[..., some, :] = _all_read(terms, query, memories)
    return Trace(reads, updates, erased, memory.copy(), states)


def _room(states: Real | None, span: slice, memory: Real) -> Real:
    """Return room for the memories after some rows, if only until they are read."""
    if states is not None:
        return states[..., span, :, :]
    *lead, keys, values = memory.shape
    return np.empty((*lead, span.stop - span.start, keys, values))


def _all_read(terms: Terms, query: Real, memories: Real) -> Real:
    """Return the read of each query from the memory of its row."""
    if terms.transpose_state:
        return np.asarray((memories @ query[..., None])[..., 0])
    return _read(query, memories)


def _anywhere(of_rows: NDArray[np.bool_]) -> list[bool]:
    """Return one flag for each row: True if any head and channel has it."""
    others = tuple(n for n in range(of_rows.ndim) if n != of_rows.ndim - 2)
    return [bool(x) for x in np.asarray(of_rows.any(axis=others))]


def _read(key: Real, memory: Real) -> Real:
    return np.asarray((key[..., None, :] @ memory)[..., 0, :])


def reversed_terms(terms: Terms, cotangent: Real) -> Terms:
    """Return the terms of the adjoint for a cotangent of the reads.

    Two for each row that can erase: the first writes what was read, and reads with
    ``w``; the second takes off what was erased. Without erases the second is absent.
    """
    key, value = terms.query, cotangent
    if terms.transpose_state:
        key, value = value, key
    ones = np.ones_like(terms.factor[..., :1, :])
    later = np.concatenate([terms.factor[..., 1:, :], ones], axis=-2)
    if terms.erase is None:
        return Terms(
            query=terms.key[..., ::-1, :],
            key=key[..., ::-1, :],
            value=value[..., ::-1, :],
            factor=later[..., ::-1, :],
        )
    first, second = (later, np.ones_like(later))
    if terms.early_erase:
        first, second = second, terms.factor
    nothing = np.zeros_like
    return Terms(
        query=_interleaved(terms.key, nothing(terms.key)),
        key=_interleaved(key, terms.erase),
        value=_interleaved(value, nothing(value)),
        factor=_interleaved(first, second),
        erase=_interleaved(nothing(terms.key), terms.key),
        early_erase=terms.early_erase,
        follow=None
        if terms.follow is None
        else _interleaved(terms.follow, nothing(terms.follow)),
        upwards=not terms.upwards,
    )


def _interleaved(first: Real, second: Real) -> Real:
    """Return the rows of both from the last to the first, in pairs."""
    pairs = np.stack([first[..., ::-1, :], second[..., ::-1, :]], axis=-2)
    return pairs.reshape(*first.shape[:-2], -1, first.shape[-1])
