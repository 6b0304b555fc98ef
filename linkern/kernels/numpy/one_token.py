"""One token on NumPy: the functions of the array code, with fewer arrays and checks.

Steps of decoding are so short that each call of NumPy counts. The same functions are
applied to the same numbers in the same order, so results are bitwise those of
`linkern.core.recurrence.token` and of the recurrent form.
"""

from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from linkern.core import recurrence
from linkern.core.recurrence import Terms
from linkern.feature_maps import elu_plus_one
from linkern.kernels.numpy.features import in_place
from linkern.kernels.numpy.types import Real

__all__ = ["attend_token", "token"]


def token(memory: Any, terms: Terms) -> tuple[Any, Any]:
    """Read and update the memory for one token of plain arrays, all of one dtype."""
    # Sums take the layout of what is added.
    if terms.follow is not None or not memory.flags.c_contiguous:
        return recurrence.token(memory, terms)
    plain: tuple[Any, ...] = terms[:5]
    query, key, value, log_decay, erase = plain
    decayed = memory
    if log_decay is not None:
        decayed = np.exp(log_decay).swapaxes(-1, -2) * memory
    columns, rows = _outer_operands(key, value.shape[-1])
    written = rows[..., :1, :]
    if erase is None:
        written[...] = value
    else:
        erased = np.matmul(erase, memory if terms.early_erase else decayed)
        np.subtract(value, erased, out=written)
    after = np.matmul(columns, rows)
    np.add(decayed, after, out=after)
    seen = memory if terms.early_read else after
    if terms.transpose_state:
        seen = seen.swapaxes(-1, -2)
    return np.matmul(query, seen), after


def _outer_operands(key: Real, width: int) -> tuple[Real, Real]:
    """Return operands of an outer product, without its row of `width` entries.

    As in `linkern.array.outer`, the second column and the second row are zeros.
    """
    columns = np.zeros((*key.shape[:-2], key.shape[-1], 2), key.dtype)
    columns[..., 0] = key[..., 0, :]
    return columns, np.zeros((*key.shape[:-2], 2, width), key.dtype)


def attend_token(
    query: Real,
    key: Real,
    value: Real,
    memory: Real,
    normalizer: Real | None,
    *,
    feature_map: Any,
    scale: float | None,
) -> tuple[Real, Real, Real | None]:
    """Return the output of one token of linear attention, and the next state.

    Parameters
    ----------
    query, key, value : array (..., K), (..., K), (..., V)
        With the same leading axes, in the dtype of the state.
    memory, normalizer : array (..., K, V), (..., K) or None
        State before the token.
    feature_map : callable
        One that keeps the key dimension.
    scale : float or None
        Factor on the output; ignored with a normalizer.
    """
    query, key = _features(query, key, feature_map)
    size = value.shape[-1]
    # The normalizer is the memory of one more value, of ones.
    before = memory if normalizer is None else _joined(memory, normalizer)
    columns, rows = _outer_operands(key, before.shape[-1])
    rows[..., 0, :size] = value
    if normalizer is not None:
        rows[..., 0, size] = 1
    after = np.matmul(columns, rows)
    np.add(before, after, out=after)
    read = np.matmul(query, after)[..., 0, :]
    if normalizer is None:
        return (read if scale is None else read * scale), after, None
    memory, normalizer = after[..., :size], after[..., size]
    _remember(memory, normalizer, after)
    return read[..., :size] / read[..., size:], memory, normalizer


def _features(query: Real, key: Real, feature_map: Any) -> tuple[Real, Real]:
    """Return the features of both as rows ``(..., 1, K)``."""
    known = in_place(feature_map) if feature_map is elu_plus_one else None
    if known is None:
        query, key = feature_map(query), feature_map(key)
        return query[..., None, :], key[..., None, :]
    both = np.empty((2, *query.shape[:-1], 1, query.shape[-1]), query.dtype)
    both[0, ..., 0, :], both[1, ..., 0, :] = query, key
    features = np.zeros(both.shape, both.dtype)
    known.write(both, features, both, features)
    return features[0], features[1]


# States are views of one array, all its columns but the last and the last: the next
# step takes the array. By the number of the first view, as long as it lives.
_MADE: dict[int, tuple[ref[Real], ref[Real], Real]] = {}


def _remember(memory: Real, normalizer: Real, columns: Real) -> None:
    """Note that a state is a view of these columns."""
    number = id(memory)
    gone: Any = partial(_forget, number)
    _MADE[number] = ref(memory, gone), ref(normalizer), columns


def _forget(number: int, _: ref[Real]) -> None:
    _MADE.pop(number, None)


def _joined(memory: Real, normalizer: Real) -> Real:
    """Return the memory with the normalizer as its last column."""
    made = _MADE.get(id(memory))
    if made is not None and made[0]() is memory and made[1]() is normalizer:
        return made[2]
    return np.concatenate([memory, normalizer[..., None]], axis=-1)
