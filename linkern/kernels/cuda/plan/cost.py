"""Predicted time of `chunk_fwd.cu`: instructions, warps that wait, and bytes.

A prediction and no measurement. Of one token of a head a block executes so many warp
instructions, which are counted. A multiprocessor has four schedulers; each issues an
instruction every so many cycles, fewer if more warps take turns. Blocks that do not fit
at once follow. What copying the inputs and outputs takes is the least.

The cycles are fitted to three reports of Nsight Compute on an H100 80GB (HBM3) at
commit 830c466, of calls with elu(x) + 1 in bfloat16 and float32, and to a time of
commit 3c576036. float16, decays and other maps are not told apart: shapes of one call
are compared, not calls. tests/kernels/cuda/test_cost.py has the reports, other times
of those runs, and errors.
"""

from typing import NamedTuple

from linkern.kernels.cuda.plan.tiles import Sizes, TileShape, padded_size, slices

__all__ = [
    "CARDS",
    "CLOCK",
    "COPYING",
    "KERNELS",
    "Counted",
    "Prediction",
    "predicted",
]

# Cards by their multiprocessors.
CARDS = {108: "A100", 132: "H100 and H200", 148: "B200"}
# Cycles and bytes of a second on the H100.
CLOCK, COPYING = 1.75e9, 2985e9


class Counted(NamedTuple):
    """Registers and instructions of the kernels of one shape.

    Parameters
    ----------
    registers : int
        Of a thread: the most of all kernels of the shape that are recorded for sm_90
        (tools/kernel_budgets.json).
    instructions : float
        Warp instructions of a token in one slice of the columns, with elu(x) + 1 in
        bfloat16 and float32, as Nsight Compute counted them. Those of two shapes that
        no GPU has run, (64, 128, 8) and (64, 64, 8) in float32, are the length of the
        loop over chunks in the machine code, less what warps of early tiles skip: for
        four other shapes that is within 2 % of what was counted.
    """

    registers: int
    instructions: float


# By itemsize, features, columns, tokens and warps.
KERNELS = {
    (2, 64, 64, 64, 4): Counted(211, 103.6),
    (2, 64, 64, 128, 8): Counted(229, 114.0),
    (2, 128, 64, 64, 8): Counted(177, 212.7),
    (2, 128, 128, 64, 8): Counted(240, 281.6),
    (4, 64, 64, 32, 4): Counted(183, 344.3),
    (4, 64, 64, 32, 8): Counted(148, 417.0),
    (4, 64, 64, 64, 8): Counted(180, 346.0),
}
# Of a multiprocessor, and the lot in which a thread gets them.
_ALL_REGISTERS, _LOT = 65536, 8
# Bytes of shared memory that the system takes of each block.
_RESERVED = 1024
_SCHEDULERS = 4

# Cycles from an instruction of a scheduler to the next: its warps share the second
# part. Chains of split numbers are longer.
_ISSUE, _WAIT, _CHAIN = 1.31, 1.87, {2: 1.0, 4: 1.22}


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


def predicted(
    sizes: Sizes, shape: TileShape, multiprocessors: int, shared: int
) -> Prediction | None:
    """Return the prediction for a call without segments; None for unknown shapes."""
    counted = KERNELS.get((sizes.itemsize, *shape))
    if counted is None or padded_size(sizes.features) != sizes.features:
        return None
    of_thread = -(-counted.registers // _LOT) * _LOT
    by_registers = _ALL_REGISTERS // (of_thread * 32 * shape.warps)
    taken = shape.shared_bytes(sizes.itemsize) + _RESERVED
    resident = max(1, min(by_registers, (shared + _RESERVED) // taken))
    chunks = -(-sizes.tokens // shape.tokens)
    of_block = counted.instructions * chunks * shape.tokens / _SCHEDULERS
    blocks = -(-sizes.heads * slices(sizes, shape) // multiprocessors)
    full, rest = divmod(blocks, resident)
    cycles = 0.0
    for together in (*[resident] * full, *([rest] if rest else [])):
        warps = together * shape.warps / _SCHEDULERS
        interval = _CHAIN[sizes.itemsize] * (_ISSUE + _WAIT / warps)
        cycles += together * of_block * interval
    rows = 2 * (sizes.features + sizes.values) * sizes.itemsize
    copying = sizes.heads * sizes.tokens * rows / COPYING
    each = slices(sizes, shape) * counted.instructions
    return Prediction(each, resident, cycles, max(cycles / CLOCK, copying))
