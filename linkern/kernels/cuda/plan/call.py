"""A call of causal linear attention as planners get it."""

from typing import Any, NamedTuple, TypeAlias

from linkern.kernels.cuda.launch import Array
from linkern.kernels.cuda.layouts import sizes

__all__ = ["Call", "State"]

# A memory (K, V) and a normalizer (K) for each head; None for zeros or if not needed.
State: TypeAlias = tuple[Array | None, Array | None]


class Call(NamedTuple):
    """Inputs as arrays of ``(batch, heads, T, D)``, and options.

    Parameters
    ----------
    query, key, value : array (B, H, T, K), (B, H, T, K), (B, H, T, V)
        Of one dtype; see `linkern.kernels.cuda.layouts.by_head`.
    log_decay : array (B, H, T, 1) or None
        In the dtype of the computation, or without gradients in that of the rows.
    memory, normalizer : array (B, H, K, V), (B, H, K) or None
        State before the first token, in C order; None for zeros.
    feature_map : str
        Its name in common.cuh.
    normalize : bool
        True if rows are divided by their weights.
    scale : float
        Factor on rows that are not divided.
    """

    query: Array
    key: Array
    value: Array
    log_decay: Array | None
    memory: Array | None
    normalizer: Array | None
    feature_map: str
    normalize: bool
    scale: float

    @property
    def heads(self) -> int:
        """Number of heads of all batches together."""
        batch, heads = self.query.shape[:2]
        return int(batch * heads)

    @property
    def sizes(self) -> Any:
        """The struct ``Sizes``."""
        _, heads, tokens, features = self.query.shape
        return sizes(heads, tokens, features, self.value.shape[-1])
