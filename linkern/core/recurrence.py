r"""An operator as data: what each token decays, erases, writes and reads.

    S~  = Diag(exp(g_t)) S_{t-1}             decay
    u_t = b_t (v_t - a_t^T S~)               erase: what is already there is not written
    S_t = S~ + k_t u_t^T                     write
    o_t = q_t^T S_t                          read

with ``S`` of shape ``(..., K, V)``. Every operator says what ``q``,
``k``, ``v``, ``g``, ``a`` and ``b`` are; three switches cover the conventions in use.

A rule with momentum keeps a pair of memories, one above the other in ``(..., 2 K, V)``.
What decays a token is then a triangular matrix on the pair, and the write is in its
second half, which the first follows by a share ``m``:

    M_t = exp(h_t) M_{t-1} + k_t u_t^T,      S_t = S~ + m_t M_t

with the erase and the read of ``S``. Its equation is `_pair`.
"""

from collections.abc import Callable
from typing import NamedTuple

from linkern.array import concat, mT, namespace, outer
from linkern.typing import Array

__all__ = ["Terms", "token"]


class Terms(NamedTuple):
    """The terms of the recurrence over a span of ``T`` tokens.

    Parameters
    ----------
    query, key, value : array (..., T, K), (..., T, K), (..., T, V)
        Read, written where, written what.
    log_decay : array (..., T, 1) or (..., T, K), or None
        Natural logarithms of the decays; None for none.
    erase : array (..., T, K) or None
        ``a``: along which direction what is there is erased; None for none.
    early_erase : bool
        Whether ``a`` reads the memory as it was before this token's decay.
    early_read : bool
        Whether ``q`` reads ``S_{t-1}``.
    transpose_state : bool
        Whether ``q (..., T, V)`` reads along the values: ``o_t = S_t q_t``.
    beta : array (..., T, 1) or None
        ``b``: factor on what is written; None for 1. Kernels multiply with it where
        they read; array code multiplies `value` and `erase` beforehand (`folded`).
    follow : array (..., T, 1) or None
        ``m``: share of the second half of the memory that the first one gains; None for
        a single memory. With it, `log_decay` is ``(..., T, 2)`` or None, one number for
        each half, and `erase` is early.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array | None = None
    erase: Array | None = None
    early_erase: bool = False
    early_read: bool = False
    transpose_state: bool = False
    beta: Array | None = None
    follow: Array | None = None

    @property
    def is_additive(self) -> bool:
        """True if tokens only add to the memory, and decay it as a whole."""
        if self.early_read or self.transpose_state or self.follow is not None:
            return False
        if self.erase is not None or self.beta is not None:
            return False
        return self.log_decay is None or self.log_decay.shape[-1] == 1

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays that there are."""
        arrays = (*self[:5], self.beta, self.follow)
        return tuple(x for x in arrays if x is not None)

    def folded(self) -> "Terms":
        """Return the same terms without `beta`."""
        if self.beta is None:
            return self
        return self._replace(
            value=self.beta * self.value,
            erase=None if self.erase is None else self.beta * self.erase,
            beta=None,
        )

    def span(self, tokens: slice) -> "Terms":
        """Return the terms of some tokens."""
        return self.mapped(lambda x: x[..., tokens, :])

    def mapped(self, function: Callable[[Array], Array]) -> "Terms":
        """Return the terms with a function applied to each array."""
        key = function(self.key)
        erase: Array | None = key
        # Once for both: gradients of keys that also erase are then summed as they are.
        if self.erase is not self.key:
            erase = None if self.erase is None else function(self.erase)
        return self._replace(
            query=function(self.query),
            key=key,
            value=function(self.value),
            log_decay=None if self.log_decay is None else function(self.log_decay),
            erase=erase,
            beta=None if self.beta is None else function(self.beta),
            follow=None if self.follow is None else function(self.follow),
        )


def token(memory: Array, terms: Terms) -> tuple[Array, Array]:
    """Read and update the memory for a span of one token: the equation itself."""
    if terms.follow is not None:
        return _pair(memory, terms, terms.follow)
    decayed = memory
    if terms.log_decay is not None:
        decayed = mT(namespace(terms.log_decay).exp(terms.log_decay)) * memory
    written = terms.value
    if terms.erase is not None:
        written = written - terms.erase @ (memory if terms.early_erase else decayed)
    after = decayed + outer(terms.key, written)
    seen = memory if terms.early_read else after
    return terms.query @ (mT(seen) if terms.transpose_state else seen), after


def _pair(memory: Array, terms: Terms, follow: Array) -> tuple[Array, Array]:
    """Read and update a pair of memories for one token: the same, with momentum."""
    half = memory.shape[-2] // 2
    first, second = memory[..., :half, :], memory[..., half:, :]
    written = terms.value
    if terms.erase is not None:
        written = written - terms.erase @ first
    if terms.log_decay is not None:
        kept = namespace(terms.log_decay).exp(terms.log_decay)
        first, second = kept[..., :1] * first, kept[..., 1:] * second
    second = second + outer(terms.key, written)
    first = first + follow * second
    return terms.query @ first, concat([first, second], axis=-2)
