r"""Mamba-3: a rotation of queries and keys that tokens drive, and trapezoidal writes.

S_t = a_t (S_{t-1} + d_t k_{t-1} v_{t-1}^T) + c_t k_t v_t^T,      o_t = scale q_t^T S_t
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import pi
from typing import NamedTuple, Unpack, cast

from linkern.array import concat, is_traced, mT, namespace, ones, reshape
from linkern.core.recurrence import Terms
from linkern.kernels.dispatch import backend_of
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    prepare_terms,
)
from linkern.operators.forms import Form
from linkern.operators.micro_steps import at_step
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["mamba3", "mamba3_mimo"]


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    angle: Array | None,
    dt: Array | None,
    log_decay: Array | None,
    trapezoid: Array | None,
    value_mix: Array | None = None,
    output_mix: Array | None = None,
) -> tuple[Array, State]:
    """Read what earlier tokens left as `simple_gla` does, and add the token itself.

    Before a token reads, the memory is ``a_t (S_{t-1} + d_t k_{t-1} v_{t-1}^T)``: both
    writes of the token before are one row, under the decay of this token. Where a token
    has several keys, each of them is a row.
    """
    assert state.normalizer is not None
    if value.shape[-2] == 0:
        return value, state
    xp = namespace(value)
    pairs, keys = 0 if angle is None else angle.shape[-1], key.shape[-1]
    apart = partial(_apart, rank=1 if value_mix is None else value_mix.shape[-2])
    carried = state.normalizer[..., None, :]
    step = ones((*value.shape[:-1], 1), like=value) if dt is None else dt
    turn = carried[..., :pairs]
    if angle is not None:
        steps = xp.tanh(angle) * (pi * step)
        turn, rows = _rotated(turn, steps, [apart(query), apart(key)])
        query, key = map(_side_by_side, rows)
    last_key = carried[..., pairs : pairs + keys]
    last_value = carried[..., pairs + keys :]
    now = step if trapezoid is None else trapezoid * step
    written = concat([xp.zeros_like(now[..., :1, :]), now[..., :-1, :]], axis=-2)
    if trapezoid is not None:
        written = written + (1 - trapezoid) * step
    if log_decay is not None:
        written = xp.exp(log_decay) * written
    before = _Writes(
        apart(written * _delayed(last_key, key)),
        _mixed(_delayed(last_value, value), value_mix),
    )
    itself = _Writes(apart(key), _mixed(value, value_mix))
    output, memory = _earlier(form, state.memory, apart(query), before, log_decay)
    output = output + _weighted(apart(query), itself, now[..., None])
    if output_mix is not None:
        output = output_mix[..., None, :, :] * output
    last = (..., slice(-1, None), slice(None))
    columns = apart(now[last] * key[last])[..., 0, :, :, None]
    memory = memory + _total(columns * itself.values[..., -1, :, None, :], axis=-3)
    turn = turn[last] - 2 * pi * xp.floor(turn[last] / (2 * pi))
    after = concat([turn, key[last], value[last]], axis=-1)[..., 0, :]
    return _total(output, axis=-2), State(memory, after)


class _Writes(NamedTuple):
    """The keys ``(..., T, R, N)`` of tokens, and what is written at each of them."""

    keys: Array
    values: Array


def _earlier(
    form: Form, memory: Array, query: Array, before: _Writes, log_decay: Array | None
) -> tuple[Array, Array]:
    """Run a row for each key of a token; all queries of a token see all its rows."""
    rank = query.shape[-2]
    read, key, value = (_one_by_one(x) for x in (query, *before))
    if log_decay is not None and rank > 1:
        log_decay = at_step(log_decay, rank, last=False)
    read, memory = form(memory, Terms(read, key, value, log_decay))
    if rank == 1:
        return read[..., None, :], memory
    output = reshape(read, before.values.shape)
    return output + _weighted(query, before, None), memory


def _weighted(query: Array, writes: _Writes, weight: Array | None) -> Array:
    """Return what queries read of keys of their own token.

    These are all of them, times a weight; without one, those that have a later row.
    """
    xp = namespace(query)
    scores = xp.vecdot(query[..., :, None, :], writes.keys[..., None, :, :])
    scores = mT(xp.tril(mT(scores), k=-1)) if weight is None else weight * scores
    return _total(scores[..., None] * writes.values[..., None, :, :], axis=-2)


def _apart(x: Array, rank: int) -> Array:
    """Return the vectors ``(..., T, R, N)`` that are side by side."""
    if rank == 1:
        return x[..., None, :]
    return reshape(x, (*x.shape[:-1], rank, x.shape[-1] // rank))


def _side_by_side(x: Array) -> Array:
    """Return the vectors of each token as one."""
    *lead, rank, size = x.shape
    return x[..., 0, :] if rank == 1 else reshape(x, (*lead, rank * size))


def _one_by_one(x: Array) -> Array:
    """Return the vectors of all tokens as rows."""
    *lead, length, rank, size = x.shape
    return x[..., 0, :] if rank == 1 else reshape(x, (*lead, length * rank, size))


def _total(x: Array, axis: int) -> Array:
    """Return the sum over ranks."""
    if x.shape[axis] == 1:
        return x[(..., 0, *(slice(None),) * (-axis - 1))]
    return cast(Array, namespace(x).sum(x, axis=axis))


def _mixed(value: Array, mix: Array | None) -> Array:
    """Return the values ``(..., T, R, V)`` of the keys of tokens."""
    rows = value[..., :, None, :]
    return rows if mix is None else mix[..., None, :, :] * rows


def _delayed(first: Array, x: Array) -> Array:
    """Return the row of the token before for each token."""
    return concat([first, x[..., :-1, :]], axis=-2)


def _rotated(
    turn: Array, steps: Array, rows: Sequence[Array]
) -> tuple[Array, list[Array]]:
    """Add the steps to the angles, and rotate rows ``(..., T, R, N)`` by them.

    Channels 0 and 1 are rotated by the first angle, 2 and 3 by the second, and so on.
    """
    backend = backend_of(steps)
    if backend is not None and backend.rotated and not is_traced(turn, steps, *rows):
        return backend.rotated(turn, steps, rows)
    xp = namespace(steps)
    turn = turn + xp.cumulative_sum(steps, axis=-2)
    cosine, sine = xp.cos(turn)[..., None, :], xp.sin(turn)[..., None, :]
    return turn, [_product(x, cosine, sine) for x in rows]


def _product(x: Array, cosine: Array, sine: Array) -> Array:
    """Return pairs of channels, rotated."""
    size = 2 * cosine.shape[-1]
    pairs = reshape(x[..., :size], (*x.shape[:-1], cosine.shape[-1], 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = (even * cosine - odd * sine, even * sine + odd * cosine)
    both = concat([part[..., None] for part in turned], axis=-1)
    flat = reshape(both, (*x.shape[:-1], size))
    return flat if size == x.shape[-1] else concat([flat, x[..., size:]], axis=-1)


def _prepare(
    definition: Definition, inputs: Inputs, _: Inputs, form: Form, scale: float | None
) -> Prepared:
    """Check that keys have equal sizes, and two channels for each angle."""
    ready = prepare_terms(definition, inputs, {}, form, scale)
    pairs, keys = ready.sizes.get("p", 0), ready.sizes["k"]
    rank = ready.sizes.get("r", 1)
    if keys % max(rank, 1) or not rank:
        msg = (
            f"`key` must have K channels that are R keys of equal size, R = {rank} as "
            f"in `value_mix`, got K = {keys}."
        )
        raise ValueError(msg)
    if 2 * pairs > keys // rank:
        several = f" and R = {rank}" if rank > 1 else ""
        msg = (
            f"`angle` must have one number for two channels of the keys, at most "
            f"{keys // rank // 2} for K = {keys}{several}, got {pairs}."
        )
        raise ValueError(msg)
    return replace(ready, sizes={**ready.sizes, "p": pairs, "r": rank})


_GATES = {"angle": "tp", "dt": "t", "log_decay": "t", "trapezoid": "t"}
MAMBA3 = Definition(
    "mamba3",
    {**QKV, **_GATES},
    _attend,
    normalizer=lambda n: (n["p"] + n["k"] + n["v"],),
    inverse_root_scale=False,
    affine=False,
    several_passes=True,
    prepare=_prepare,
)
MAMBA3_MIMO = replace(
    MAMBA3,
    name="mamba3_mimo",
    axes={**QKV, "value_mix": "rv", "output_mix": "rv", **_GATES},
    memory=lambda n: (n["k"] // n["r"], n["v"]),
    required=("query", "key", "value", "value_mix", "output_mix"),
)


@operator(MAMBA3)
def mamba3(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    angle: ArrayT | None,
    dt: ArrayT | None,
    log_decay: ArrayT | None = None,
    trapezoid: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""State space model of Mamba-3: rotations that tokens drive, trapezoidal writes.

    Parameters
    ----------
    query, key : array (..., T, K)
        ``C`` and ``B`` of Mamba, biases and norms included; float16, bfloat16, float32
        or float64.
    value : array (..., T, V)
        ``x``; same library, device and dtype as `query`.
    angle : array (..., T, P)
        What tokens add to the angles of the first ``2 P`` channels, in a step of 1:
        ``pi tanh(angle)`` for each two; ``P <= K / 2``. None for no rotation.
    dt : array (..., T)
        Steps, zero or positive; None for steps of 1.
    log_decay : array (..., T), optional
        ``A dt``, natural logarithms of the decays in ``[-inf, 0]``. Default: nothing is
        forgotten.
    trapezoid : array (..., T), optional
        Share of a step that the token itself writes, in ``[0, 1]``: the sigmoid of what
        kernels call ``trap``; the rest writes the token before. Default: 1, the Euler
        rule of Mamba-2.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., K, V)``, and as
        normalizer ``(..., P + K + V)`` the angles, the last rotated key and the last
        value, one after the other.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if a step is negative, a share is not in ``[0, 1]``, or
        there are more angles than pairs of channels.

    Notes
    -----
    .. math::

        \theta_t &= \theta_{t-1} + \pi \tanh(angle_t) \, \Delta_t \pmod{2 \pi}, \qquad
        q_t, k_t \to R(\theta_t) q_t, R(\theta_t) k_t \\
        S_t &= a_t S_{t-1} + (1 - \lambda_t) \Delta_t a_t \, k_{t-1} v_{t-1}^T
        + \lambda_t \Delta_t \, k_t v_t^T, \qquad o_t = scale \; q_t^T S_t

    with ``a = exp(log_decay)``, the share :math:`\lambda` and the step :math:`\Delta`.
    Channels ``2 i`` and ``2 i + 1`` are a pair. Without angles, with steps and shares
    of 1, it is `simple_gla`. Published states are the same four, the memory as ``(V,
    K)``. Outside are the skip ``D`` and the gate ``z``; `mamba3_mimo` has several
    writes and reads for each token.

    Source: arXiv 2603.15569, "Mamba-3: Improved Sequence Modeling using State Space
    Principles", 2026.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones, half = np.ones((3, 1)), np.full(3, 0.5)
    >>> linkern.mamba3(ones, ones, ones, None, None, None, half).output[:, 0]
    array([0.5, 1.5, 2.5])
    """


