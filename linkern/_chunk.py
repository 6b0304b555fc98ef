r"""The equation over a whole span at once: what each token writes, in closed form.

With ``Gamma`` the decays between tokens (`linkern._decay`), a span that is entered with
memory ``S`` writes the rows ``U`` that solve

    (I + N) U = V - A' S,      N_ij = a_i^T Gamma_ij k_j  for j < i,

reads ``Q' S + (q_i^T Gamma_ij k_j)_ij U``, and leaves ``S' + K'^T U`` behind. A prime
says how much of a row has come from, or is left at, the edge of the span. Without an
erase, ``N`` is zero and ``U = V``.

Source: the triangular system is the WY form of Bischof and Van Loan 1987, as used for
the delta rule by Yang et al. 2024, "Parallelizing Linear Transformers with the Delta
Rule over Sequence Length".
"""

from linkern._array import concat, mT, zeros
from linkern._decay import entering, leaving, mixed, scores, whole
from linkern._halving import inverse
from linkern._recurrence import Terms
from linkern._typing import Array

__all__ = ["attend", "chunk", "write"]


def chunk(memory: Array, of: Terms) -> tuple[Array, Array]:
    """Read and update the memory for a span of tokens, quadratic in its length."""
    length = of.key.shape[-2]
    if _by_halves(of):
        of = _padded(of)
    decay = of.log_decay
    written = _written(memory, of)
    if of.crosswise:
        held = of.query @ mT(memory)
        pairs = scores(of.query, written, None)
        output = entering(held, decay) + mixed(pairs, of.key, decay)
    else:
        early = of.early_read
        held = entering(of.query, decay, early=early) @ memory
        pairs = scores(of.query, of.key, decay, strict=early, early=early)
        output = held + pairs @ written
    after = whole(memory, decay) + mT(leaving(of.key, decay)) @ written
    return output[..., :length, :], after


def _written(memory: Array, of: Terms) -> Array:
    """Return ``U``: the values less what the memory already holds for them."""
    if of.erase is None:
        return of.value
    early = of.early_erase
    found = entering(of.erase, of.log_decay, early=early) @ memory
    among = scores(of.erase, of.key, of.log_decay, strict=True, early=early)
    return inverse(among) @ (of.value - found)


def _by_halves(of: Terms) -> bool:
    """Whether the span is cut in halves, and must be a power of two long."""
    per_channel = of.log_decay is not None and of.log_decay.shape[-1] > 1
    return per_channel or of.erase is not None


def _padded(of: Terms) -> Terms:
    """Append tokens that write nothing and decay nothing, up to a power of two."""
    length = of.key.shape[-2]
    missing = (1 << max(length - 1, 0).bit_length()) - length
    if not missing:
        return of

    def longer(x: Array) -> Array:
        nothing = zeros((*x.shape[:-2], missing, x.shape[-1]), like=x)
        return concat([x, nothing], axis=-2)

    return of.mapped(longer)


def write(memory: Array, key: Array, value: Array) -> Array:
    """Return ``S + sum_j k_j v_j^T``: a span without decay or erase."""
    return memory + mT(key) @ value


def attend(memory: Array, query: Array, key: Array, value: Array) -> Array:
    """Return ``q_i^T (S + sum_j k_j v_j^T)``: every query sees every key."""
    return query @ memory + (query @ mT(key)) @ value
