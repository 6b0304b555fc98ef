r"""Mesa: every read solves a ridge regression over the tokens so far."""

from dataclasses import dataclass
from typing import Unpack

from linkern.array import concat, eye, namespace, ones, reshape
from linkern.autodiff.scan import scan
from linkern.core.recurrence import Terms
from linkern.operators.definition import QKV, Definition, scaled
from linkern.operators.forms import DEFAULT_CHUNK_SIZE, Form
from linkern.operators.register import Options, operator
from linkern.state import AttentionResult, State
from linkern.typing import Array, ArrayT

__all__ = ["mesa"]


def _mesa(
    form: Form,
    state: State,
    *,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    ridge: Array | None,
) -> tuple[Array, State]:
    size = key.shape[-1]
    written = scaled(beta, key)
    of_keys, of_values = state.memory[..., :size], state.memory[..., size:]
    # The Gram matrices of all tokens would take K^2 numbers each: take some at a time.
    rows = Terms(query, key, written, log_decay)
    reading, of_keys = scan(_Solve(form), of_keys, rows, DEFAULT_CHUNK_SIZE, (ridge,))
    assert reading is not None
    output, of_values = form(of_values, Terms(reading, written, value, log_decay))
    return output, State(concat([of_keys, of_values], axis=-1), None)


@dataclass(frozen=True)
class _Solve:
    """The step of a span in a form, equal to that of an equal form."""

    form: Form

    def __call__(
        self, gram: Array, terms: Terms, ridge: Array | None
    ) -> tuple[Array, Array]:
        """Return ``(H_t + Diag(ridge))^{-1} q_t`` for each token, and the last ``H``.

        ``H`` as a row of ``K^2`` numbers is what a recurrence with one key channel
        holds.
        """
        query, key, written, log_decay = terms[:4]
        *lead, length, size = key.shape
        flat = (*lead, 1, size * size)
        one = ones((*lead, length, 1), like=key)
        products = reshape(
            written[..., None] * key[..., None, :], (*lead, length, size * size)
        )
        grams, last = self.form(
            reshape(gram, flat), Terms(one, one, products, log_decay)
        )
        systems = reshape(grams, (*lead, length, size, size))
        systems = systems + _diagonal(ridge, systems)
        solution = namespace(systems, query).linalg.solve(systems, query[..., None])
        row: Array = solution[..., 0]
        return row, reshape(last, (*lead, size, size))


def _diagonal(ridge: Array | None, like: Array) -> Array:
    """Return ``Diag(ridge)`` with an axis for the tokens; the identity for None."""
    identity = eye(like.shape[-1], like=like)
    return identity if ridge is None else identity * ridge[..., None, :]


MESA = Definition(
    "mesa",
    {
        **QKV,
        "log_decay": "t",
        "beta": "t",
        "ridge": "k",
    },
    _mesa,
    memory=lambda n: (n["k"], n["k"] + n["v"]),
    inverse_root_scale=False,
)


@operator(MESA)
def mesa(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    log_decay: ArrayT | None = None,
    beta: ArrayT | None = None,
    ridge: ArrayT | None = None,
    **options: Unpack[Options[ArrayT]],
) -> AttentionResult[ArrayT]:
    r"""Mesa: the read-out of a ridge regression over the tokens so far.

    Parameters
    ----------
    log_decay : array (..., T), optional
        Natural logarithms of the decays, in ``[-inf, 0]``. Default: none.
    beta : array (..., T), optional
        Weight of each token, in ``[0, 2]``. Default: 1.
    ridge : array (..., K), optional
        Regularisation of each key channel, positive; ``(H, K)`` for one each head.
        Default: 1.
    **options
        `scale` (default 1), `initial_state`, `cu_seqlens`, `form` and `chunk_size`, as
        in `simple_gla`.

    Returns
    -------
    AttentionResult
        ``output (..., T, V)``; ``state`` with a memory ``(..., K, K + V)``, the two
        matrices ``H_kk`` and ``H_kv`` side by side, and no normalizer.

    Raises
    ------
    TypeError, ValueError
        As `simple_gla`; also if `beta` leaves ``[0, 2]`` or `ridge` is not positive.

    Notes
    -----
    .. math::

        H^{kk}_t = e^{g_t} H^{kk}_{t-1} + \beta_t k_t k_t^T, \qquad
        H^{kv}_t = e^{g_t} H^{kv}_{t-1} + \beta_t k_t v_t^T, \qquad
        o_t = scale \; q_t^T (H^{kk}_t + \mathrm{Diag}(ridge))^{-1} H^{kv}_t

    The system is solved directly; kernels of this operator take a fixed number of
    conjugate-gradient steps, which is another result where it is ill-conditioned.

    Source: von Oswald et al. 2025, "MesaNet: Sequence Modeling by Locally Optimal
    Test-Time Training".

    Examples
    --------
    >>> import numpy as np, linkern
    >>> ones = np.ones((2, 1))
    >>> linkern.mesa(ones, ones, 6 * ones).output[:, 0]
    array([3., 4.])
    """
