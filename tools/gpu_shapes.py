"""Time every tile shape of `chunk_fwd`, `chunk_delta` and `chunk_gla` on this card.

    python tools/gpu_shapes.py

B = 8, H = 16, 4096 tokens, the kernel alone: linear attention with elu(x) + 1 and sums
of weights, beside what the model predicts; the gated delta rule; and Kimi delta
attention, with a decay for each channel. Results of a shape are compared with those of
the first. A shape that is faster than the one marked *picked* says that the planner is
wrong here.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from statistics import median
from typing import Any

import numpy as np

from linkern import feature_maps
from linkern.bench.cuda.clocks import CuPyClock, DeviceCalls
from linkern.bench.cuda.machine import require_device
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import call_of
from linkern.kernels.cuda.launch import CuPyDevice, Device, Launch
from linkern.kernels.cuda.plan import chunk_delta, chunk_fwd, chunk_gla, cost
from linkern.kernels.cuda.plan.choice import Choice, choose
from linkern.kernels.cuda.plan.tiles import MORE, Sizes, TileShape, safe_shape
from linkern.testing import UsageError
from linkern.testing.target.frameworks import numpy_dtype

# Shapes that the planner does not know, by itemsize and K: one that it picked until
# others had fewer instructions, and blocks of four warps of a scheduler.
UNKNOWN = {(2, 64): [(64, 64, 8), (64, 64, 16)], (4, 64): [(64, 64, 16)]}
FORWARD = (("bfloat16", 64), ("float16", 64), ("bfloat16", 128), ("float32", 64))
# Of the delta rule: dtype, K, V, and columns, tokens and warps of a block.
DELTA = (
    ("bfloat16", 64, 64, [(64, 32, 8), (64, 16, 6)]),
    ("bfloat16", 64, 128, [(64, 32, 8), (128, 32, 12)]),
    ("bfloat16", 128, 128, [(64, 32, 8), (128, 16, 10), (128, 32, 12)]),
    ("float16", 64, 64, [(64, 32, 8), (64, 16, 6)]),
    ("float16", 64, 128, [(64, 32, 8), (128, 32, 12)]),
    ("float16", 128, 128, [(64, 32, 8), (128, 16, 10), (128, 32, 12)]),
    ("float32", 64, 64, [(64, 32, 8), (64, 16, 6)]),
    ("float32", 64, 128, [(64, 32, 8), (128, 32, 12)]),
    ("float32", 128, 128, [(64, 16, 6), (128, 16, 10)]),
)
# The same of Kimi delta attention.
KDA = (
    ("bfloat16", 64, 64, [(64, 16, 8), (64, 16, 12)]),
    ("bfloat16", 64, 128, [(64, 16, 8), (128, 16, 12), (128, 16, 16)]),
    ("bfloat16", 128, 128, [(64, 16, 12), (128, 16, 12)]),
    ("float32", 64, 128, [(64, 16, 8), (128, 16, 12)]),
)
LEAD, TOKENS, ROUNDS = (8, 16), 4096, 5
# Largest difference of two shapes, relative to the largest number.
NEAR = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-5}

Timed = Callable[[Callable[[], object]], float]
Case = tuple[str, int, int, list[tuple[int, int, int]]]


def shapes_of(sizes: Sizes, shared: int) -> list[TileShape]:
    """Return the safe shape, and all others that fit."""
    key = sizes.itemsize, sizes.features
    others = [*MORE.get(key[0], {}).get(key[1], ()), *UNKNOWN.get(key, ())]
    shapes = [safe_shape(sizes, shared), *(TileShape(key[1], *x) for x in others)]
    return [x for x in shapes if x and x.shared_bytes(sizes.itemsize) <= shared]


class Shapes:
    """Times the launches of one case, and compares their outputs with the first one.

    Parameters
    ----------
    case : str
        Begins each line.
    dtype : str
        Of the outputs.
    device : Device
        Runs the launches.
    timed : callable
        Returns the seconds of a call.
    """

    def __init__(self, case: str, dtype: str, device: Device, timed: Timed) -> None:
        self._case, self._device, self._timed = case, device, timed
        self._near, self._first = NEAR[dtype], None

    def line(self, shape: TileShape, launch: Launch, output: Any, *remarks: str) -> str:
        """Run a launch of a shape that writes `output`; "WRONG" if that is."""
        seconds = self._timed(lambda: self._device.launch(launch))
        wide = output.astype(np.float32)
        first = self._first = wide if self._first is None else self._first
        error = float(abs(wide - first).max() / abs(first).max())
        numbers = ", ".join(map(str, shape[1:]))
        words = [f"{self._case}, {numbers}: {1e6 * seconds:.0f} us", *remarks]
        words += [] if error <= self._near else [f"WRONG by {error:.2g}"]
        return " ".join(words)


def forward_rows(xp: Any, device: Device, timed: Timed) -> Iterator[str]:
    """Yield a line for each shape of linear attention."""
    for dtype, dim in FORWARD:
        rng = np.random.default_rng(0)
        kind = numpy_dtype(dtype)
        few = rng.standard_normal((3, TOKENS, dim))
        query, key, value = (heads(xp, x, kind) for x in few)
        memory = xp.zeros((*LEAD, dim, dim), np.float32)
        state = (memory, memory[..., 0].copy())
        elu = feature_maps.elu_plus_one
        call = call_of(query, key, value, None, *state, elu, None)
        sizes = Sizes(kind.itemsize, LEAD[0] * LEAD[1], TOKENS, dim, dim)
        card = device.multiprocessors, device.shared
        picked = choose(sizes, *card)
        shapes = Shapes(f"{dtype}, K = V = {dim}", dtype, device, timed)
        for tile in shapes_of(sizes, device.shared):
            output = device.empty(value.shape, kind)
            last = [device.empty(x.shape, x.dtype) for x in state]
            choice = Choice(tile, (1, TOKENS), "")
            (launch,) = chunk_fwd.plan(device, call, output, *last, choice=choice)
            remarks = []
            if prediction := cost.predicted(sizes, tile, *card):
                remarks.append(f"(predicted {1e6 * prediction.seconds:.0f})")
            remarks += ["picked"] * (picked is not None and picked.shape == tile)
            yield shapes.line(tile, launch, output, *remarks)


def delta_rows(xp: Any, device: Device, timed: Timed) -> Iterator[str]:
    """Yield a line for each shape of the delta rules."""
    for case in DELTA:
        yield from _delta_rows("delta", chunk_delta, case, xp, device, timed)
    for case in KDA:
        yield from _delta_rows("kda", chunk_gla, case, xp, device, timed)


def _delta_rows(
    name: str, planner: Any, case: Case, xp: Any, device: Device, timed: Timed
) -> Iterator[str]:
    """Yield a line for each shape of one case of a planner."""
    dtype, features, values, options = case
    rng, kind = np.random.default_rng(0), numpy_dtype(dtype)
    query, key = rng.standard_normal((2, TOKENS, features))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value = rng.standard_normal((TOKENS, values))
    query, key, value = (heads(xp, x, kind) for x in (query, key, value))
    channels = features if planner is chunk_gla else 1
    log_decay = -abs(rng.standard_normal((TOKENS, channels))) / 10
    beta = rng.uniform(size=(TOKENS, 1))
    log_decay, beta = (heads(xp, x, np.float32) for x in (log_decay, beta))
    terms = Terms(query, key, value, log_decay, key, beta=beta)
    picked = planner.tile_shape(
        *(dtype, features, values, device.shared),
        heads=LEAD[0] * LEAD[1],
        multiprocessors=device.multiprocessors,
    )
    label = f"{name}, {dtype}, K = {features}, V = {values}"
    shapes = Shapes(label, dtype, device, timed)
    for tile in (TileShape(features, *x) for x in options):
        output = device.empty(value.shape, kind)
        final = device.empty((*LEAD, features, values), np.float32)
        launch = planner.plan(device, terms, None, output, final, shape=tile)
        if launch.shared <= device.shared:
            yield shapes.line(tile, launch, output, *["picked"] * (picked == tile))


def heads(xp: Any, rows: Any, dtype: Any) -> Any:
    """Return rows for all heads, contiguous on the device."""
    here = xp.asarray(rows.astype(dtype))
    return xp.ascontiguousarray(xp.broadcast_to(here, (*LEAD, *rows.shape)))


def main() -> int:
    """Print all lines; return 1 if results differ, 2 without a GPU."""
    try:
        cupy = require_device()
    except UsageError as reason:
        sys.stdout.write(f"{reason}\n")
        return 2
    clock = CuPyClock()

    def timed(call: Callable[[], object]) -> float:
        calls = DeviceCalls(clock, [call], lambda _: [])
        return median(calls.turn(0.0).seconds for _ in range(ROUNDS))

    wrong = False
    where = cupy, CuPyDevice(), timed
    for line in chain(forward_rows(*where), delta_rows(*where)):
        wrong |= "WRONG" in line
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
