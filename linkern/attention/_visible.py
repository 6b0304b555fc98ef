"""Attention mask: the causal order combined with a mask of the caller."""

from typing import Any

from linkern.array import device_of, namespace
from linkern.typing import Array

__all__ = ["positions", "visible_keys"]


def positions(start: int, stop: int, *, like: Array) -> Any:
    """Return the integers from `start` to `stop`, on the device of `like`."""
    xp = namespace(like)
    return xp.arange(start, stop, device=device_of(like))


def visible_keys(
    mask: Array | None, query: Array, key: Array, keys: slice, *, causal: bool
) -> Array | None:
    """Return the mask of some `keys` for each query; None if it sees all of them.

    The queries are the last tokens: query t has the position ``S - T + t``.
    """
    visible = mask
    if mask is not None and mask.shape[-1] != 1:
        visible = mask[..., keys]
    if not causal:
        return visible
    length, source = query.shape[-2], key.shape[-2]
    rows = positions(source - length, source, like=key)[:, None]
    order = rows >= positions(keys.start, keys.stop, like=key)[None, :]
    return order if visible is None else order & visible  # type: ignore[no-any-return]
