"""Buffers for the way back: a few chunks of a few heads, and what is done to rows.

All that a block needs is allocated once, and what is needed for a moment shares places.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy.chunk_linear import Shape, as_matrices
from linkern.kernels.numpy.decay import TokenDecay
from linkern.kernels.numpy.decay_grad import PairSums
from linkern.kernels.numpy.features import InPlace
from linkern.kernels.numpy.workspace import Buffers

__all__ = ["Adjoint"]

Real = NDArray[Any]


class Adjoint:
    """Buffers for a few chunks of a few heads, which are the first two axes of each.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Of the computation.
    feature_map : InPlace or None
        None if features are given.
    normalize, decays, causal : bool
        As of a `Block` on the way there.
    scale : float or None
        Factor on the output of rows that are not divided.
    other : Adjoint or None
        Buffers that are not used at the same time: their memory is, as far as it goes.
    """

    # Rows of the tokens that the block is at: in buffers, or where they lie.
    keys: Real
    values: Real
    queries: Real
    #: Cotangents of what was read, before it was divided or scaled.
    reading: Real
    #: What is left of the keys at the end of each chunk.
    kept_keys: Real

    def __init__(
        self,
        shape: Shape,
        dtype: Any,
        feature_map: InPlace | None,
        *,
        normalize: bool,
        decays: bool,
        causal: bool,
        scale: float | None,
        other: "Adjoint | None" = None,
    ) -> None:
        self.buffers: Buffers = Buffers(dtype, None if other is None else other.buffers)
        self.shape, self.dtype, self.feature_map = shape, np.dtype(dtype), feature_map
        self.normalize, self.causal, self.scale = normalize, causal, scale
        heads, chunks, size, features, values = shape
        self._make_states()
        self._make_rows()
        self.zeros = np.zeros((size, features), dtype)
        self.ones = np.ones((max(size, features * (values + 1), values), 1), dtype)
        self.decay, self.pair_sums = None, None
        if decays:
            self.decay = TokenDecay(heads, chunks, size, dtype)
            self.pair_sums = PairSums(heads, chunks, size, dtype)
            self.entered, self.left = (self._empty(size, features) for _ in range(2))
        if causal:
            # Turned rows are used up before their places are.
            lead = (heads, chunks)
            self.turned_keys = self.narrow.reshape(*lead, features, size)
            self.turned_values = self.value_spare.reshape(*lead, values, size)
            self.pairs, self.pair_cotangent, self.shares = (
                self._empty(size, size) for _ in range(3)
            )
            self.mask = -np.tri(size, dtype=f"i{self.dtype.itemsize}")

    def _empty(self, *axes: int) -> Real:
        return self.buffers.empty(*self.shape[:2], *axes)

    def _make_states(self) -> None:
        # Memories lie transposed before the chunks, and their cotangents upright behind
        # them, so that products are plain ones; a normalizer is one more row of each.
        heads, chunks, _, features, values = self.shape
        rows = values + self.normalize
        states, cotangents = (
            self.buffers.empty(heads, chunks + 1, rows * features) for _ in range(2)
        )
        self.first, self.last = states[:, 0], states[:, chunks]
        self.up = [(i, states[:, i], states[:, i + 1]) for i in range(chunks)]
        turned = states.reshape(heads, chunks + 1, rows, features)
        self.before, self.after = turned[:, :-1], turned[:, 1:]
        self.outermost, self.innermost = cotangents[:, chunks], cotangents[:, 0]
        self.back = [
            (i, cotangents[:, i + 1], cotangents[:, i]) for i in reversed(range(chunks))
        ]
        self.lost = _parts(cotangents[:, 1:], features, values)
        self.told = _parts(cotangents[:, :-1], features, values)
        self.turned = self._empty(rows, features)
        self.products = self._empty(rows, features)
        self.step = self.buffers.empty(heads, rows * features)

    def _make_rows(self) -> None:
        _, _, size, features, values = self.shape
        self.key_rows, self.query_rows, self.spare, self.found, self.narrow = (
            self._empty(size, features) for _ in range(5)
        )
        self.wide_values, self.wide_cotangent, self.value_spare, self.narrow_values = (
            self._empty(size, values) for _ in range(4)
        )
        self.weights, self.weight_cotangent, self.sums = (
            self._empty(size, 1) for _ in range(3)
        )

    def forget(self) -> None:
        """Let go of what belongs to a caller."""
        self.keys = self.kept_keys = self.key_rows
        self.values, self.queries = self.wide_values, self.query_rows
        self.reading = self.wide_cotangent

    def featured(self, rows: Real, place: Real) -> Real:
        """Return the features of queries or keys, in `place` or where they are."""
        if self.feature_map is None:
            return as_matrices(rows, place)
        wide = as_matrices(rows, self.spare)
        self.feature_map.write(wide, place, self.spare, self.zeros)
        return place

    def through_features(self, found: Real, features: Real, output: Real) -> None:
        """Write the gradient of what the features were made of."""
        if self.feature_map is not None:
            self.feature_map.slope(features, self.spare)
            found = np.multiply(found, self.spare, out=self.place(output, found))
        if found is not output:
            np.copyto(output, found, casting="unsafe")

    def place(self, output: Real, buffer: Real) -> Real:
        """Return where to compute an output: there, or in a buffer if it is narrow."""
        return output if output.dtype == self.dtype else buffer

    def seen(self, pairs: Real) -> None:
        """Let pairs that are not seen vanish, even if they are infinite."""
        bits = pairs.view(self.mask.dtype)
        np.bitwise_and(bits, self.mask, out=bits)

    def row_sums(self, rows: Real, out: Real) -> None:
        """Sum along the last axis."""
        np.matmul(rows, self.ones[: rows.shape[-1]], out=out)


def _parts(rows: Real, features: int, values: int) -> tuple[Real, Real]:
    """Return the memories ``(..., K, V)``, and the normalizers as columns."""
    memory = features * values
    upright = rows[..., :memory].reshape(*rows.shape[:-1], features, values, copy=False)
    return upright, rows[..., memory:, None]
