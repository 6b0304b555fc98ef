"""Time every tile shape of `chunk_fwd` on this card, beside what the model predicts.

    python tools/gpu_shapes.py

B = 8, H = 16, 4096 tokens, elu(x) + 1 and sums of weights, the kernel alone. Results of
a shape are compared with those of the first. The planner picks by the model: a shape
that is faster than the one marked *picked* says that it is wrong here.
"""

import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from linkern import feature_maps
from linkern.bench.cuda.clocks import CuPyClock, DeviceCalls
from linkern.bench.cuda.machine import require_device
from linkern.kernels.cuda.forward import call_of
from linkern.kernels.cuda.launch import CuPyDevice, Device
from linkern.kernels.cuda.plan import chunk_fwd, cost
from linkern.kernels.cuda.plan.choice import Choice, choose
from linkern.kernels.cuda.plan.tiles import MORE, Sizes, TileShape, safe_shape
from linkern.testing import UsageError
from linkern.testing.target.frameworks import numpy_dtype

# Shapes that the planner does not know, by itemsize and K: one that it picked until
# others had fewer instructions, and blocks of four warps of a scheduler.
UNKNOWN = {(2, 64): [(64, 64, 8), (64, 64, 16)], (4, 64): [(64, 64, 16)]}
CASES = (("bfloat16", 64), ("float16", 64), ("bfloat16", 128), ("float32", 64))
LEAD, TOKENS, ROUNDS = (8, 16), 4096, 5
# Largest difference of two shapes, relative to the largest number.
NEAR = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-5}

Timed = Callable[[Callable[[], object]], float]


def shapes_of(sizes: Sizes, shared: int) -> list[TileShape]:
    """Return the safe shape, and all others that fit."""
    key = sizes.itemsize, sizes.features
    others = [*MORE.get(key[0], {}).get(key[1], ()), *UNKNOWN.get(key, ())]
    shapes = [safe_shape(sizes, shared), *(TileShape(key[1], *x) for x in others)]
    return [x for x in shapes if x and x.shared_bytes(sizes.itemsize) <= shared]


def rows(xp: Any, device: Device, timed: Timed) -> Iterator[str]:
    """Yield a line for each shape of each case; "WRONG" if its results are."""
    for dtype, dim in CASES:
        rng = np.random.default_rng(0)
        kind, shape = numpy_dtype(dtype), (*LEAD, TOKENS, dim)
        few = rng.standard_normal((3, TOKENS, dim)).astype(kind)
        query, key, value = (
            xp.ascontiguousarray(xp.broadcast_to(xp.asarray(x), shape)) for x in few
        )
        memory = xp.zeros((*LEAD, dim, dim), np.float32)
        state = (memory, memory[..., 0].copy())
        elu = feature_maps.elu_plus_one
        call = call_of(query, key, value, None, *state, elu, None)
        sizes = Sizes(kind.itemsize, LEAD[0] * LEAD[1], TOKENS, dim, dim)
        card = device.multiprocessors, device.shared
        picked, first = choose(sizes, *card), None
        for tile in shapes_of(sizes, device.shared):
            output = device.empty(shape, kind)
            last = [device.empty(x.shape, x.dtype) for x in state]
            choice = Choice(tile, (1, TOKENS), "")
            (launch,) = chunk_fwd.plan(device, call, output, *last, choice=choice)
            seconds = timed(lambda launch=launch: device.launch(launch))
            wide = output.astype(np.float32)
            first = wide if first is None else first
            error = float(abs(wide - first).max() / abs(first).max())
            words = [f"{dtype}, K = V = {dim}, {', '.join(map(str, tile[1:]))}:"]
            words.append(f"{1e6 * seconds:.0f} us")
            if prediction := cost.predicted(sizes, tile, *card):
                words.append(f"(predicted {1e6 * prediction.seconds:.0f})")
            words += ["picked"] * (picked is not None and picked.shape == tile)
            words += [] if error <= NEAR[dtype] else [f"WRONG by {error:.2g}"]
            yield " ".join(words)


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
    for line in rows(cupy, CuPyDevice(), timed):
        wrong |= "WRONG" in line
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
