"""Write the tables of docs/gpu.md with what is known of kernels without a GPU.

    python tools/kernel_predictions.py            # write
    python tools/kernel_predictions.py --check    # compare

Registers and shared memory are those of the record (`kernel_budgets.json`, sm_90), and
times are predictions of `linkern.kernels.cuda.plan.cost`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernel_budgets import FILE, LOT, REGISTERS
from pages import write_or_compare

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
HEADS, TOKENS = 128, 4096
DTYPES = {2: "bfloat16", 4: "float32"}


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
    lines = [*predictions(), "", *kernels()]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
