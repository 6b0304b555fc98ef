"""The catalogue of the unseen set, and what its kernels share.

A kernel is made with its defect or without: nothing else differs between the two.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from linkern.testing.kernels.mutants import Mutant
from tests.testing.diagnosis.unseen.draw import drawn

__all__ = [
    "REPAIRED",
    "UNSEEN",
    "column",
    "log_decays",
    "row",
    "scaled",
    "started",
    "unseen",
    "wide",
]

Array = Any
Kernel = Callable[..., Any]

UNSEEN: dict[str, Mutant] = {}
# The same kernels without their defects.
REPAIRED: dict[str, Mutant] = {}
_PRECEDENTS = {(op, defect): precedent for _, op, precedent, defect in drawn()}


def unseen(
    op: str, defect: str, check: str = "value_on_reals", **contract: Any
) -> Callable[[Callable[[bool], Kernel]], Callable[[bool], Kernel]]:
    """Enter the kernel that a function makes, with its defect and without.

    Parameters
    ----------
    op, defect : str
        Operator and defect as they were drawn.
    check : str
        The check that it fails.
    **contract
        Fields of the contract that it declares.
    """
    precedent = _PRECEDENTS[op, defect]

    def enter(make: Callable[[bool], Kernel]) -> Callable[[bool], Kernel]:
        name = make.__name__
        assert name not in UNSEEN, name
        for catalogue, faulty in ((UNSEEN, True), (REPAIRED, False)):
            catalogue[name] = Mutant(
                name, op, make(faulty), precedent, (check,), contract=contract
            )
        return make

    return enter


def wide(x: Array) -> Array:
    """Return an array in float32 or wider."""
    return x.astype(np.result_type(x.dtype, np.float32))


def scaled(query: Array, scale: float | None) -> Array:
    """Return the query times its scale, ``K^-0.5`` if there is none."""
    q = wide(query)
    return q * q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)


def started(state: Array | None, key: Array, value: Array) -> Array:
    """Return an initial state, or zeros of one."""
    if state is not None:
        return wide(state)
    size = (*value.shape[:-2], key.shape[-1], value.shape[-1])
    return np.zeros(size, value.dtype)


def log_decays(log_decay: Array | None, like: Array) -> Array:
    """Return gates with a channel axis; zeros if there are none."""
    if log_decay is None:
        return np.zeros_like(like)
    g = wide(log_decay)
    return g if g.ndim == like.ndim else g[..., None]


def column(x: Array, t: int) -> Array:
    """Return a token as a column."""
    return x[..., t, :, None]


def row(x: Array, t: int) -> Array:
    """Return a token as a row."""
    return x[..., t, None, :]
