"""Show what one causal call spends in each function of NumPy, on one thread.

    python tools/call_profile.py [float32|float64]

The quietest of some calls, in nanoseconds for each token and head, and the limit beside
it: products of large matrices. Only what the engine for additive operators calls is
seen; all else is the rest.
"""

import os
import sys

for variable in ("LINKERN_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

from collections import Counter
from time import perf_counter
from typing import Any

import numpy as np

import linkern
from linkern._cpu import additive, features

HEADS, LENGTH, DIM = 8, 4096, 64
CALLS = 12
ORDER = 2048  # of the large matrices


class Timed:
    """NumPy, with the time that each of its functions took."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if not callable(found) or isinstance(found, type):
            return found

        def timed(*args: Any, **options: Any) -> Any:
            start = perf_counter()
            result = found(*args, **options)
            shown = name
            if name == "matmul":
                shown += f" {args[0].shape[-2:]} @ {args[1].shape[-2:]}"
            self.seconds[shown] += perf_counter() - start
            self.calls[shown] += 1
            return result

        return timed


def measured(dtype: str) -> tuple[float, Timed]:
    """Return how long the quietest call took, and where."""
    rng = np.random.default_rng(0)
    shape = (1, HEADS, LENGTH, DIM)
    inputs = [rng.standard_normal(shape).astype(dtype) for _ in range(3)]
    found = []
    for _ in range(CALLS):
        linkern.linear_attention(*inputs)  # whatever is kept between calls is there
        timed = Timed()
        vars(additive)["np"] = vars(features)["np"] = timed
        start = perf_counter()
        linkern.linear_attention(*inputs)
        found.append((perf_counter() - start, timed))
        vars(additive)["np"] = vars(features)["np"] = np
    return min(found, key=lambda item: item[0])


def peak(dtype: str) -> float:
    """Return the operations of large products in a second."""
    large = np.ones((ORDER, ORDER), dtype)
    out = np.empty_like(large)
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        np.matmul(large, large, out=out)
        times.append(perf_counter() - start)
    return 2 * ORDER**3 / min(times)


def main() -> None:
    """Write the profile to standard output."""
    dtype = sys.argv[1] if len(sys.argv) > 1 else "float32"
    whole, timed = measured(dtype)
    each = 1e9 / (HEADS * LENGTH)
    rest = whole - sum(timed.seconds.values())
    lines = [
        (f"{name}, {timed.calls[name]} calls", seconds)
        for name, seconds in timed.seconds.most_common()
    ]
    lines += [("the rest", rest), ("one call", whole)]
    sys.stdout.writelines(f"{name:40}{each * x:7.0f} ns\n" for name, x in lines)
    sys.stdout.write(f"products of large matrices: {peak(dtype) / 1e9:.0f} GFLOP/s\n")


if __name__ == "__main__":
    main()
