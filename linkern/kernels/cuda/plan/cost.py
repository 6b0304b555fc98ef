"""Predicted time of `chunk_fwd.cu`: instructions, warps that wait, and bytes.

A prediction and no measurement. Of one token of a head a block executes so many warp
instructions, which are counted. A multiprocessor has four schedulers; each issues an
instruction every so many cycles, fewer if more warps take turns. Blocks that do not fit
at once follow. What copying the inputs and outputs takes is the least.

The cycles are fitted to three reports of Nsight Compute on an H100 80GB (HBM3) at
commit 830c466, of calls with elu(x) + 1 in bfloat16 and float32, and to a time of
commit 3c576036: with the instructions that those kernels had. float16, decays and other
maps are not told apart: shapes of one call are compared, not calls.
tests/kernels/cuda/test_cost.py has the reports, other times, also of later kernels, and
errors.
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
    "cycles_of",
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
        bfloat16 and float32. Those of (64, 128, 8) and (128, 64, 8) in bfloat16 and of
        (64, 64, 8) in float32 were counted by Nsight Compute at commit 1a018045. Others
        are the length of the loop over chunks in the machine code, less what warps of
        early tiles skip, times 1.03 in bfloat16 and 1.02 in float32, which is what was
        counted for those three.
    """

    registers: int
    instructions: float


# By itemsize, features, columns, tokens and warps.
KERNELS = {
    (2, 64, 64, 64, 4): Counted(226, 83.6),
    (2, 64, 64, 128, 8): Counted(239, 93.0),
    (2, 128, 64, 64, 8): Counted(187, 177.6),
    (2, 128, 128, 64, 8): Counted(247, 241.9),
    (4, 64, 64, 32, 4): Counted(212, 258.0),
    (4, 64, 64, 32, 8): Counted(157, 328.0),
    (4, 64, 64, 64, 8): Counted(194, 267.1),
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
    blocks = -(-sizes.heads * slices(sizes, shape) // multiprocessors)
    cycles = cycles_of(
        *(sizes.itemsize, shape.warps, counted.instructions * chunks * shape.tokens),
        *(blocks, resident),
    )
    rows = 2 * (sizes.features + sizes.values) * sizes.itemsize
    copying = sizes.heads * sizes.tokens * rows / COPYING
    each = slices(sizes, shape) * counted.instructions
    return Prediction(each, resident, cycles, max(cycles / CLOCK, copying))


def cycles_of(
    itemsize: int, warps: int, instructions: float, blocks: int, resident: int
) -> float:
    """Return the cycles that a multiprocessor needs for blocks of a kernel.

    Parameters
    ----------
    itemsize : int
        Of the rows.
    warps : int
        Of a block: those that do not wait for others of it.
    instructions : float
        Warp instructions of a block.
    blocks, resident : int
        Blocks of the multiprocessor, and how many of them it runs at once.
    """
    full, rest = divmod(blocks, resident)
    cycles = 0.0
    for together in (*[resident] * full, *([rest] if rest else [])):
        interval = _ISSUE + _WAIT / (together * warps / _SCHEDULERS)
        cycles += together * instructions / _SCHEDULERS * _CHAIN[itemsize] * interval
    return cycles
