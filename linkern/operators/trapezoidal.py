r"""Mamba-3: a rotation of queries and keys that tokens drive, and trapezoidal writes.

S_t = a_t (S_{t-1} + d_t k_{t-1} v_{t-1}^T) + c_t k_t v_t^T,      o_t = scale q_t^T S_t
"""

from dataclasses import replace
from math import pi
from typing import Unpack

from linkern.array import concat, mT, namespace, ones, reshape
from linkern.core.recurrence import Terms
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    prepare_terms,
)
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["mamba3"]


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
) -> tuple[Array, State]:
    """Read what earlier tokens left as `simple_gla` does, and add the token itself.

    Before a token reads, the memory is ``a_t (S_{t-1} + d_t k_{t-1} v_{t-1}^T)``: both
    writes of the token before are one row, under the decay of this token.
    """
    assert state.normalizer is not None
    if value.shape[-2] == 0:
        return value, state
    xp = namespace(value)
    pairs, keys = 0 if angle is None else angle.shape[-1], key.shape[-1]
    carried = state.normalizer[..., None, :]
    step = ones((*value.shape[:-1], 1), like=value) if dt is None else dt
    turn = carried[..., :pairs]
    if angle is not None:
        turn = _reduced(turn + xp.cumulative_sum(pi * xp.tanh(angle) * step, axis=-2))
        cosine, sine = xp.cos(turn), xp.sin(turn)
        query, key = (_rotated(x, cosine, sine) for x in (query, key))
    key_before = _delayed(carried[..., pairs : pairs + keys], key)
    value_before = _delayed(carried[..., pairs + keys :], value)
    now = step if trapezoid is None else trapezoid * step
    written = concat([xp.zeros_like(now[..., :1, :]), now[..., :-1, :]], axis=-2)
    if trapezoid is not None:
        written = written + (1 - trapezoid) * step
    if log_decay is not None:
        written = xp.exp(log_decay) * written
    terms = Terms(query, written * key_before, value_before, log_decay)
    output, memory = form(state.memory, terms)
    score = xp.sum(query * key, axis=-1, keepdims=True)
    last = (..., slice(-1, None), slice(None))
    memory = memory + mT(now[last] * key[last]) * value[last]
    after = concat([turn[last], key[last], value[last]], axis=-1)[..., 0, :]
    return output + now * score * value, State(memory, after)


def _delayed(first: Array, x: Array) -> Array:
    """Return the row of the token before for each token."""
    return concat([first, x[..., :-1, :]], axis=-2)


def _reduced(turn: Array) -> Array:
    """Return angles in ``[0, 2 pi)``."""
    whole: Array = namespace(turn).floor(turn / (2 * pi))
    return turn - 2 * pi * whole


def _rotated(x: Array, cosine: Array, sine: Array) -> Array:
    """Rotate channels 0 and 1 by the first angle, 2 and 3 by the second, and so on."""
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
    """Check that there are two channels for each angle."""
    ready = prepare_terms(definition, inputs, {}, form, scale)
    pairs, keys = ready.sizes.get("p", 0), ready.sizes["k"]
    if 2 * pairs > keys:
        msg = (
            f"`angle` must have one number for two channels of the keys, at most "
            f"{keys // 2} for K = {keys}, got {pairs}."
        )
        raise ValueError(msg)
    return replace(ready, sizes={**ready.sizes, "p": pairs})


MAMBA3 = Definition(
    "mamba3",
    {**QKV, "angle": "tp", "dt": "t", "log_decay": "t", "trapezoid": "t"},
    _attend,
    normalizer=lambda n: (n["p"] + n["k"] + n["v"],),
    inverse_root_scale=False,
    affine=False,
    prepare=_prepare,
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
    K)``. Outside are the skip ``D`` and the gate ``z``, and several writes and reads
    for each token (MIMO).

    Source: arXiv 2603.15569, "Mamba-3: Improved Sequence Modeling using State Space
    Principles", 2026.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones, half = np.ones((3, 1)), np.full(3, 0.5)
    >>> linkern.mamba3(ones, ones, ones, None, None, None, half).output[:, 0]
    array([0.5, 1.5, 2.5])
    """
