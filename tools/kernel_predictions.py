"""Write the tables of docs/gpu.md with what is known of kernels without a GPU.

    python tools/kernel_predictions.py            # write
    python tools/kernel_predictions.py --check    # compare

Registers and shared memory are those of the records (`kernel_budgets.json` and
`kernel_instructions.json`, sm_90), and times are predictions of
`linkern.kernels.cuda.plan.cost`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kernel_instructions
from kernel_budgets import FILE, LOT, REGISTERS, digest, label
from kernel_calls import planned_calls
from kernel_instructions import Loop, as_loop
from pages import write_or_compare

from linkern.kernels.cuda.launch import Launch
from linkern.kernels.cuda.plan import cost
from linkern.kernels.cuda.plan.choice import choose
from linkern.kernels.cuda.plan.tiles import Sizes, TileShape, safe_shape

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "gpu.md"
BEGIN, END = "<!-- begin kernels -->\n", "<!-- end kernels -->"
# Shared memory of a multiprocessor of an H100 and of a block at most, and what the
# system takes of each block.
ALL_SHARED, MOST_SHARED, RESERVED = 228 << 10, 227 << 10, 1 << 10
CARD = 132
# Where warps have two kinds of work, one of each scheduler waits for the others.
SCHEDULERS = 4
COUNT = "python tools/kernel_instructions.py --write"
HEADS, TOKENS = 128, 4096
DTYPES = {2: "bfloat16", 4: "float32"}
ITEMSIZES = {name: itemsize for itemsize, name in DTYPES.items()}


def predictions() -> Iterator[str]:
    """Yield a table of the tile shapes of `chunk_fwd`, before and after the model."""
    yield (
        "| `chunk_fwd`: dtype, K = V | columns, tokens, warps | registers | shared, KB "
        "| blocks a multiprocessor | warp instructions of a token and head "
        "| predicted, us | share of copying | |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, (registers, _) in cost.KERNELS.items():
        itemsize, shape = key[0], TileShape(*key[1:])
        sizes = Sizes(itemsize, HEADS, TOKENS, shape.features, shape.features)
        prediction = cost.predicted(sizes, shape, CARD, MOST_SHARED)
        choice = choose(sizes, CARD, MOST_SHARED)
        assert prediction is not None
        assert choice is not None
        marks = {safe_shape(sizes, MOST_SHARED): "before"} | {choice.shape: "now"}
        copied = 4 * itemsize * shape.features * HEADS * TOKENS / cost.COPYING
        cells = (
            f"{DTYPES[itemsize]}, {shape.features}",
            f"{shape.columns}, {shape.tokens}, {shape.warps}",
            registers,
            f"{shape.shared_bytes(itemsize) / 1024:.0f}",
            prediction.resident,
            f"{prediction.instructions:.0f}",
            f"{1e6 * prediction.seconds:.0f}",
            f"{100 * copied / prediction.seconds:.0f} %",
            marks.get(shape, ""),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def counted_calls() -> Iterator[str]:
    """Yield a table of the kernels of whole calls, by instructions counted in code."""
    yield (
        "| call, K = V | kernel: columns, tokens, warps | registers | shared, KB "
        "| blocks a multiprocessor | warp instructions of a token and head, at most "
        "| predicted, us, at most |"
    )
    yield "|---|---|---|---|---|---|---|"
    recorded = counts()
    for call in planned_calls():
        gradients = "gradients of " if call.gradients else ""
        for launch in call.launches:
            if launch.file == "state_passing":
                continue  # no rows: a few per cent of a call
            kernel = label(launch.file, launch.kernel)
            if kernel not in recorded:
                msg = f"{kernel} was not counted: {COUNT}"
                raise SystemExit(msg)
            entry = recorded[kernel]
            name = launch.kernel.partition("<")[0]
            needs = {**entry, "threads": launch.threads, "dynamic": launch.shared}
            resident = residents(needs)
            most = most_instructions(launch, as_loop(entry["loops"]))
            shape = most.shape
            # Chains of split numbers do not show where warps wait for each other.
            cycles = cost.cycles_of(
                2 if most.waiting else ITEMSIZES[call.dtype],
                *(shape.warps - most.waiting, most.instructions),
                *(-(-launch.blocks // CARD), resident),
            )
            cells = (
                f"{gradients}`{call.operator}`, {call.dtype}, {call.dim}",
                f"`{name}`: {shape.columns}, {shape.tokens}, {shape.warps}",
                entry["registers"],
                f"{(entry['static'] + launch.shared) / 1024:.0f}",
                resident,
                f"{most.instructions * launch.blocks / (HEADS * TOKENS):.0f}",
                f"{1e6 * cycles / cost.CLOCK:.0f}",
            )
            yield f"| {' | '.join(map(str, cells))} |"


def counts() -> dict[str, Any]:
    """Return the record of `kernel_instructions.py` by kernel, if it is current."""
    recorded = json.loads(kernel_instructions.FILE.read_text(encoding="utf-8"))
    for file, text in recorded["texts"].items():
        if text != digest(file):
            msg = f"{file} is not the text that was counted: {COUNT}"
            raise SystemExit(msg)
    kernels: dict[str, Any] = recorded["kernels"]
    return kernels


class MostInstructions(NamedTuple):
    """The most that the warps of a block execute.

    Parameters
    ----------
    shape : TileShape
        Of the kernel.
    waiting : int
        Warps of the block that wait for others of it.
    instructions : float
        Of all warps of the block.
    """

    shape: TileShape
    waiting: int
    instructions: float


def most_instructions(launch: Launch, kernel: Loop) -> MostInstructions:
    """Return what a launch of `planned_calls` executes, by the loops of its kernel."""
    numbers = re.search(r"TileShape<\w+, (.*?)>", launch.kernel)
    assert numbers is not None
    shape = TileShape(*map(int, numbers[1].split(", ")))
    name = launch.kernel.partition("<")[0]
    panels = shape.features // shape.columns  # K = V
    slices = 1 if name == "chunk_delta_grads" else panels
    chunks = HEADS * TOKENS * slices / shape.tokens / launch.blocks
    waiting = 0
    if name == "chunk_fwd":
        of_chunk = shape.warps * kernel.inside[0].all_instructions
    elif name == "chunk_bwd":
        sweeps = kernel.inside[0].inside
        of_chunk = shape.warps * sum(x.all_instructions for x in sweeps)
    elif name == "chunk_delta_grads":
        panel, *once = (x.all_instructions for x in kernel.inside)
        of_chunk = shape.warps * (kernel.instructions + panels * panel + sum(once))
    else:
        others, columns = (x.all_instructions for x in kernel.inside[-2:])
        column_warps, waiting = shape.columns // 16, SCHEDULERS
        of_chunk = column_warps * columns + (shape.warps - column_warps) * others
    return MostInstructions(shape, waiting, of_chunk * chunks)


def residents(needs: Mapping[str, int]) -> int:
    """Return the blocks of a kernel that a multiprocessor runs at once."""
    lots = -(-needs["registers"] // LOT) * LOT * -(-needs["threads"] // 32) * 32
    shared = needs["static"] + needs["dynamic"] + RESERVED
    return min(REGISTERS // lots, ALL_SHARED // shared, 2048 // needs["threads"], 32)


def kernels() -> Iterator[str]:
    """Yield a table of all kernels: the least and the most of those recorded."""
    yield "| kernel | recorded | registers | shared, KB | blocks a multiprocessor |"
    yield "|---|---|---|---|---|"
    recorded = json.loads(FILE.read_text(encoding="utf-8"))["targets"]["sm_90"]
    by_file: dict[str, list[Mapping[str, int]]] = {}
    for name, needs in recorded.items():
        by_file.setdefault(name.partition(": ")[0], []).append(needs)
    for file, all_needs in sorted(by_file.items()):
        registers = [needs["registers"] for needs in all_needs]
        shared = [(x["static"] + x["dynamic"]) // 1024 for x in all_needs]
        blocks = [residents(needs) for needs in all_needs]
        ranges = (_range(numbers) for numbers in (registers, shared, blocks))
        yield f"| `{file}` | {len(all_needs)} | {' | '.join(ranges)} |"


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def page() -> str:
    """Return docs/gpu.md with the tables as they are now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [*predictions(), "", *counted_calls(), "", *kernels()]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
