"""Tiles of a head that blocks of threads of `chunk_fwd.cu` can process."""

from typing import NamedTuple

from linkern.kernels.cuda.layouts import IO, instance

__all__ = [
    "MORE",
    "SAFE",
    "SHARED",
    "Sizes",
    "TileShape",
    "padded_size",
    "safe_shape",
    "slices",
]

# Shared memory per block of every GPU since compute capability 8.0, in bytes.
SHARED = 99 << 10


class Sizes(NamedTuple):
    """Sizes of a call.

    Parameters
    ----------
    itemsize : int
        Bytes of an entry of queries, keys, values and outputs.
    heads, tokens : int
        Of all batches; of a head.
    features, values : int
        K and V.
    """

    itemsize: int
    heads: int
    tokens: int
    features: int
    values: int


class TileShape(NamedTuple):
    """Tile of a head that a block of threads processes; see chunk_tiles.cuh.

    Parameters
    ----------
    features, columns : int
        All features of a head, and columns of its values: powers of two.
    tokens : int
        Of a chunk.
    warps : int
        Of a block.
    """

    features: int
    columns: int
    tokens: int
    warps: int

    def name(self, dtype: str) -> str:
        """Return the type in C for the dtype of the rows."""
        return instance("TileShape", IO[dtype], *self)

    def shared_bytes(self, itemsize: int) -> int:
        """Return the size of the struct ``FwdStorage``."""
        operand_bytes = 6 if itemsize == 4 else 2
        entries = self.tokens * (2 * self.features + self.columns)
        tiles = entries * (itemsize + operand_bytes)
        state = self.features * self.columns * operand_bytes
        output = self.tokens * self.columns * itemsize
        decays = self.tokens * (24 + 2) + self.tokens // 16
        normalizer = 3 * 2 * (self.features + 8)  # three parts, with a pitch
        return tiles + state + output + normalizer + 4 * (decays + self.warps)


# (columns, tokens, warps) by itemsize and features, the fastest first. The first has
# many columns, so that queries and keys are read less often; the last fits every GPU.
SAFE = {
    2: {
        16: [(64, 64, 4)],
        32: [(64, 64, 4)],
        64: [(64, 64, 4)],
        128: [(64, 64, 8), (32, 64, 4)],
        256: [(32, 64, 8), (32, 32, 4)],
    },
    4: {
        16: [(32, 64, 4)],
        32: [(32, 64, 4)],
        64: [(64, 32, 4)],
        128: [(64, 32, 8), (32, 16, 4)],
        256: [(32, 16, 8)],
    },
}

# Further ones for whole sizes, of more warps: whether these are faster depends on the
# number of blocks for each multiprocessor.
MORE = {
    2: {64: [(64, 128, 8)], 128: [(128, 64, 8)]},
    4: {64: [(64, 64, 8), (64, 32, 8)]},
}


def safe_shape(sizes: Sizes, shared: int = SHARED) -> TileShape | None:
    """Return the first tile shape that fits so much shared memory; None for none."""
    size = padded_size(sizes.features)
    for columns, tokens, warps in SAFE.get(sizes.itemsize, {}).get(size, []):
        columns_needed = min(columns, padded_size(sizes.values))
        shape = TileShape(size, columns_needed, tokens, warps)
        if shape.shared_bytes(sizes.itemsize) <= shared:
            return shape
    return None


def slices(sizes: Sizes, shape: TileShape) -> int:
    """Return the number of blocks that share the values of a head."""
    return -(-sizes.values // shape.columns)


def padded_size(size: int) -> int:
    """Return the smallest power of two that is at least `size` and 16."""
    return max(16, 1 << (size - 1).bit_length())
