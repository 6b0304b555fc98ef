r"""The recurrence of the family, row by row, and the same backwards.

A row decays the memory, erases along a key, writes, and is read:

    R_t = f_t S_{t-1},         u_t = v_t - a_t^T R_t,
    S_t = R_t + w_t u_t^T,     o_t = q_t^T S_t

with ``f_t = exp(log_decay_t)`` per channel. An *undecayed* erase reads ``S_{t-1}``
instead of ``R_t``; a *transposed* read is ``o_t = S_t q_t``. What an operator does
before its update, or in several steps, are rows of their own: zeros for ``w``, ``a``,
``q`` and ones for ``f`` do nothing.

The adjoint ``D_t = dL/dS_t`` obeys ``D <- D + q_t do_t^T``, ``du_t = w_t^T D_t``,
``D <- f_t (D_t - a_t du_t^T)``: rows of the same kind, from the last to the first, in
which writes are reads and erases are writes. So there is one loop.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows", "Trace", "reversed_rows", "run"]

Real = NDArray[np.float64]

# Of memories held at once, to be read together: few enough to stay in a cache.
_ENTRIES = 2**13


@dataclass(frozen=True)
class Rows:
    """What every row does; leading axes are equal in all arrays.

    Parameters
    ----------
    query : array (..., R, K), or (..., R, V) if `transposed`
        What reads.
    write, value : array (..., R, K), (..., R, V)
        What is written: ``w`` and ``v``.
    factor : array (..., R, K) or (..., R, 1)
        By what the memory is multiplied first.
    erase : array (..., R, K) or None
        ``a``, or None for rows that never erase.
    undecayed, transposed : bool
        What the erase reads; what the query contracts.
    """

    query: Real
    write: Real
    value: Real
    factor: Real
    erase: Real | None = None
    undecayed: bool = False
    transposed: bool = False

    @property
    def length(self) -> int:
        """The number of rows."""
        return int(self.write.shape[-2])

    def absolute(self) -> "Rows":
        """Return the rows over absolute values."""
        return replace(
            self,
            query=abs(self.query),
            write=abs(self.write),
            value=abs(self.value),
            erase=None if self.erase is None else abs(self.erase),
        )


@dataclass(frozen=True)
class Trace:
    """What a run leaves behind.

    Parameters
    ----------
    reads : array (..., R, V), or (..., R, K) if transposed
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
    rows: Rows,
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
    rows : Rows
        What to do.
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
    if rows.erase is None and peak is None and (rows.factor == 1).all():
        return _sums(rows, state, keep=keep, reading=reading)
    # Reads by zeros are zeros; but of a memory that has overflowed they are not.
    for everywhere in (False, True):
        ran = _run(
            rows,
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


def _sums(rows: Rows, state: Real, *, keep: bool, reading: bool) -> Trace:
    """Run through rows that only add: running sums, one token after the other."""
    memory = np.array(state, dtype=np.float64)
    queries, writes, values = (
        np.moveaxis(x, -2, 0) for x in (rows.query, rows.write, rows.value)
    )
    size = state.shape[-2 if rows.transposed else -1]
    reads = np.zeros((rows.length, *state.shape[:-2], size))
    block = max(1, 8 * _ENTRIES // max(1, memory.size))
    block = rows.length if keep else min(block, rows.length)
    room = np.empty((block, *memory.shape))
    for first in range(0, rows.length, max(block, 1)):
        span = slice(first, min(first + block, rows.length))
        after = room[: span.stop - first]
        np.multiply(writes[span, ..., :, None], values[span, ..., None, :], out=after)
        after[0] += memory
        for before, now in pairwise(after):
            np.add(before, now, out=now)
        if reading:
            reads[span] = _all_read(queries[span], after, transposed=rows.transposed)
        memory = after[-1].copy()
    states = np.moveaxis(room, 0, -3) if keep else None
    return Trace(np.moveaxis(reads, 0, -2), rows.value, None, memory, states)


def _run(
    rows: Rows,
    state: Real,
    *,
    keep: bool,
    erasing: bool,
    reading: bool,
    peak: Real | None,
    everywhere: bool,
) -> Trace:
    """Run through the rows; those of zeros are read only if `everywhere`."""
    lead = (*state.shape[:-2], rows.length)
    memory = np.array(state, dtype=np.float64)
    updates = np.empty((*lead, state.shape[-1]))
    updates[...] = rows.value
    erased = None if rows.erase is None else np.zeros_like(updates)
    reads = np.zeros((*lead, state.shape[-2 if rows.transposed else -1]))
    states = np.empty((*lead, *state.shape[-2:])) if keep else None
    decays = _anywhere(rows.factor != 1)
    wanted = np.flatnonzero(_anywhere((rows.query != 0) | everywhere))
    erases = [] if rows.erase is None else _anywhere((rows.erase != 0) | everywhere)
    takes_off = erasing and any(erases)
    block = max(1, rows.length if keep else _ENTRIES // max(1, memory.size))
    for first in range(0, rows.length, block):
        span = slice(first, min(first + block, rows.length))
        after = _room(states, span, memory)
        if peak is not None:
            np.abs(peak[..., span, :, :], out=after)
        elif not takes_off:
            writes = rows.write[..., span, :, None]
            np.multiply(writes, rows.value[..., span, None, :], out=after)
        for t in range(span.start, span.stop):
            before, now = memory, after[..., t - first, :, :]
            if decays[t]:
                memory = rows.factor[..., t, :, None] * memory
            if erased is not None and rows.erase is not None and erases[t]:
                source = before if rows.undecayed else memory
                erased[..., t, :] = _read(rows.erase[..., t, :], source)
                if erasing:
                    updates[..., t, :] -= erased[..., t, :]
            if peak is not None:
                np.maximum(memory, now, out=now)
                memory = now
                continue
            if takes_off:
                update = updates[..., t, None, :]
                np.multiply(rows.write[..., t, :, None], update, out=now)
            now += memory
            memory = now
        if reading:
            some = wanted[(wanted >= first) & (wanted < span.stop)]
            query, memories = rows.query.take(some, -2), after.take(some - first, -3)
            reads[..., some, :] = _all_read(query, memories, transposed=rows.transposed)
    return Trace(reads, updates, erased, memory.copy(), states)


def _room(states: Real | None, span: slice, memory: Real) -> Real:
    """Return room for the memories after some rows, if only until they are read."""
    if states is not None:
        return states[..., span, :, :]
    *lead, keys, values = memory.shape
    return np.empty((*lead, span.stop - span.start, keys, values))


def _all_read(query: Real, memories: Real, *, transposed: bool) -> Real:
    """Return what rows read, each from the memory that it left."""
    if transposed:
        return np.asarray((memories @ query[..., None])[..., 0])
    return _read(query, memories)


def _anywhere(of_rows: NDArray[np.bool_]) -> list[bool]:
    """Return of which rows something is true, in any head and channel."""
    others = tuple(n for n in range(of_rows.ndim) if n != of_rows.ndim - 2)
    return [bool(x) for x in np.asarray(of_rows.any(axis=others))]


def _read(key: Real, memory: Real) -> Real:
    return np.asarray((key[..., None, :] @ memory)[..., 0, :])


def reversed_rows(rows: Rows, cotangent: Real) -> Rows:
    """Return the rows by which the adjoint runs, for a cotangent of the reads.

    Two for each row that can erase: the first writes what was read, and reads with
    ``w``; the second takes off what was erased. Without erases the second is absent.
    """
    write, value = rows.query, cotangent
    if rows.transposed:
        write, value = value, write
    ones = np.ones_like(rows.factor[..., :1, :])
    later = np.concatenate([rows.factor[..., 1:, :], ones], axis=-2)
    if rows.erase is None:
        return Rows(
            query=rows.write[..., ::-1, :],
            write=write[..., ::-1, :],
            value=value[..., ::-1, :],
            factor=later[..., ::-1, :],
        )
    first, second = (later, np.ones_like(later))
    if rows.undecayed:
        first, second = second, rows.factor
    nothing = np.zeros_like
    return Rows(
        query=_interleaved(rows.write, nothing(rows.write)),
        write=_interleaved(write, rows.erase),
        value=_interleaved(value, nothing(value)),
        factor=_interleaved(first, second),
        erase=_interleaved(nothing(rows.write), rows.write),
        undecayed=rows.undecayed,
    )


def _interleaved(first: Real, second: Real) -> Real:
    """Return the rows of both from the last to the first, in pairs."""
    pairs = np.stack([first[..., ::-1, :], second[..., ::-1, :]], axis=-2)
    return pairs.reshape(*first.shape[:-2], -1, first.shape[-1])
