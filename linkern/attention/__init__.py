"""Quadratic attention: softmax, any similarity, sparse patterns, hashing."""

from linkern.attention._patterns import sparse_mask
from linkern.attention.kernel import kernel_attention
from linkern.attention.lsh import lsh_attention
from linkern.attention.softmax import softmax_attention
from linkern.attention.sparse import sparse_attention

__all__ = [
    "kernel_attention",
    "lsh_attention",
    "softmax_attention",
    "sparse_attention",
    "sparse_mask",
]
