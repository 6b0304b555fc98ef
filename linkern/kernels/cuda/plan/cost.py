"""Predicted time of `chunk_fwd.cu`: instructions, warps that wait, and bytes.

A prediction and no measurement. Of one token of a head a block executes warp
instructions for products of tensor cores and for numbers that pass registers on their
way to these. A multiprocessor has four schedulers; each issues an instruction every so
many cycles, fewer if more warps take turns. Blocks that do not fit at once follow. What
copying the inputs and outputs takes is the least.

The constants are fitted to three reports of Nsight Compute on an H100 80GB (HBM3) at
commit 830c466, of calls with elu(x) + 1 in bfloat16 and float32. float16, decays and
other maps are not told apart: shapes of one call are compared, not calls.
tests/kernels/cuda/test_cost.py has the reports, other times of that run, and errors.
"""

from typing import NamedTuple

from linkern.kernels.cuda.plan.tiles import Sizes, TileShape, padded_size, slices

__all__ = [
    "CARDS",
    "CLOCK",
    "COPYING",
    "REGISTERS",
    "Prediction",
    "instructions",
    "predicted",
    "products",
]

# Cards by their multiprocessors.
CARDS = {108: "A100", 132: "H100 and H200", 148: "B200"}
# Cycles and bytes of a second on the H100.
CLOCK, COPYING = 1.75e9, 2985e9
# Registers of a thread, the most of all kernels of a shape that are recorded for sm_90
# (tools/kernel_budgets.json): by itemsize, features, columns, tokens and warps.
REGISTERS = {
    (2, 64, 64, 64, 4): 241,
    (2, 64, 64, 64, 8): 166,
    (2, 128, 64, 64, 8): 182,
    (2, 128, 128, 64, 8): 251,
    (4, 64, 64, 32, 4): 211,
    (4, 64, 64, 32, 8): 154,
}
# Of a multiprocessor, and the lot in which a thread gets them.
_ALL_REGISTERS, _LOT = 65536, 8
# Bytes of shared memory that the system takes of each block.
_RESERVED = 1024
_SCHEDULERS = 4

# Warp instructions for a product of 16 x 8 x 16, and for 32 numbers of rows that are
# mapped or split, by itemsize.
_PRODUCT, _NUMBERS = 4.36, {2: 18.8, 4: 30.1}
# Cycles from an instruction of a scheduler to the next: its warps share the second
# part. Chains of split numbers are longer.
_ISSUE, _WAIT, _CHAIN = 1.31, 1.87, {2: 1.0, 4: 1.29}


class Prediction(NamedTuple):
    """Prediction of the model for a kernel.

    Parameters
    ----------
    instructions : float
        Warp instructions of a token of a head.
    resident : int
        Blocks that a multiprocessor runs at once.
    cycles : float
        Of the busiest multiprocessor, without those that wait for memory.
    seconds : float
        On the H100 of the fit, if the card were one with so many multiprocessors: no
        less than copying takes there.
    """

    instructions: float
    resident: int
    cycles: float
    seconds: float


def products(shape: TileShape, itemsize: int) -> float:
    """Return the products of 16 x 8 x 16 of a token in one slice of the columns.

    Those that sum keys for the normalizer are not among them.
    """
    features, columns = shape.features // 16, shape.columns // 16
    tiles = shape.tokens // 16
    pairs = tiles * (tiles + 1) // 2
    # Warps of a tile that have different columns each compute its scores.
    sharing = min(shape.warps // tiles, columns)
    blocks = (
        2 * tiles * features * columns  # Q S and K^T V
        + sharing * pairs * features  # Q K^T
        + pairs * columns  # scores V
    )
    parts = 6 if itemsize == 4 else 1
    return 2 * parts * blocks / shape.tokens


def instructions(sizes: Sizes, shape: TileShape) -> float:
    """Return the warp instructions of one token of a head, in all slices."""
    numbers = 2 * shape.features + (shape.columns if sizes.itemsize == 4 else 0)
    each = _PRODUCT * products(shape, sizes.itemsize)
    return slices(sizes, shape) * (each + _NUMBERS[sizes.itemsize] * numbers / 32)


def predicted(
    sizes: Sizes, shape: TileShape, multiprocessors: int, shared: int
) -> Prediction | None:
    """Return the prediction for a call without segments; None for unknown shapes."""
    registers = REGISTERS.get((sizes.itemsize, *shape))
    if registers is None or padded_size(sizes.features) != sizes.features:
        return None
    by_registers = _ALL_REGISTERS // (-(-registers // _LOT) * _LOT * 32 * shape.warps)
    taken = shape.shared_bytes(sizes.itemsize) + _RESERVED
    resident = max(1, min(by_registers, (shared + _RESERVED) // taken))
    each = instructions(sizes, shape)
    of_block = each / slices(sizes, shape) * sizes.tokens / _SCHEDULERS
    blocks = -(-sizes.heads * slices(sizes, shape) // multiprocessors)
    full, rest = divmod(blocks, resident)
    cycles = 0.0
    for together in (*[resident] * full, *([rest] if rest else [])):
        warps = together * shape.warps / _SCHEDULERS
        interval = _CHAIN[sizes.itemsize] * (_ISSUE + _WAIT / warps)
        cycles += together * of_block * interval
    rows = 2 * (sizes.features + sizes.values) * sizes.itemsize
    copying = sizes.heads * sizes.tokens * rows / COPYING
    return Prediction(each, resident, cycles, max(cycles / CLOCK, copying))
