r"""Bounds on the distance of any order of sums from the exact recurrence.

Notation of `linkern.oracle.recurrence`; ``G_ts`` is the product of the factors of rows
``s+1..t``. Substituting the memory away,

    L U = B,   L = I + N,   N_ts = a_t^T G_ts w_s  (s < t),
    B_t = v_t - a_t^T G_t0 S_0,
    o_t = q_t^T S_t,   S_t = G_t0 S_0 + sum_{s<=t} G_ts w_s u_s^T.

Tildes are the same over absolute values. ``e_t`` bounds the relative error of any term
``q G w u`` of row t: roundings of sums and products, and the error of a weight, which
kernels form from cumulative log-decays (`linkern.oracle.term_errors`). The terms of
the row itself, for which ``G = 1``, have the roundings alone.

**Without erases** ``L = I``, and a computed sum differs by at most ``e_t`` times the
same sum over absolute values. Errors that the inputs of the rows bring along inflate
the absolute values; the difference of the inflated and the plain sum is exact, not
first order.

**With erases.** Forward substitution, in any order of sums, through a memory or through
scores, leaves a residual

    |L U' - B| <= e (B~ + N~ |U'|).

Chunked kernels invert diagonal blocks: ``U_c' = X_c' (V_c - a_c G S_c')``, where
``S_c`` is the memory with which block c begins. With a right inverse (``|L_c X_c' - I|
<= e L~ |X_c'|``, forward substitution by columns) the residual grows by ``2 e L~ |X_c|
F_c``. Here ``F_t = |v_t| + max_c |a_t|^T G_tc |S_c|`` holds for every beginning c of a
block, and is computed by a run whose memory is the largest of the decayed magnitudes.
Diagonal blocks of ``L^-1`` are the inverses of diagonal blocks, so ``|X_c| F_c <= Y =
|L^-1| F``, and

    E = 3 e (Y + |a| G |S_0| + N~ Y)

bounds the residual in all of these. The response to a residual is linear and exact:
``|U' - U| <= |L^-1| E``, ``|o' - o| <= |A L^-1| E + e q~``, with ``A_ts = q_t^T G_ts
w_s``: the absolute value is taken after the product, where the erases have damped what
would grow like ``2^T`` before it. All of ``L^-1``, ``A L^-1`` and ``S_t L^-1`` come
from one run whose values are the identity.

That ``E`` used ``U`` where ``U'`` stands is repaired, not neglected: with ``K = 4 e
|L^-1| L~`` and ``x = |L^-1| E``, if ``2 K (K x) <= K x`` then ``Z = x + 2 K x`` obeys
``x + K Z <= Z``, so that ``|U' - U| <= Z`` by monotony, and ``E`` becomes ``E + 4 e L~
Z``. If not, nothing is proved, and the bound is infinite.

Keys that are off by a share of what they are (``off`` of `linkern.oracle.scan`) stand
once in every term ``q G w u`` and ``a G w u``, and so add that share to ``e``.

Not proved, and left to the room that worst cases leave: inverses that are merged from
inverses of sub-blocks, or found by rows, whose residual has one more factor ``|L|
|L^-1|``; and inverses by powers of ``N`` (Neumann, Newton-Schulz), whose intermediate
sums can be larger. Sources: N. Higham, "Accuracy and Stability of Numerical
Algorithms", 2nd ed., sections 3.1, 8.1, 14.2.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding
from linkern.oracle.recurrence import Terms, Trace, run

__all__ = ["Arithmetic", "Enclosed", "Radii", "enclosed"]

Real = NDArray[np.float64]

# The dense sensitivities of erases have this many columns at most.
_LONGEST = 2048


@dataclass(frozen=True)
class Radii:
    """Errors that the inputs of rows bring along, like their arrays; None for none."""

    query: Real | None = None
    key: Real | None = None
    value: Real | None = None
    log_decay: Real | None = None
    state: Real | None = None


@dataclass(frozen=True)
class Arithmetic:
    """The declared arithmetic with the relative errors of the terms of each row.

    Parameters
    ----------
    rounding : Rounding
        The declared arithmetic.
    error : array (..., R, 1)
        ``e_t``.
    within : array (..., R, 1)
        The same for terms that no decay has met: those of the row itself.
    channels : int
        The number of channels that a term is summed over, for underflow.
    """

    rounding: Rounding
    error: Real
    within: Real
    channels: int


@dataclass(frozen=True)
class Enclosed:
    """The results of rows as balls.

    Parameters
    ----------
    reads, updates, last : Ball
        As in `Trace`.
    states : Ball or None
        Where they were asked for.
    held : tuple of array or None
        ``Y`` and the gauge of the states made from it, where rows erase: how large
        what kernels hold in between can be.
    """

    reads: Ball
    updates: Ball
    last: Ball
    states: Ball | None
    held: tuple[Real, Real] | None = None


def enclosed(
    terms: Terms,
    state: Real,
    radii: Radii,
    arithmetic: Arithmetic,
    *,
    keep: bool = False,
) -> Enclosed:
    """Run rows, and bound what any kernel of the arithmetic makes of them."""
    if terms.erase is None:
        exact = run(terms, state, keep=keep)
        return _additive(terms, state, radii, arithmetic, exact)
    unproved = radii.key is not None or radii.log_decay is not None
    if unproved or terms.length > _LONGEST:
        return _unproved(run(terms, state, keep=keep))
    # The bound needs the states, whoever else does.
    exact = run(terms, state, keep=True)
    return _erasing(terms, state, radii, arithmetic, exact, keep=keep)


def _additive(
    terms: Terms, state: Real, radii: Radii, arithmetic: Arithmetic, exact: Trace
) -> Enclosed:
    keep = exact.states is not None
    plain = run(terms.absolute(), abs(state), keep=keep)
    wide_terms, wide_state = _inflated(terms, state, radii)
    inflated = wide_terms is not terms or wide_state is not state
    wide = run(wide_terms.absolute(), abs(wide_state), keep=keep) if inflated else plain
    underflow = _underflow(terms, state, arithmetic)
    own_key, own_value = wide_terms.absolute().key, wide_terms.absolute().value
    query = abs(wide_terms.query)
    if terms.transpose_state:
        of_row = own_key * (query * own_value).sum(axis=-1, keepdims=True)
    else:
        of_row = (query * own_key).sum(axis=-1, keepdims=True) * own_value
    reads = _grown(arithmetic, wide.reads, of_row, slice(None)) + underflow
    reads = reads + (wide.reads - plain.reads)
    end = wide.last - plain.last
    if terms.length:
        written = own_key[..., -1, :, None] * own_value[..., -1, None, :]
        end = end + _grown(arithmetic, wide.last, written, slice(-1, None))
        end = end + underflow[..., -1:, :]
    states = None
    if exact.states is not None and plain.states is not None:
        assert wide.states is not None
        written = own_key[..., :, :, None] * own_value[..., :, None, :]
        error = _grown(arithmetic, wide.states, written, np.s_[..., None])
        error = error + underflow[..., None] + (wide.states - plain.states)
        states = Ball(exact.states, error)
    return Enclosed(
        Ball(exact.reads, reads),
        Ball(exact.updates, radii.value),
        Ball(exact.last, end),
        states,
    )


def _grown(arithmetic: Arithmetic, gauge: Real, of_row: Real, span: Any) -> Real:
    """Return the rounding of a gauge, a part of which belongs to the row itself."""
    if span == np.s_[..., None]:
        e, within = arithmetic.error[span], arithmetic.within[span]
    else:
        e, within = arithmetic.error[..., span, :], arithmetic.within[..., span, :]
    return np.asarray(within * gauge + (e - within) * np.maximum(gauge - of_row, 0.0))


def _inflated(terms: Terms, state: Real, radii: Radii) -> tuple[Terms, Real]:
    """Return rows of the largest magnitudes that the radii admit."""
    changes: dict[str, Real] = {}
    for name in ("query", "key", "value"):
        radius = getattr(radii, name)
        if radius is not None:
            changes[name] = abs(getattr(terms, name)) + radius
    if radii.log_decay is not None:
        changes["factor"] = terms.factor * np.exp(radii.log_decay)
    if changes:
        terms = replace(terms, **changes)  # type: ignore[arg-type]
    if radii.state is not None:
        state = abs(state) + radii.state
    return terms, state


def _underflow(terms: Terms, state: Real, arithmetic: Arithmetic) -> Real:
    """Return what products that vanish cost at most, ``(..., R, 1)``."""
    largest = 1 + np.stack(
        [
            np.cumsum(abs(terms.key).max(axis=-1, initial=0.0), axis=-1),
            np.cumsum(abs(terms.value).max(axis=-1, initial=0.0), axis=-1),
        ]
    ).max(axis=0)
    query = 1 + abs(terms.query).sum(axis=-1)
    memory = 1 + abs(state).max(axis=(-2, -1), initial=0.0)
    count = arithmetic.channels + np.arange(1.0, terms.length + 1)
    tiny = arithmetic.rounding.tiny
    return np.asarray(tiny * count * query * (largest**2 + memory[..., None]))[
        ..., None
    ]


def _erasing(
    terms: Terms,
    state: Real,
    radii: Radii,
    arithmetic: Arithmetic,
    exact: Trace,
    *,
    keep: bool,
) -> Enclosed:
    e, absolute = arithmetic.error, terms.absolute()
    inverse, reads, last, states = _sensitivities(terms, state, keep=keep)
    held = run(
        absolute, abs(state), erasing=False, reading=False, peak=exact.states
    ).erased
    assert held is not None
    y = inverse @ (abs(terms.value) + held)
    moved = np.zeros_like(state) if radii.state is None else radii.state
    gauge = run(
        replace(absolute, value=y), abs(state) + moved, keep=keep, erasing=False
    )
    assert gauge.erased is not None
    within = arithmetic.within
    underflow = _underflow(replace(terms, value=y), state, arithmetic)
    residual = 3 * (within * y + e * gauge.erased) + underflow
    if radii.value is not None:
        residual = residual + radii.value
    drift = _drift(absolute, radii.state, gauge)
    assert drift.erased is not None
    residual = residual + drift.erased
    residual, updates = _self_consistent(absolute, inverse, residual, arithmetic)
    damped = reads @ residual
    if terms.transpose_state:
        damped = _transposed_response(terms, residual)
    read = damped + e * gauge.reads + drift.reads + underflow
    if radii.query is not None:
        query = abs(terms.query) + radii.query
        wide = run(
            replace(absolute, query=query, value=y), abs(state), erasing=False
        ).reads
        read = read + (1 + e) * (wide - gauge.reads)
    end = last @ residual + drift.last
    if terms.length:
        end = end + e[..., -1:, :] * gauge.last + underflow[..., -1:, :]
    return Enclosed(
        Ball(exact.reads, read),
        Ball(exact.updates, updates),
        Ball(exact.last, end),
        _bounded_states(exact, states, residual, arithmetic, gauge, drift, underflow),
        None if gauge.states is None else (y, gauge.states),
    )


def _drift(absolute: Terms, moved: Real | None, gauge: Trace) -> Trace:
    """Return what becomes of the error of the first memory, and of nothing else."""
    if moved is not None:
        silent = replace(absolute, value=np.zeros_like(absolute.value))
        return run(silent, moved, keep=gauge.states is not None, erasing=False)
    assert gauge.erased is not None
    return Trace(
        reads=np.zeros_like(gauge.reads),
        updates=np.zeros_like(gauge.updates),
        erased=np.zeros_like(gauge.erased),
        last=np.zeros_like(gauge.last),
        states=None if gauge.states is None else np.zeros_like(gauge.states),
    )


def _bounded_states(
    exact: Trace,
    states: Real | None,
    residual: Real,
    arithmetic: Arithmetic,
    gauge: Trace,
    drift: Trace,
    underflow: Real,
) -> Ball | None:
    if states is None:
        return None
    assert exact.states is not None
    assert gauge.states is not None
    assert drift.states is not None
    error = states @ residual[..., None, :, :] + drift.states
    error = error + arithmetic.error[..., None] * gauge.states + underflow[..., None]
    return Ball(exact.states, error)


def _sensitivities(
    terms: Terms, state: Real, *, keep: bool
) -> tuple[Real, Real, Real, Real | None]:
    """Return ``|L^-1|, |A L^-1|, |S_R L^-1|`` and ``|S_t L^-1|`` for every t."""
    lead, length = state.shape[:-2], terms.length
    identity = np.broadcast_to(np.eye(length), (*lead, length, length))
    nothing = np.zeros((*lead, state.shape[-2], length))
    query = np.zeros_like(terms.key) if terms.transpose_state else terms.query
    ran = run(
        replace(terms, value=identity, query=query, transpose_state=False),
        nothing,
        keep=keep,
        reading=not terms.transpose_state,
    )
    states = None if ran.states is None else abs(ran.states)
    return abs(ran.updates), abs(ran.reads), abs(ran.last), states


def _transposed_response(terms: Terms, residual: Real) -> Real:
    """Return ``sum_s |S_t L^-1|_ks (E_s . |q_t|)``, row by row."""
    lead, length = residual.shape[:-2], terms.length
    state = np.zeros((*lead, terms.key.shape[-1], length))
    identity = np.broadcast_to(np.eye(length), (*lead, length, length))
    nothing = np.zeros_like(terms.key)
    plain = replace(terms, value=identity, query=nothing, transpose_state=False)
    states = run(plain, state, keep=True, reading=False).states
    assert states is not None
    pairs = abs(terms.query) @ np.swapaxes(residual, -1, -2)
    return np.asarray((abs(states) @ pairs[..., None])[..., 0])


def _self_consistent(
    absolute: Terms, inverse: Real, residual: Real, arithmetic: Arithmetic
) -> tuple[Real, Real]:
    """Return the residual and the error of the updates, of computed updates."""
    lead, k = residual.shape[:-2], absolute.key.shape[-1]
    nothing = np.zeros((*lead, k, residual.shape[-1]))

    def moved(x: Real) -> Real:
        """Return ``4 e L~ x``."""
        terms = replace(absolute, value=x)
        erased = run(terms, nothing, erasing=False, reading=False).erased
        assert erased is not None
        return np.asarray(4 * (arithmetic.within * x + arithmetic.error * erased))

    x = inverse @ residual
    once = inverse @ moved(x)
    twice = inverse @ moved(once)
    proved = (2 * twice <= once * (1 + 2.0**-40)) & np.isfinite(once)
    everywhere = proved.all(axis=(-2, -1), keepdims=True)
    updates = np.where(everywhere, x + 2 * once, np.inf)
    grown = residual + moved(x + 2 * once)
    return np.where(everywhere, grown, np.inf), updates


def _unproved(exact: Trace) -> Enclosed:
    def ball(value: Real) -> Ball:
        return Ball(value, np.full_like(value, np.inf))

    states = None if exact.states is None else ball(exact.states)
    return Enclosed(ball(exact.reads), ball(exact.updates), ball(exact.last), states)
