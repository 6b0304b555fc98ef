"""State of softmax attention: a cache of all keys and values, which grows.

`Rows` appends in amortised constant time, like a list: spare rows are kept behind the
last one, and written in place. Rows that a state holds never change, so states can be
kept, forked and restored like any others.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from linkern.array import concat, ones, writable, zeros
from linkern.transformer.parameters import kind
from linkern.typing import Array

__all__ = ["Cache", "Rows", "stacked"]


@dataclass
class _Storage:
    """Allocated rows; the first `taken` belong to the longest state so far."""

    array: Array
    taken: int
    lock: Any = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class Rows:
    """An array ``(..., T, D)`` that can be appended to without copying it.

    Parameters
    ----------
    storage : _Storage
        Shared by all states that grew from the same one.
    length : int
        How many of its rows are in this one.
    """

    storage: _Storage
    length: int

    @classmethod
    def of(cls, x: Array) -> "Rows":
        """Return the rows of an array; it is not copied, and never written to."""
        return cls(_Storage(x, x.shape[-2]), x.shape[-2])

    @property
    def array(self) -> Array:
        """The rows."""
        return self.storage.array[..., : self.length, :]

    def appended(self, x: Array) -> "Rows":
        """Return these rows and those of `x`."""
        length = self.length + x.shape[-2]
        if not writable(self.storage.array, x):
            return Rows.of(concat([self.array, x], axis=-2))
        with self.storage.lock:
            # Another state may have grown from the same rows: then it has taken the
            # spare ones, and this one moves out.
            fits = length <= self.storage.array.shape[-2]
            if fits and self.storage.taken == self.length:
                self.storage.array[..., self.length : length, :] = x  # type: ignore[index]
                self.storage.taken = length
                return Rows(self.storage, length)
        *lead, _, dim = self.storage.array.shape
        spare = zeros((*lead, max(length, 16), dim), like=x)
        grown = concat([self.array, x, spare], axis=-2)
        return Rows(_Storage(grown, length), length)


@kind
class Cache:
    """The state of softmax attention: the keys and values of all tokens so far.

    Parameters
    ----------
    keys, values : Rows (..., H, S, K), (..., H, S, V)
        Of each token.
    visible : array (N, S) of bool, or None
        Which tokens are there, if sequences of different lengths share the arrays.
    """

    keys: Rows
    values: Rows
    visible: Array | None = None

    @classmethod
    def of(cls, key: Array, value: Array, visible: Array | None = None) -> "Cache":
        """Return the cache of some tokens."""
        return cls(Rows.of(key), Rows.of(value), visible)

    @property
    def key(self) -> Array:
        """Keys ``(..., H, S, K)``."""
        return self.keys.array

    @property
    def value(self) -> Array:
        """Values ``(..., H, S, V)``."""
        return self.values.array

    @property
    def mask(self) -> Array | None:
        """Boolean mask of the visible keys: ``(N, 1, 1, S)``."""
        return None if self.visible is None else self.visible[:, None, None, :]

    def appended(self, key: Array, value: Array) -> "Cache":
        """Return the cache with further tokens."""
        visible = self.visible
        if visible is not None:
            added = ones((visible.shape[0], key.shape[-2]), like=visible)
            visible = concat([visible, added], axis=-1)
        return Cache(self.keys.appended(key), self.values.appended(value), visible)

    def tree_children(self) -> dict[str, Any]:
        """Return the arrays of a cache as a file stores them, without spare rows."""
        return {"key": self.key, "value": self.value, "visible": self.visible}

    @classmethod
    def tree_rebuilt(cls, below: Mapping[str, Any]) -> "Cache":
        """Undo `tree_children`."""
        return cls.of(**below)


def stacked(caches: list[Cache]) -> Cache:
    """Return the caches of several batches as one, the shorter ones padded in front.

    In front, so that the next token of every sequence has the same place.
    """
    most = max(cache.key.shape[-2] for cache in caches)

    def padded(x: Array) -> Array:
        *lead, length, dim = x.shape
        return concat([zeros((*lead, most - length, dim), like=x), x], axis=-2)

    keys = concat([padded(cache.key) for cache in caches], axis=0)
    values = concat([padded(cache.value) for cache in caches], axis=0)
    if all(cache.key.shape[-2] == most and cache.visible is None for cache in caches):
        return Cache.of(keys, values)
    there = []
    for cache in caches:
        shape = cache.key.shape[0], cache.key.shape[-2]
        all_visible = ones(shape, like=keys) > 0
        visible = all_visible if cache.visible is None else cache.visible
        front = zeros((shape[0], most - shape[1]), like=visible)
        there.append(concat([front, visible], axis=-1))
    return Cache.of(keys, values, concat(there, axis=0))
