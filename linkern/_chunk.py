"""The equation, stated once: how a span of tokens writes to and reads from the memory.

    S_i = S_{i-1} + k_i v_i^T          write
    o_i = q_i^T S_i                    read

with `q_i`, `k_i` rows of features and `S` of shape ``(..., K, V)``. Over a span, the
writes add up to one product, and what a query reads splits into what was in the memory
before the span and what the span itself wrote up to that query.
"""

from linkern._array import mT, namespace
from linkern._typing import Array

__all__ = ["attend", "read", "write"]


def write(memory: Array, key: Array, value: Array) -> Array:
    """Return the memory after a whole span: ``S + sum_j k_j v_j^T``."""
    return memory + mT(key) @ value


def read(memory: Array, query: Array) -> Array:
    """Return what each query finds in one fixed memory: ``q_i^T S``."""
    return query @ memory


def attend(
    memory: Array, query: Array, key: Array, value: Array, *, causal: bool
) -> Array:
    """Return ``q_i^T (S + sum_j k_j v_j^T)`` over the tokens that query i may see.

    The scores ``q_i . k_j`` of the span are made explicit, so this is quadratic in its
    length.
    """
    scores = query @ mT(key)
    if causal:
        # tril selects; a product with a 0/1 mask would turn an infinite score of the
        # future into NaN.
        scores = namespace(scores).tril(scores)
    return read(memory, query) + scores @ value
