"""Log-decays of operators whose calls take none: one number for each head."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "lightning_decays",
    "lightning_log_decay",
    "retention_decays",
    "retention_log_decay",
]

Real = NDArray[np.float64]
Inputs = Mapping[str, Real | None]


def retention_log_decay(heads: int) -> Real:
    """Return ``log(1 - 2^(-5-h))`` for every head.

    Examples
    --------
    >>> float(np.exp(retention_log_decay(1)[0]))
    0.96875
    """
    return np.asarray(np.log1p(-(2.0 ** -(5.0 + np.arange(heads)))))


def lightning_log_decay(heads: int, layer: int = 0, layers: int = 1) -> Real:
    """Return ``-(8 / H)(1 - layer / layers) h`` for every head h.

    Examples
    --------
    >>> lightning_log_decay(2)
    array([-0., -4.])
    """
    return np.asarray(-(8.0 / heads) * (1 - layer / layers) * np.arange(heads))


def retention_decays(inputs: Inputs) -> Real:
    """Return the decays of RetNet for the heads of a call."""
    return retention_log_decay(_heads(inputs))


def lightning_decays(inputs: Inputs) -> Real:
    """Return the decays of Lightning Attention for the heads of a call."""
    return lightning_log_decay(_heads(inputs))


def _heads(inputs: Inputs) -> int:
    value = inputs["value"]
    assert value is not None
    return int(value.shape[-3])
