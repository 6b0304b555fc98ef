"""Rows of tokens in blocks of equal size, and neighbouring blocks."""

from typing import cast

from linkern.array import concat, namespace, reshape, zeros
from linkern.typing import Array

__all__ = ["blocks_of", "cut", "interleaved", "joined", "with_neighbours"]


def blocks_of(length: int, size: int) -> int:
    """Return how many blocks hold `length` rows; at least one."""
    return max(-(-length // size), 1)


def cut(x: Array, size: int) -> Array:
    """Return ``(..., T, D)`` as ``(..., B, size, D)``, padded with zeros."""
    *lead, length, dim = x.shape
    count = blocks_of(length, size)
    behind = count * size - length
    if behind:
        x = concat([x, zeros((*lead, behind, dim), like=x)], axis=-2)
    return reshape(x, (*lead, count, size, dim))


def joined(x: Array) -> Array:
    """Return ``(..., B, size, D)`` as ``(..., B size, D)``."""
    *lead, count, size, dim = x.shape
    return reshape(x, (*lead, count * size, dim))


def with_neighbours(blocks: Array, before: int, after: int) -> Array:
    """Concatenate each block with its neighbours before and after it.

    ``(..., B, n, D)`` to ``(..., B, (before + 1 + after) n, D)``; neighbours beyond
    the ends are zeros.
    """
    *lead, count, size, dim = blocks.shape
    ahead = zeros((*lead, before, size, dim), like=blocks)
    behind = zeros((*lead, after, size, dim), like=blocks)
    padded = concat([ahead, blocks, behind], axis=-3)
    shifts = range(before + 1 + after)
    near = [padded[..., i : i + count, :, :] for i in shifts]
    return concat(near, axis=-2)


def interleaved(blocks: Array) -> Array:
    """Transpose blocks and rows: row r of every block goes to block r."""
    return cast(Array, namespace(blocks).moveaxis(blocks, -3, -2))
