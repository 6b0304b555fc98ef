r"""The matrix memory of xLSTM: exponential input gates, and a normaliser of its own.

C_t = f_t C_{t-1} + i_t k_t v_t^T,  n_t = f_t n_{t-1} + i_t k_t,  both over the sum of
the weights, whose logarithm is the third part of the state: nothing overflows.
"""

from typing import Unpack

from linkern.array import concat, namespace, ones, zeros
from linkern.core.logspace import averaging
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition
from linkern.operators.forms import Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["mlstm"]


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    input_gate: Array | None,
    log_decay: Array | None,
) -> tuple[Array, State]:
    assert state.normalizer is not None
    if value.shape[-2] == 0:
        return value, state
    column = ones((*value.shape[:-1], 1), like=value)
    logits = zeros(column.shape, like=value) if input_gate is None else input_gate
    average = averaging(logits, state.normalizer, log_decay)
    values = concat([value, column], axis=-1)
    terms = Terms(query, average.weight * key, values, average.log_decay)
    read, memory = form(state.memory, terms)
    output = _quotient(read[..., :-1], read[..., -1:], average.after)
    return output, State(memory, average.last)


def _quotient(above: Array, below: Array, log_weight: Array) -> Array:
    """Return ``e^z a / max(|e^z b|, 1)``, both multiplied by what cannot overflow."""
    xp = namespace(above)
    zero = xp.zeros_like(log_weight)
    lift = xp.exp(xp.minimum(log_weight, zero))
    least = xp.exp(-xp.maximum(log_weight, zero))
    quotient: Array = lift * above / xp.maximum(lift * xp.abs(below), least)
    return quotient


MLSTM = Definition(
    "mlstm",
    {**QKV, "input_gate": "t", "log_decay": "t"},
    _attend,
    memory=lambda n: (n["k"], n["v"] + 1),
    normalizer=lambda _: (1,),
    empty=-float("inf"),
    affine=False,
    growing=True,
    several_passes=True,
)


@operator(MLSTM)
def mlstm(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    input_gate: ArrayT | None = None,
    log_decay: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Matrix memory of xLSTM: exponential gates, and rows divided by a normaliser.

    Parameters
    ----------
    input_gate : array (..., T), optional
        Logarithms of the input gates, what enters their exponential; of any size.
        Default: 0, so gates of 1.
    log_decay : array (..., T), optional
        Natural logarithms of the forget gates: ``log sigmoid(f)``, or ``f`` itself for
        exponential ones, and then of any sign. Default: nothing is forgotten.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., K, V + 1)``, in it the
        matrix memory and as last column the normaliser, both divided by ``e^z``, and
        ``z (..., 1)`` as normalizer.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`, but for positive log-decays.

    Notes
    -----
    .. math::

        C_t = f_t C_{t-1} + i_t k_t v_t^T, \qquad n_t = f_t n_{t-1} + i_t k_t, \qquad
        o_t = \frac{scale \; q_t^T C_t}{\max(|scale \; q_t^T n_t|, 1)}

    with ``i = exp(input_gate)`` and ``f = exp(log_decay)``. Nothing overflows: ``C``
    and ``n`` are kept over ``e^z``, where ``z`` is the logarithm of the sum of the
    weights so far. Published kernels keep them over ``e^m``, ``m`` the largest
    logarithm, and write ``max(|q . n|, e^-m)`` for the same; their ``C``, ``n`` and
    ``m`` are a state of this operator as well, ``State(concat([C, n[..., None]], -1),
    m)``. They add 1e-6 to the denominator; nothing is added here. The variant with
    sigmoid input gates has no normaliser: it is `simple_gla` of the values times the
    gate.

    Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 19 to
    27.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((3, 1))
    >>> gate = np.log([1.0, 2.0, 1.0])
    >>> linkern.mlstm(ones, ones, np.asarray([[3.0], [6.0], [9.0]]), gate).output[:, 0]
    array([3., 5., 6.])
    """