@operator(MAMBA3_MIMO)
def mamba3_mimo(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    value_mix: ArrayT,
    output_mix: ArrayT,
    angle: ArrayT | None,
    dt: ArrayT | None,
    log_decay: ArrayT | None = None,
    trapezoid: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Mamba-3 of several inputs and outputs (MIMO): R writes and R reads a token.

    Parameters
    ----------
    query, key : array (..., T, K)
        The R queries ``C`` and keys ``B`` of a token one after the other, ``K / R``
        channels each, biases and norms included.
    value : array (..., T, V)
        As in `mamba3`.
    value_mix, output_mix : array (..., R, V)
        Factors that make the R values of a token, and with which its R outputs are
        added: ``MIMO_V`` and ``MIMO_Out``.
    angle : array (..., T, P)
        As in `mamba3`, for the first ``2 P`` channels of each query and key; ``P <= K /
        (2 R)``.
    dt, log_decay, trapezoid : array (..., T), optional
        As in `mamba3`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., K / R, V)``, and as
        normalizer ``(..., P + K + V)`` the angles, the last rotated keys and the last
        value, one after the other.

    Raises
    ------
    TypeError, ValueError
        As `mamba3`; also if K is no multiple of R.

    Notes
    -----
    .. math::

        S_t &= a_t S_{t-1} + (1 - \lambda_t) \Delta_t a_t \sum_r k_{t-1,r}
        (m_r * v_{t-1})^T + \lambda_t \Delta_t \sum_r k_{t,r} (m_r * v_t)^T \\
        o_t &= scale \sum_r w_r * (S_t^T q_{t,r})

    with the rotation and the gates of `mamba3`, which all ranks share, ``m`` the
    `value_mix` and ``w`` the `output_mix`. For R = 1 and mixes of ones it is `mamba3`.
    Outside are the skip ``D``, and the gate ``z`` with ``MIMO_Z``: a gated output needs
    the R outputs one by one, each of a call with the other rows of `output_mix` zero.
    Published kernels that rotate channel ``i`` with ``i + K / (2 R)`` need their
    channels in another order.

    Source: as `mamba3`, section on MIMO.

    Examples
    --------
    Two keys, each read by the query beside it:

    >>> import numpy as np, linkern
    >>> both, value = np.asarray([[1.0, 0.0, 0.0, 1.0]]), np.ones((1, 1))
    >>> mix = np.asarray([[2.0], [3.0]])
    >>> result = linkern.mamba3_mimo(both, both, value, mix, mix, None, None)
    >>> result.output, result.state.memory[:, 0]
    (array([[13.]]), array([2., 3.]))
    """
