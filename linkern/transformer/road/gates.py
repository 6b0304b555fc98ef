"""Gates that need the token alone: a GRU without its loop, and an average as a GRU."""

from linkern import validate
from linkern.array import any_true, astype, namespace
from linkern.operators.recurrent import hgrn
from linkern.state import State
from linkern.transformer.gru import GRU
from linkern.transformer.road._checks import fitted, gates
from linkern.typing import Array

__all__ = ["gated_average", "shares", "without_feedback"]


def without_feedback(parameters: GRU) -> GRU:
    """Return a GRU whose gates and candidates are functions of the token alone.

    Parameters
    ----------
    parameters : GRU
        Weights and biases.

    Returns
    -------
    GRU
        The same, with ``hidden_weight`` zero.

    Raises
    ------
    TypeError
        If `parameters` are no GRU.

    Notes
    -----
    All gates can then be computed at once, from any hidden states: what is left of the
    loop is `gated_average`.

    Examples
    --------
    >>> float(abs(without_feedback(GRU.create(3, 2, rng=0)).hidden_weight).max())
    0.0
    """
    validate.instance("parameters", parameters, GRU)
    cut = namespace(parameters.hidden_weight).zeros_like(parameters.hidden_weight)
    return GRU(parameters.input_weight, cut, parameters.bias, parameters.hidden_bias)


def gated_average(
    update: Array,
    candidate: Array,
    initial_hidden: Array | None = None,
    *,
    form: str = "auto",
) -> Array:
    r"""Return all hidden states of a GRU from its gates: `linkern.hgrn`.

    Parameters
    ----------
    update, candidate, initial_hidden
        As in `unrolled`.
    form : {"auto", "recurrent", "chunkwise", "parallel"}
        Order of the sums. "auto" is "chunkwise".

    Returns
    -------
    array (..., T, D)
        Hidden states, in the dtype of `candidate`.

    Raises
    ------
    TypeError, ValueError
        As `unrolled`; also if `form` is unknown.

    Notes
    -----
    ``hgrn`` with the value :math:`z_t \odot c_t` and the log-decay
    :math:`\log(1 - z_t)`. Gates that need the hidden state can be put in too, but to
    know them is to have run the loop. A gate of exactly 1 forgets exactly, but has no
    gradient through the logarithm; `unrolled` has it.

    Source: Qin et al. 2023, "Hierarchically Gated Recurrent Neural Network for Sequence
    Modeling", equations 1 to 5; there ``f = 1 - z`` is the forget gate.

    Examples
    --------
    >>> import numpy as np
    >>> gate = np.asarray([[0.5], [0.25]])
    >>> gated_average(gate, np.asarray([[4.0], [8.0]])).round(12)
    array([[2. ],
           [3.5]])
    """
    z, c, first = fitted(update, candidate, initial_hidden)
    gates("update", z)
    xp = namespace(z)
    # log1p warns about log(0) and has no gradient there, so it never sees one.
    full = 1 - z <= 0
    log_kept = xp.log1p(-xp.where(full, xp.zeros_like(z), z))
    log_kept = xp.where(full, xp.full_like(z, -float("inf")), log_kept)
    state = State(first[..., None, :], None)
    result = hgrn(z * c, log_kept, initial_state=state, form=form).output
    return astype(result, candidate.dtype)


def shares(weight: Array, log_decay: Array | None = None) -> Array:
    r"""Return the update gates of the GRU that averages with weights of the key alone.

    Parameters
    ----------
    weight : array (..., T, D)
        The weight of each candidate, not negative, the first of them positive.
    log_decay : array (..., T, D), optional
        Natural logarithms of what is left of all earlier weights at each token, at most
        0. Default: nothing is forgotten.

    Returns
    -------
    array (..., T, D)
        Each weight's share of the sum so far, in the dtype of `weight`.

    Raises
    ------
    TypeError, ValueError
        As `linkern.hgrn`; also if a weight is negative.

    Notes
    -----
    .. math::

        n_t = e^{g_t} n_{t-1} + b_t, \qquad z_t = \frac{b_t}{n_t}

    A normalised average whose weights do not depend on the query obeys ``o_t = (1 -
    z_t) o_{t-1} + z_t v_t``. With equal weights ``z_t = 1 / t``: the running mean.

    Examples
    --------
    >>> import numpy as np
    >>> shares(np.ones((4, 1)))[:, 0]
    array([1.        , 0.5       , 0.33333333, 0.25      ])
    """
    b = validate.widened("weight", weight)
    if any_true(b < 0):
        msg = "`weight` must not be negative, got an entry that is."
        raise ValueError(msg)
    return astype(b / hgrn(b, log_decay).output, weight.dtype)
