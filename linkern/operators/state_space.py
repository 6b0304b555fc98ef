r"""State space models whose states decay entry by entry: the selective scan of Mamba.

S_t = exp(dt_t A) * S_{t-1} + k_t (dt_t x_t)^T,      o_t = scale q_t^T S_t + D x_t
"""

from typing import Unpack

from linkern import validate
from linkern.array import broadcast_to, mT, namespace, ones
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

__all__ = ["selective_scan"]


def _attend(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    dt: Array | None,
    log_decay_rate: Array | None,
    skip: Array | None,
) -> tuple[Array, State]:
    """Run each value channel as a head of gated linear attention with one value."""
    lead, columns = tuple(value.shape[:-2]), value.shape[-1]
    query, key = (
        broadcast_to(x[..., None, :, :], (*lead, columns, *x.shape[-2:]))
        for x in (query, key)
    )
    written = mT(value if dt is None else dt * value)[..., None]
    log_decay = None
    if log_decay_rate is not None:
        steps = ones((*written.shape[:-1], 1), like=value)
        if dt is not None:
            steps = mT(dt)[..., None]
        log_decay = steps * log_decay_rate[..., None, :]
    terms = Terms(query, key, written, log_decay)
    output, memory = form(mT(state.memory)[..., None], terms)
    output = mT(output[..., 0])
    if skip is not None:
        output = output + skip * value
    return output, State(mT(memory[..., 0]), None)


def _prepare(
    definition: Definition,
    inputs: Inputs,
    settings: Inputs,
    form: Form,
    scale: float | None,
) -> Prepared:
    """Make steps of what a softplus is taken of."""
    dt = inputs["dt"]
    if validate.flag("dt_softplus", settings["dt_softplus"]) and dt is not None:
        wide = validate.widened("dt", dt)
        xp = namespace(wide)
        inputs = {**inputs, "dt": xp.logaddexp(xp.zeros_like(wide), wide)}
    return prepare_terms(definition, inputs, {}, form, scale)


SELECTIVE_SCAN = Definition(
    "selective_scan",
    {**QKV, "dt": "tv", "log_decay_rate": "vk", "skip": "v"},
    _attend,
    inverse_root_scale=False,
    affine=False,
    prepare=_prepare,
)


@operator(SELECTIVE_SCAN)
def selective_scan(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    dt: ArrayT | None,
    log_decay_rate: ArrayT | None,
    skip: ArrayT | None = None,
    *,
    dt_softplus: bool = False,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""State space model of Mamba: a decay for each entry, from steps and rates.

    Parameters
    ----------
    query, key : array (..., T, K)
        ``C`` and ``B`` of Mamba, ``K`` numbers of state for each channel; float16,
        bfloat16, float32 or float64. Heads are Mamba's groups of channels.
    value : array (..., T, V)
        ``x`` (or ``u``), one number for each channel; same library, device and dtype as
        `query`.
    dt : array (..., T, V)
        Steps of each channel, zero or positive (``delta``); None for steps of 1.
    log_decay_rate : array (H, V, K)
        ``A``: log-decay of each entry in a step of 1, zero or negative; None if nothing
        is forgotten.
    skip : array (H, V), optional
        ``D``: this times the value is added to the output. Default: nothing is.
    dt_softplus : bool
        Whether steps are ``softplus(dt)``, and any `dt` is allowed.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if a step is negative, or a log-decay rate positive.

    Notes
    -----
    .. math::

        S_t = e^{A^T \Delta_t} \odot S_{t-1} + k_t (\Delta_t \odot x_t)^T, \qquad
        o_t = scale \; q_t^T S_t + D \odot x_t,

    where column ``v`` of :math:`A^T \Delta_t` is ``A[v] dt[t, v]``. Each channel is a
    head of `gla` with one value and decays of its own; with one rate and one step for
    all, it is `simple_gla`, the core of Mamba-2. Mamba's bias of `dt`, its convolution
    and its gate ``z`` are outside. It keeps its states as ``(V, K)``.

    Source: Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State
    Spaces", algorithm 2.

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones, rate = np.ones((3, 1)), np.log([[0.5]])
    >>> linkern.selective_scan(ones, ones, ones, ones, rate).output[:, 0]
    array([1.  , 1.5 , 1.75])
    """
